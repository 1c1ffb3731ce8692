package pool

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeqemu/kubeqemu/api/pool/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// failure is what went wrong first; nil for nothing.
type failure struct {
	reason string
	err    error
}

// summarize brings a status up to date. It is pure.
func summarize(pool *v1beta1.VirtualMachinePool, selector string, mine []*v1.VirtualMachine, failed *failure, now metav1.Time) {
	status := &pool.Status
	status.Replicas, status.ReadyReplicas, status.LabelSelector = 0, 0, selector
	for _, vm := range mine {
		if vm.DeletionTimestamp != nil {
			continue
		}
		status.Replicas++
		if vm.Status.Ready {
			status.ReadyReplicas++
		}
	}
	if pool.Spec.Paused {
		status.SetCondition(v1beta1.VirtualMachinePoolReplicaPaused, v1.ReasonPaused, "nothing is made, changed or deleted while spec.paused is set", now)
	} else {
		status.RemoveCondition(v1beta1.VirtualMachinePoolReplicaPaused)
	}
	if failed != nil {
		status.SetCondition(v1beta1.VirtualMachinePoolReplicaFailure, failed.reason, failed.err.Error(), now)
	} else {
		status.RemoveCondition(v1beta1.VirtualMachinePoolReplicaFailure)
	}
}
