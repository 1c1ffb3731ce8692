package replicaset

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// failure is what went wrong first; nil for nothing.
type failure struct {
	reason string
	err    error
}

// summarize brings a status up to date. It is pure.
func summarize(rs *v1.VirtualMachineInstanceReplicaSet, selector string, owned []*v1.VirtualMachineInstance, failed *failure, now metav1.Time) {
	status := &rs.Status
	status.Replicas, status.ReadyReplicas, status.LabelSelector = 0, 0, selector
	for _, vmi := range owned {
		if !isActive(vmi) {
			continue
		}
		status.Replicas++
		if isReady(vmi) {
			status.ReadyReplicas++
		}
	}
	if rs.Spec.Paused {
		status.SetCondition(v1.VirtualMachineInstanceReplicaSetReplicaPaused, v1.ReasonPaused, "nothing is made or deleted while spec.paused is set", now)
	} else {
		status.RemoveCondition(v1.VirtualMachineInstanceReplicaSetReplicaPaused)
	}
	if failed != nil {
		status.SetCondition(v1.VirtualMachineInstanceReplicaSetReplicaFailure, failed.reason, failed.err.Error(), now)
	} else {
		status.RemoveCondition(v1.VirtualMachineInstanceReplicaSetReplicaFailure)
	}
}
