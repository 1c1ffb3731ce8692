package e2e

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// stopHandler takes virt-handler away. The returned function brings it back;
// the test's end does so too.
func stopHandler(t *testing.T) (start func()) {
	t.Helper()
	const nowhere = `{"spec":{"template":{"spec":{"nodeSelector":{"e2e.kubeqemu.test/nowhere":%s}}}}}`
	patch := func(value string) error {
		_, err := output("", "kubectl", "-n", "kubevirt", "patch", "daemonset", "virt-handler", "--type=merge", "--patch", fmt.Sprintf(nowhere, value))
		return err
	}
	started := false
	start = func() {
		if started {
			return
		}
		started = true
		_, err := output("", "kubectl", "-n", "kubevirt", "rollout", "status", "--timeout=600s", "daemonset/virt-handler")
		if err = errors.Join(patch("null"), err); err == nil {
			_, err = output("", "kubectl", "-n", "kubevirt", "rollout", "status", "--timeout=600s", "daemonset/virt-handler")
		}
		if err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(start)
	if err := patch(`"true"`); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "-n", "kubevirt", "wait", "--for=delete", "pod", "-l", "kubevirt.io=virt-handler", "--timeout=600s")
	return start
}

// killHandler kills virt-handler and deletes its pod, and waits until the next
// one is ready: a new pod gives the kubelet nothing to back off from. It is
// stopped while the pod is being deleted, so that SIGTERM does not reach it,
// and the kubelet does not start it again in the old pod.
func killHandler(t *testing.T) {
	t.Helper()
	running := func() (*corev1.Pod, error) {
		pods := get[corev1.PodList](t, "-n", "kubevirt", "pods", "-l", "kubevirt.io=virt-handler")
		for i := range pods.Items {
			for _, c := range pods.Items[i].Status.Conditions {
				if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && pods.Items[i].DeletionTimestamp == nil {
					return &pods.Items[i], nil
				}
			}
		}
		return nil, errors.New("no virt-handler is ready")
	}
	old, err := running()
	if err != nil {
		t.Fatal(err)
	}
	process, err := findProcess(func(p nodeProcess) bool { return path.Base(p.Args[0]) == "virt-handler" })
	if err != nil {
		t.Fatal(err)
	}
	signal(t, "STOP", process)
	kubectl(t, "-n", "kubevirt", "delete", "pod", old.Name, "--wait=false")
	signal(t, "KILL", process)
	err = poll(func() error {
		next, err := running()
		if err == nil && next.UID == old.UID {
			err = errors.New("the old virt-handler is still there")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestVMsDoNotNoticeAKilledHandler: VMs do not notice that virt-handler is killed. While there
// is none, one keeps its address, one writes to its disk, one dies, which is
// reported later, and one is deleted.
func TestVMsDoNotNoticeAKilledHandler(t *testing.T) {
	kills := 2
	if long() {
		kills = 10
	}
	check := leavesNothing(t)
	ns := namespace(t)
	volume := claims{t, ns}.folder("data", "100Mi", "true")
	vmis := []vmi{create(t, ns, tiny("bridged", bootsKernel, bridged)), create(t, ns, tiny("writes", bootsKernel, offline, onClaim("data"))), create(t, ns, tiny("dies", bootsKernel))}
	orphan, orphanLog := deaf(t, ns, "orphan")
	var before []nodeProcess
	for _, v := range vmis {
		v.await(v1.Running)
		before = append(before, v.qemu())
	}
	address := vmis[0].pod().Status.PodIP
	leases := regexp.QuoteMeta("tiny: eth0 " + address + "/32 via ")
	vmis[0].log().shows(leases)
	watch := startTranscript(t, "watch of VMIs", "kubectl", "-n", ns, "get", "vmi", "--watch", "-o",
		`jsonpath={.metadata.name} {.status.phase} {.status.conditions[?(@.type=="Ready")].status}{"\n"}`)
	watch.expect(`(?s)Running.*Running.*Running.*Running`)
	for range kills {
		killHandler(t)
	}
	for line := range strings.Lines(watch.all()) {
		if !strings.HasSuffix(strings.TrimSpace(line), " Running True") {
			t.Errorf("the watch saw %q", line)
		}
	}
	for i, v := range vmis {
		if now := v.qemu(); now.PID != before[i].PID || now.Start != before[i].Start {
			t.Errorf("QEMU of VMI %s is %d since %s, was %d since %s", v.name, now.PID, now.Start, before[i].PID, before[i].Start)
		}
		if out, _ := v.shell().run("echo $((6 * 7))"); out != "42\n" {
			t.Errorf("the console of VMI %s answers %q", v.name, out)
		}
	}
	if err := nodeEchoes(address, 7); err != nil {
		t.Errorf("after the kills: %v", err)
	}

	start := stopHandler(t)
	if _, status := vmis[0].shell().run("killall -USR1 udhcpc"); status != 0 { // renew
		t.Error("the guest has no DHCP client")
	}
	vmis[0].log().shows("(?s)" + leases + ".*" + leases)
	vmis[1].in(vmis[1].shell(), "echo without virt-handler | dd of=/dev/vdb bs=512 conv=sync,fsync 2>/dev/null")
	if out, err := onNode(`head -c 20 "$1"/disk.img`, volume); err != nil || out != "without virt-handler" {
		t.Errorf("the guest's disk begins with %q (%v)", out, err)
	}
	orphan.outstays(orphanLog)
	signal(t, "KILL", before[2])
	vmis[2].await(v1.Failed)
	if long() {
		// A virt-handler that has never had it on the line says so too.
		launcher := vmis[0].launcher()
		signal(t, "STOP", launcher)
		start()
		vmis[0].awaitReady("LauncherNotResponding")
		signal(t, "CONT", launcher)
		vmis[0].awaitReady("GuestRunning")
	}
	start()
	for _, v := range vmis[:2] {
		if ready := v.condition(v1.ConditionReady); ready.Status != "True" {
			t.Errorf("VMI %s after virt-handler is back: %+v", v.name, ready)
		}
	}
	if phase := vmis[2].get().Status.Phase; phase != v1.Failed {
		t.Errorf("the VMI that died meanwhile is %s after virt-handler is back", phase)
	}
	if err := nodeEchoes(address, 7); err != nil {
		t.Errorf("after virt-handler is back: %v", err)
	}
	kubectl(t, "-n", ns, "delete", "vmi", "--all", "--timeout=600s")
	check()
}

// TestQEMUKilled: the VMI says what happened to its QEMU.
func TestQEMUKilled(t *testing.T) {
	t.Parallel()
	v := create(t, namespace(t), tiny("killed", bootsKernel))
	v.await(v1.Running)
	signal(t, "KILL", v.qemu())
	status := v.await(v1.Failed).Status
	if status.Reason != "QEMUExited" {
		t.Errorf("reason is %q, want QEMUExited", status.Reason)
	}
	v.awaitCondition(v1.ConditionReady, "QEMUExited", "killed by signal 9")
	v.awaitEvents("SuccessfulCreate", "Started", "Stopped")
}

// TestLauncherKilled: QEMU goes with its launcher.
func TestLauncherKilled(t *testing.T) {
	t.Parallel()
	v := create(t, namespace(t), tiny("killed", bootsKernel))
	v.await(v1.Running)
	qemu := v.qemu()
	signal(t, "KILL", v.launcher())
	status := v.await(v1.Failed).Status
	if status.Reason != "LauncherKilled" {
		t.Errorf("reason is %q, want LauncherKilled", status.Reason)
	}
	v.awaitCondition(v1.ConditionReady, "LauncherKilled", "signal 9")
	all, err := nodeProcesses()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.PID == qemu.PID && p.Start == qemu.Start {
			t.Errorf("QEMU %d outlives its launcher", p.PID)
		}
	}
}
