package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// evicts has the kubelet take the node's memory for short, until the returned
// function, or the test's end, has it think better of it.
func evicts(t *testing.T) (relax func()) {
	t.Helper()
	p := power{t}
	file := filepath.Join(filepath.Dir(os.Getenv("KUBECONFIG")), "node-1", "kubelet.yaml")
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	become := func(content []byte) {
		t.Helper()
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		p.cluster("stop", "kubelet")
		p.cluster("start", "kubelet")
	}
	relaxed := false
	relax = func() {
		t.Helper()
		if relaxed {
			return
		}
		relaxed = true
		become(old)
		err := poll(func() error {
			for _, c := range theNode(t).Status.Conditions {
				if c.Type == corev1.NodeMemoryPressure && c.Status != corev1.ConditionFalse {
					return fmt.Errorf("the node's memory is short: %+v", c)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(relax)
	// A hard threshold would be taken off what pods may have, and they be turned away.
	const short = "evictionPressureTransitionPeriod: 1s\nevictionMaxPodGracePeriod: 5\n" +
		"evictionSoft: {memory.available: 99%}\nevictionSoftGracePeriod: {memory.available: 1s}\n"
	become(append(bytes.Clone(old), short...))
	return relax
}

// TestEvictedGuestRunsAgain: a guest whose node's memory is short ends as Evicted, and its VM,
// one that is started again only after failures too, runs again when there is
// memory. Kubeqemu's own pods stay.
func TestEvictedGuestRunsAgain(t *testing.T) {
	ns := namespace(t)
	m := createVM(t, ns, "evicted", v1.RunStrategyRerunOnFailure)
	alone := create(t, ns, tiny("alone"))
	first := m.runs("")
	alone.await(v1.Running)
	own := get[corev1.PodList](t, "-n", "kubevirt", "pods")
	relax := evicts(t)
	if status := alone.await(v1.Failed).Status; status.Reason != "Evicted" {
		t.Errorf("reason is %q, want Evicted: %+v", status.Reason, status.Condition(v1.ConditionReady))
	}
	alone.awaitCondition(v1.ConditionReady, "Evicted", "low on resource: memory")
	err := poll(func() error {
		if now, err := m.instance(); err != nil || now.UID == first {
			return fmt.Errorf("VM %s has the instance it had (%v)", m.name, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	relax()
	m.runs(first)
	m.qemu() // fails if there are two
	for _, pod := range own.Items {
		if now := get[corev1.Pod](t, "-n", "kubevirt", "pod", pod.Name); now.UID != pod.UID || now.Status.Phase != corev1.PodRunning {
			t.Errorf("Kubeqemu's own pod %s is %s (%s)", pod.Name, now.Status.Phase, now.Status.Reason)
		}
	}
}
