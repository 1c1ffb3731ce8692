package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const (
	// outOfService is Kubernetes' taint of a node that somebody has seen to be off.
	outOfService = "node.kubernetes.io/out-of-service"
	// elsewhere bounds the time from the taint until a VM of a dead node runs on another one.
	// Kubernetes deletes the node's pods within 20 s, and the VM's guest takes the rest to start.
	elsewhere = 90 * time.Second
	// staleEnds bounds the time from a node's return until it runs no guest whose VM runs elsewhere.
	staleEnds = 60 * time.Second
)

// secondNode is the node that a test takes away. Kubeqemu's control plane is on the first.
type secondNode struct{ t *testing.T }

const (
	firstName  = "node-1"
	secondName = "node-2"
)

func newSecondNode(t *testing.T) secondNode {
	t.Helper()
	if os.Getenv(nodesVariable) != "2" {
		t.Fatalf("the test needs a cluster of two nodes: %s=2 (make e2e-two-nodes)", nodesVariable)
	}
	return secondNode{t}
}

func (n secondNode) cluster(command string) {
	n.t.Helper()
	if _, err := output("", "cluster", command, "--name", os.Getenv(clusterVariable), "--node", "2"); err != nil {
		n.t.Fatal(err)
	}
}

// starts makes a VM on the second node, which could start on the first, too. there says whether the
// second node runs its QEMU.
func (n secondNode) starts(ns, name string, edits ...func(*v1.VirtualMachineInstanceSpec)) (m vm, there func() bool) {
	n.t.Helper()
	kubectl(n.t, "cordon", firstName)
	defer kubectl(n.t, "uncordon", firstName)
	m = createVM(n.t, ns, name, v1.RunStrategyAlways, edits...)
	m.runs("")
	if node := m.get().Status.NodeName; node != secondName {
		n.t.Fatalf("VM %s is on %s", name, node)
	}
	uuid := m.get().Spec.Domain.Firmware.UUID
	return m, func() bool {
		n.t.Helper()
		out, err := output("", "cluster", "enter", "--name", os.Getenv(clusterVariable), "--node", "2", "--", "sh", "-c", `grep -alF -e "$1" /proc/[0-9]*/cmdline | xargs -r grep -al '^/usr/bin/qemu-system'; true`, "sh", uuid)
		if err != nil {
			n.t.Fatal(err)
		}
		return strings.TrimSpace(out) != ""
	}
}

// ready waits until the node is ready, or is not known to be.
func (n secondNode) ready(want corev1.ConditionStatus) {
	n.t.Helper()
	err := poll(func() error {
		for _, c := range get[corev1.Node](n.t, "node", secondName).Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == want {
				return nil
			}
		}
		return fmt.Errorf("Ready of %s is not %s", secondName, want)
	})
	if err != nil {
		n.t.Fatal(err)
	}
}

// dies waits until the cluster has noticed that the node is away, says that it is off, and waits until
// the VM runs on the first node.
func (n secondNode) dies(m vm) {
	n.t.Helper()
	before := m.uid()
	n.ready(corev1.ConditionUnknown)
	if now := m.get(); now.UID != before || now.Status.NodeName != secondName {
		n.t.Errorf("VM %s is started elsewhere before anybody says that its node is off: %s on %s", m.name, now.UID, now.Status.NodeName)
	}
	n.t.Cleanup(func() { output("", "kubectl", "taint", "node", secondName, outOfService+"-") })
	since := time.Now()
	kubectl(n.t, "taint", "node", secondName, outOfService+"=nodeshutdown:NoExecute")
	m.runs(before)
	took := time.Since(since)
	if node := m.get().Status.NodeName; node != firstName || took > elsewhere {
		n.t.Errorf("VM %s runs on %s %.0f s after the taint, want %s within %s", m.name, node, took.Seconds(), firstName, elsewhere)
	}
	n.t.Logf("VM %s runs on %s %.0f s after the taint", m.name, firstName, took.Seconds())
}

// isBack takes the taint away from a node that has come back.
func (n secondNode) isBack() {
	n.t.Helper()
	n.ready(corev1.ConditionTrue)
	kubectl(n.t, "taint", "node", secondName, outOfService+"-")
}

// TestVMOfADeadNodeRunsElsewhere: a VM of a node that has lost its power runs on another node once somebody says that the
// node is off, and never on both when it comes back.
func TestVMOfADeadNodeRunsElsewhere(t *testing.T) {
	n := newSecondNode(t)
	ns := namespace(t)
	m, there := n.starts(ns, "dead")
	if !there() {
		t.Fatal("QEMU is not found where it runs")
	}
	n.cluster("power-cut")
	t.Cleanup(func() { output("", "cluster", "power-on", "--name", os.Getenv(clusterVariable), "--node", "2") })
	n.dies(m)
	uid := m.uid()
	n.cluster("power-on")
	n.isBack()
	if there() {
		t.Error("the guest runs on the node that came back, too")
	}
	if m.uid() != uid || m.get().Status.Phase != v1.Running {
		t.Error("the guest on the first node has ended")
	}
}

// TestVMOfACutOffNodeRunsElsewhere: the same for a node that was cut off from the network, and ran on. When it comes back it
// ends the guest at once, however long the guest may take to shut down.
func TestVMOfACutOffNodeRunsElsewhere(t *testing.T) {
	n := newSecondNode(t)
	ns := namespace(t)
	m, there := n.starts(ns, "lost", grace(120), cloudInit(ignoreACPI))
	m.log().shows("tiny: eth0") // it ignores the power button from now on
	n.cluster("unplug")
	t.Cleanup(func() { output("", "cluster", "plug", "--name", os.Getenv(clusterVariable), "--node", "2") })
	n.dies(m)
	if !there() {
		t.Fatal("the node that is cut off has ended the guest: the test tests nothing")
	}
	uid, since := m.uid(), time.Now()
	n.cluster("plug")
	err := pollFor(staleEnds, func() error {
		if there() {
			return fmt.Errorf("%.0f s after the node came back it runs the guest, too", time.Since(since).Seconds())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	t.Logf("the guest on the node that came back ended after %.0f s", time.Since(since).Seconds())
	n.isBack()
	if m.uid() != uid || m.get().Status.Phase != v1.Running {
		t.Error("the guest on the first node has ended")
	}
}
