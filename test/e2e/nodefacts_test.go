package e2e

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const (
	schedulableLabel = "kubevirt.io/schedulable"
	acceleratorLabel = "kubeqemu.io/accelerator"
	slots            = "110"
)

func theNode(t *testing.T) *corev1.Node {
	t.Helper()
	nodes := get[corev1.NodeList](t, "nodes")
	if len(nodes.Items) != 1 {
		t.Fatalf("%d nodes", len(nodes.Items))
	}
	return &nodes.Items[0]
}

// useEmulation changes the cluster's configuration.
func useEmulation(permitted bool) error {
	_, err := output("", "kubectl", "-n", "kubevirt", "patch", "kubevirt", "kubevirt", "--type=merge", "--patch",
		fmt.Sprintf(`{"spec":{"configuration":{"developerConfiguration":{"useEmulation":%t}}}}`, permitted))
	return err
}

// awaitNodeFacts waits for a node's accelerator and number of slots.
func awaitNodeFacts(t *testing.T, accelerator, slots string) {
	t.Helper()
	start := time.Now()
	err := poll(func() error {
		node := theNode(t)
		have := node.Status.Allocatable["devices.kubevirt.io/vm"]
		if got := node.Labels[acceleratorLabel]; got != accelerator || have.String() != slots {
			return fmt.Errorf("the node has accelerator %q and %s slots, want %q and %s", got, have.String(), accelerator, slots)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("accelerator %s and %s slots after %v", accelerator, slots, time.Since(start).Round(100*time.Millisecond))
}

// TestNodeFacts: what virt-handler finds out of its node comes to the Lease,
// the labels and the slots, and follows the cluster's configuration.
func TestNodeFacts(t *testing.T) {
	kubectl(t, "-n", "kubevirt", "wait", "kv/kubevirt", "--for=condition=Available", "--timeout=600s")
	if out := kubectl(t, "-n", "kubevirt", "get", "kvs"); !strings.Contains(out, "Deployed") {
		t.Errorf("kubectl get kvs:\n%s", out)
	}
	node := theNode(t)
	if node.Labels[schedulableLabel] != "true" || node.Annotations["kubevirt.io/heartbeat"] == "" {
		t.Errorf("labels %v, annotations %v", node.Labels, node.Annotations)
	}
	accelerator := node.Labels[acceleratorLabel]
	lease := get[coordinationv1.Lease](t, "-n", "kubevirt", "lease", "virt-handler-"+node.Name)
	if accelerator == "" || lease.Annotations[acceleratorLabel] != accelerator || lease.Annotations["kubeqemu.io/accelerator-reason"] == "" {
		t.Errorf("the node's accelerator is %q, the Lease's annotations are %v", accelerator, lease.Annotations)
	}
	t.Logf("accelerator %s: %s", accelerator, lease.Annotations["kubeqemu.io/accelerator-reason"])
	awaitNodeFacts(t, accelerator, slots)

	ns := namespace(t)
	before := create(t, ns, tiny("before", bootsKernel))
	before.await(v1.Running)
	t.Cleanup(func() {
		if err := useEmulation(true); err != nil {
			t.Error(err)
		}
		awaitNodeFacts(t, accelerator, slots)
	})
	if err := useEmulation(false); err != nil {
		t.Fatal(err)
	}
	if accelerator == "kvm" {
		t.Log("KVM WORKS HERE: nothing is emulated, and the permission changes nothing")
		awaitNodeFacts(t, "kvm", slots)
		return
	}
	awaitNodeFacts(t, "none", "0")
	lease = get[coordinationv1.Lease](t, "-n", "kubevirt", "lease", lease.Name)
	if reason := lease.Annotations["kubeqemu.io/accelerator-reason"]; !strings.Contains(reason, "KVM is not used") || !strings.Contains(reason, "useEmulation") {
		t.Errorf("the Lease's reason is %q", reason)
	}
	if out := kubectl(t, "describe", "node", node.Name); !strings.Contains(out, "NoAccelerator") {
		t.Errorf("kubectl describe node does not tell:\n%s", out)
	}
	waits := create(t, ns, tiny("waits"))
	waits.awaitCondition(v1.ConditionPodScheduled, "Unschedulable", "Insufficient devices.kubevirt.io/vm")
	if vmi := waits.get(); vmi.Status.Phase != v1.Scheduling {
		t.Errorf("the VMI without a slot is %s", vmi.Status.Phase)
	}
	if ready := before.condition(v1.ConditionReady); ready.Status != "True" {
		t.Errorf("a guest that ran before: %+v", ready)
	}

	if err := useEmulation(true); err != nil {
		t.Fatal(err)
	}
	awaitNodeFacts(t, accelerator, slots)
	waits.await(v1.Running)
}

// TestNodeWithoutHandlerGetsNoGuests: a node whose virt-handler has not renewed its Lease for
// five minutes gets no more guests, until it does. The Lease is made old
// instead of waiting, and virt-controller started anew: the one that was there
// would take any change of the Lease for a sign of life.
func TestNodeWithoutHandlerGetsNoGuests(t *testing.T) {
	node := theNode(t).Name
	awaitLabel := func(want string) {
		t.Helper()
		err := poll(func() error {
			if got := theNode(t).Labels[schedulableLabel]; got != want {
				return fmt.Errorf("the node has %s=%q, want %q", schedulableLabel, got, want)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	awaitLabel("true")
	ns := namespace(t)
	start := stopHandler(t)
	ago := time.Now().Add(-5 * time.Minute).UTC().Format("2006-01-02T15:04:05.000000Z07:00")
	kubectl(t, "-n", "kubevirt", "patch", "lease", "virt-handler-"+node, "--type=merge", "--patch", `{"spec":{"renewTime":"`+ago+`"}}`)
	kubectl(t, "-n", "kubevirt", "rollout", "restart", "deployment/virt-controller")
	kubectl(t, "-n", "kubevirt", "rollout", "status", "--timeout=600s", "deployment/virt-controller")
	awaitLabel("false")
	v := create(t, ns, tiny("waits"))
	v.awaitCondition(v1.ConditionPodScheduled, "Unschedulable", "Insufficient devices.kubevirt.io/vm")
	start()
	awaitLabel("true")
	v.await(v1.Running)
}

// leader is the pod of the virt-controller that works.
func leader() (string, error) {
	holder, err := output("", "kubectl", "-n", "kubevirt", "get", "lease", "virt-controller", "-o", "jsonpath={.spec.holderIdentity}")
	pod, _, _ := strings.Cut(holder, "_")
	if err == nil && pod == "" {
		err = errors.New("no virt-controller leads")
	}
	return pod, err
}

// TestSecondControllerTakesOver: of two virt-controllers one works, and when it is gone,
// the other.
func TestSecondControllerTakesOver(t *testing.T) {
	install := func(folder string) error {
		_, err := output("", "kubectl", "apply", "-k", filepath.Join("..", "..", "config", folder))
		if err == nil {
			_, err = output("", "kubectl", "-n", "kubevirt", "rollout", "status", "--timeout=600s", "deployment/virt-controller")
		}
		return err
	}
	ns := namespace(t)
	t.Cleanup(func() {
		if err := install("default"); err != nil {
			t.Error(err)
		}
	})
	if err := install("ha"); err != nil {
		t.Fatal(err)
	}
	var first string
	err := poll(func() (err error) { first, err = leader(); return err })
	if err != nil {
		t.Fatal(err)
	}
	one := create(t, ns, tiny("one"))
	one.await(v1.Running)
	pods := get[corev1.PodList](t, "-n", "kubevirt", "pods", "-l", "kubevirt.io=virt-controller")
	if len(pods.Items) != 2 || !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return p.Name == first }) {
		t.Errorf("%d virt-controllers, and %s leads", len(pods.Items), first)
	}
	kubectl(t, "-n", "kubevirt", "delete", "pod", first, "--timeout=600s")
	start := time.Now()
	two := create(t, ns, tiny("two"))
	two.await(v1.Running)
	t.Logf("Running %v after the leader was gone", time.Since(start).Round(100*time.Millisecond))
	if next, err := leader(); err != nil || next == first {
		t.Errorf("%s leads (%v), who was deleted", next, err)
	}
	one.delete()
}
