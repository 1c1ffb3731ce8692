package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func evictedBy(strategy v1.EvictionStrategy) func(*v1.VirtualMachineInstanceSpec) {
	return func(s *v1.VirtualMachineInstanceSpec) { s.EvictionStrategy = ptr.To(strategy) }
}

// drain drains the node of the pods that a selector names, and returns kubectl's complaint.
func drain(node, selector string, timeout time.Duration) error {
	_, err := output("", "kubectl", "drain", node, "--pod-selector="+selector, "--delete-emptydir-data", "--ignore-daemonsets", "--timeout="+timeout.String())
	return err
}

// TestDrainOfTheOnlyNode: kubectl drain ends a guest with the strategy None, and one that is to move, because there is no other node. It asks a guest with the strategy External
// to leave, which can be taken back, and ends once that guest's VMI is deleted. A drain cordons the node,
// so no other test runs beside this one.
func TestDrainOfTheOnlyNode(t *testing.T) {
	if nodes := get[corev1.NodeList](t, "nodes"); len(nodes.Items) != 1 {
		t.Fatalf("the cluster has %d nodes: the test drains the only one", len(nodes.Items))
	}
	ns := namespace(t)
	machine := func(name string, strategy v1.EvictionStrategy) (vm, types.UID) {
		m := createVM(t, ns, name, v1.RunStrategyAlways, bootsKernel, evictedBy(strategy))
		return m, m.runs("")
	}
	ends, ended := machine("drain-ends", v1.EvictionStrategyNone)
	moves, moved := machine("drain-moves", v1.EvictionStrategyLiveMigrate)
	stays, stayed := machine("drain-stays", v1.EvictionStrategyExternal)
	const selector = "kubevirt.io/vm in (drain-ends, drain-moves, drain-stays)"
	node := stays.get().Status.NodeName
	t.Cleanup(func() { kubectl(t, "uncordon", node) })
	err := drain(node, selector, 15*time.Second)
	if err == nil || !strings.Contains(err.Error(), `Eviction triggered evacuation of VMI "`+ns+`/drain-stays"`) {
		t.Fatalf("kubectl drain: %v, want the VMI that stays named", err)
	}
	err = poll(func() error {
		if ends.uid() == ended || moves.uid() == moved {
			return errors.New("a guest that may be ended runs on")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	now := stays.get()
	if now.UID != stayed || now.Status.Phase != v1.Running || now.Status.EvacuationNodeName != node {
		t.Errorf("the VMI that stays is %s, asked to leave %q", now.Status.Phase, now.Status.EvacuationNodeName)
	}
	stays.awaitCondition(v1.ConditionEvictionRequested, "asks the guest to leave node "+node)
	stays.awaitEvents(v1.ReasonEvictionRequested)

	editor := stays.editor()
	stays.asked(http.StatusConflict, "not asked to leave", "", "virtualmachines", "evacuate/cancel", v1.EvacuateCancelOptions{EvacuationNodeName: "another"})
	stays.asked(http.StatusOK, "", "", "virtualmachines", "evacuate/cancel", v1.EvacuateCancelOptions{DryRun: []string{"All"}})
	if asked := stays.get().Status.EvacuationNodeName; asked != node {
		t.Errorf("after a dry run the guest is asked to leave %q", asked)
	}
	stays.asked(http.StatusOK, "", editor, "virtualmachineinstances", "evacuate/cancel", v1.EvacuateCancelOptions{EvacuationNodeName: node})
	if asked := stays.get().Status.EvacuationNodeName; asked != "" {
		t.Errorf("after its evacuation was cancelled the guest is asked to leave %q", asked)
	}

	over := make(chan error, 1)
	go func() { over <- drain(node, selector, 2*time.Minute) }()
	err = poll(func() error {
		if asked := stays.get().Status.EvacuationNodeName; asked != node {
			return fmt.Errorf("the guest is asked to leave %q", asked)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	kubectl(t, "-n", ns, "delete", "vmi", stays.name, "--wait=false") // as a cluster's own controller does
	if err := <-over; err != nil {
		t.Errorf("kubectl drain, when the guest has left: %v", err)
	}
	for _, m := range []vm{ends, moves, stays} {
		m.awaitCondition(v1.ConditionPodScheduled, "unschedulable")
	}
	kubectl(t, "uncordon", node)
	ends.runs(ended)
	moves.runs(moved)
	stays.runs(stayed)
	if asked := stays.get().Status.EvacuationNodeName; asked != "" {
		t.Errorf("the next guest is asked to leave %q", asked)
	}
	if pods := get[corev1.PodList](t, "-n", ns, "pods", "-l", selector); len(pods.Items) != 3 {
		t.Errorf("there are %d launcher pods, want 3", len(pods.Items))
	}
}

// editor is a user with Kubernetes' role edit in the VMI's namespace, who may cancel its evacuation.
func (v vmi) editor() string {
	v.t.Helper()
	user := "edit-" + v.namespace
	kubectl(v.t, "-n", v.namespace, "create", "rolebinding", "edit", "--clusterrole=edit", "--user="+user)
	err := poll(func() error {
		code, status := ask(v.t, configOf(v.t, user), http.MethodPut, v.path("virtualmachineinstances", "evacuate/cancel"), v1.EvacuateCancelOptions{DryRun: []string{"All"}})
		if code != http.StatusOK {
			return fmt.Errorf("%s may not cancel an evacuation: %d %s", user, code, status.Message)
		}
		return nil
	})
	if err != nil {
		v.t.Fatal(err)
	}
	return user
}

// TestDrainMovesGuests: kubectl drain has a guest move to another node, and then ends. A taint kubevirt.io/drain has the guest move back, and
// leaves a guest with the strategy None where it is.
func TestDrainMovesGuests(t *testing.T) {
	newSecondNode(t)
	ns := namespace(t)
	kubectl(t, "cordon", secondName)
	m := createVM(t, ns, "drain-moves", v1.RunStrategyAlways, evictedBy(v1.EvictionStrategyLiveMigrate))
	uid := m.runs("")
	m.log().shows("tiny: eth0")
	kubectl(t, "uncordon", secondName)
	t.Cleanup(func() { kubectl(t, "uncordon", firstName) })
	begun := time.Now()
	if err := drain(firstName, "kubevirt.io/vm=drain-moves", 3*time.Minute); err != nil {
		t.Errorf("kubectl drain: %v", err)
	}
	t.Logf("kubectl drain took %.1f s", time.Since(begun).Seconds())
	now := m.get()
	if now.UID != uid || now.Status.Phase != v1.Running || now.Status.NodeName != secondName || now.Status.EvacuationNodeName != "" {
		t.Errorf("VMI %s is %s on %s, asked to leave %q", now.UID, now.Status.Phase, now.Status.NodeName, now.Status.EvacuationNodeName)
	}
	moves := get[v1.VirtualMachineInstanceMigrationList](t, "-n", ns, "vmim").Items
	if len(moves) != 1 || moves[0].Annotations[v1.EvacuationMigrationAnnotation] != firstName || moves[0].EffectivePriority() != v1.PrioritySystemCritical {
		t.Errorf("the migrations are %+v", moves)
	}

	stays := createVM(t, ns, "drain-stays", v1.RunStrategyAlways, evictedBy(v1.EvictionStrategyNone)) // the first node is cordoned
	stayed := stays.runs("")
	kubectl(t, "uncordon", firstName)
	const taint = "kubevirt.io/drain:NoSchedule"
	kubectl(t, "taint", "node", secondName, taint)
	t.Cleanup(func() { kubectl(t, "taint", "node", secondName, taint+"-") })
	err := poll(func() error {
		if now := m.get(); now.Status.NodeName != firstName || now.Status.Phase != v1.Running || now.Status.MigrationState == nil || !now.Status.MigrationState.Completed {
			return fmt.Errorf("the VMI is %s on %s: %+v", now.Status.Phase, now.Status.NodeName, now.Status.MigrationState)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if m.uid() != uid {
		t.Error("the guest was restarted")
	}
	made := get[v1.VirtualMachineInstanceMigrationList](t, "-n", ns, "vmim", "-l", v1.VMINameLabel+"=drain-moves").Items
	if !slices.ContainsFunc(made, func(m v1.VirtualMachineInstanceMigration) bool {
		return m.Annotations[v1.EvacuationMigrationAnnotation] == secondName && m.EffectivePriority() == v1.PrioritySystemCritical && m.Status.Phase == v1.MigrationSucceeded
	}) {
		t.Errorf("the migrations are %+v", made)
	}
	if now := stays.get(); now.UID != stayed || now.Status.NodeName != secondName || now.Status.Phase != v1.Running || now.Status.EvacuationNodeName != "" {
		t.Errorf("the VMI with the strategy None is %s on %s, asked to leave %q", now.Status.Phase, now.Status.NodeName, now.Status.EvacuationNodeName)
	}
}
