package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestGuestOverItsMemoryEndsAsOOMKilled: a guest whose pod uses more than its limit of memory ends as
// OOMKilled, and its neighbour does not notice.
func TestGuestOverItsMemoryEndsAsOOMKilled(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	neighbour := create(t, ns, tiny("neighbour"))
	v := create(t, ns, tiny("eats", func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Memory.Guest = ptr.To(resource.MustParse("1Gi"))
		s.Domain.Resources.Limits = v1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")} // and what is booked beside
	}))
	neighbour.await(v1.Running)
	v.await(v1.Running)
	qemu := neighbour.qemu()
	v.shell().send("mount -t tmpfs -o size=900m tmpfs /mnt && dd if=/dev/urandom of=/mnt/file bs=1M\n")
	if status := v.await(v1.Failed).Status; status.Reason != "OOMKilled" {
		t.Errorf("reason is %q, want OOMKilled: %+v", status.Reason, status.Condition(v1.ConditionReady))
	}
	v.awaitCondition(v1.ConditionReady, "OOMKilled", "more memory than the pod's limit")
	v.awaitEvents("Started", "Stopped")
	if now := neighbour.qemu(); now.PID != qemu.PID || now.Start != qemu.Start {
		t.Errorf("the neighbour's QEMU is %d, was %d", now.PID, qemu.PID)
	}
	neighbour.awaitReady("GuestRunning")
}

// TestGuestsWaitWhileTheNodeIsFull: where a node's file systems are full, guests wait, and say for
// what, and go on when they are not: one whose overlay has no room below /var,
// and one for whose slot there is none below /run. What ran before does not notice.
func TestGuestsWaitWhileTheNodeIsFull(t *testing.T) {
	ns := namespace(t)
	before := create(t, ns, tiny("before"))
	before.await(v1.Running)
	qemu := before.qemu()
	node := theNode(t).Name

	t.Run("var", func(t *testing.T) {
		// Its pod's folder is there before the kubelet makes it, with little room.
		uncordon := func() { output("", "kubectl", "uncordon", node) }
		t.Cleanup(uncordon)
		kubectl(t, "cordon", node)
		v := create(t, ns, tiny("overlay", offline))
		v.awaitCondition(v1.ConditionPodScheduled, "Unschedulable")
		pods := get[corev1.PodList](t, "-n", ns, "pods", "-l", "vmi.kubevirt.io/id=overlay")
		if len(pods.Items) != 1 {
			t.Fatalf("%d pods", len(pods.Items))
		}
		folder := "/var/lib/kubelet/pods/" + string(pods.Items[0].UID) + "/volumes/kubernetes.io~empty-dir/overlays"
		if out, err := onNode(`mkdir -p "$1" && mount -t tmpfs -o size=8m,mode=0777 e2e "$1"`, folder); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		t.Cleanup(func() { onNode(`umount -l "$1"`, folder) })
		uncordon()
		v.await(v1.Running)
		shell := v.shell()
		shell.send("dd if=/dev/urandom of=/dev/vda bs=1M seek=4 count=24 conv=fsync && echo wrote''all\n")
		v.awaitCondition(v1.ConditionPaused, "PausedIOError", `"root"`, "No space left on device", "nospace")
		before.awaitReady("GuestRunning")
		if out, err := onNode(`mount -o remount,size=64m "$1"`, folder); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		shell.shows("wroteall")
		v.awaitReady("GuestRunning")
		v.delete()
	})

	t.Run("run", func(t *testing.T) {
		roomy := func() {
			if out, err := onNode(`mount -o remount,size=50% /run`); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		}
		t.Cleanup(roomy)
		// tmpfs takes no size below what it holds.
		if out, err := onNode(`mount -o remount,size=$(( $(df --output=used -B4096 /run | tail -n1) * 4096 )) /run`); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		v := create(t, ns, tiny("slot"))
		v.awaitCondition(v1.ConditionSynchronized, "no space left on device")
		before.awaitReady("GuestRunning")
		if phase := v.get().Status.Phase; phase != v1.Scheduling {
			t.Errorf("VMI %s is %s, want it to wait", v.name, phase)
		}
		roomy()
		v.await(v1.Running)
		v.delete()
	})

	if now := before.qemu(); now.PID != qemu.PID || now.Start != qemu.Start {
		t.Errorf("QEMU of VMI %s is %d, was %d", before.name, now.PID, qemu.PID)
	}
	// virt-handler finds the slots that are there as they were.
	killHandler(t)
	before.awaitReady("GuestRunning")
}
