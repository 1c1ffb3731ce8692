package e2e

import (
	"fmt"
	"maps"
	"os"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// long says whether the tests that can take minutes shall.
func long() bool { return os.Getenv("KUBEQEMU_E2E_LONG") == "1" }

// controller is the running virt-controller.
type controller struct {
	process nodeProcess
	pod     string
}

func isController(p nodeProcess) bool { return path.Base(p.Args[0]) == "virt-controller" }

// awaitController waits for a virt-controller other than the old one.
func awaitController(t *testing.T, old controller) controller {
	t.Helper()
	var c controller
	err := poll(func() error {
		var err error
		// The old one may still be going.
		c.process, err = findProcess(func(p nodeProcess) bool { return isController(p) && p.PID != old.process.PID })
		if err != nil {
			return err
		}
		for _, pod := range get[corev1.PodList](t, "-n", "kubevirt", "pods", "-l", "kubevirt.io=virt-controller").Items {
			if pod.DeletionTimestamp == nil && pod.Name != old.pod {
				c.pod = pod.Name
				// Another pod's process may still be going.
				_, err := onNode(`grep -q "pod$2" "/proc/$1/cgroup"`, strconv.Itoa(c.process.PID), string(pod.UID))
				return err
			}
		}
		return fmt.Errorf("no pod of virt-controller but %s", old.pod)
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// kill kills it. Its pod is deleted, so that the next one is there at once: the
// kubelet starts a container that failed later each time. It is stopped
// meanwhile, so that SIGTERM does not reach it.
func (c controller) kill(t *testing.T) {
	t.Helper()
	signal(t, "STOP", c.process)
	// By force, or else the kubelet might start the container once more.
	kubectl(t, "-n", "kubevirt", "delete", "pod", c.pod, "--force", "--grace-period=0", "--wait=false")
	signal(t, "KILL", c.process)
}

// TestControllerKilled: wherever virt-controller dies while a VMI is being
// started, that has one pod, ever, and runs.
func TestControllerKilled(t *testing.T) {
	kills := 7
	if long() {
		kills = 20
	}
	ns := namespace(t)
	pods := startTranscript(t, "watch of pods", "kubectl", "-n", ns, "get", "pods", "--watch", "-o",
		`jsonpath={.metadata.ownerReferences[0].name} {.metadata.uid}{"\n"}`)
	phases := startTranscript(t, "watch of VMIs", "kubectl", "-n", ns, "get", "vmi", "--watch", "-o",
		`jsonpath={.metadata.name} {.metadata.finalizers} {.status.phase};{"\n"}`)
	// When to kill it, after the VMI was created. Phases may be passed at once.
	moments := []func(name string){
		func(name string) { phases.shows(`(?m)^` + name + ` `) }, // right away
		func(name string) { phases.shows(`(?m)^` + name + ` \[.*\] `) },
		func(name string) { pods.shows(`(?m)^` + name + ` `) },
		func(name string) { phases.shows(`(?m)^` + name + ` .* (Scheduling|Scheduled|Running);`) },
		func(name string) { phases.shows(`(?m)^` + name + ` .* (Scheduled|Running);`) },
		func(name string) { phases.shows(`(?m)^` + name + ` .* Running;`) },
	}
	var all []vmi
	var running controller
	for i := range kills {
		running = awaitController(t, running)
		name := fmt.Sprintf("start-%02d", i)
		v := tiny(name)
		if moment := i % (len(moments) + 1); moment == len(moments) {
			running.kill(t) // before it was created
			all = append(all, create(t, ns, v))
		} else {
			all = append(all, create(t, ns, v))
			moments[moment](name)
			running.kill(t)
		}
		if i > 0 {
			all[i-1].await(v1.Running)
			kubectl(t, "-n", ns, "delete", "vmi", all[i-1].name, "--wait=false")
		}
	}
	all[kills-1].await(v1.Running)
	made := map[string]map[string]bool{}
	for line := range strings.Lines(pods.all()) {
		vmi, uid, _ := strings.Cut(strings.TrimSpace(line), " ")
		if made[vmi] == nil {
			made[vmi] = map[string]bool{}
		}
		made[vmi][uid] = true
	}
	for _, v := range all {
		if n := len(made[v.name]); n != 1 {
			t.Errorf("VMI %s has had %d pods: %v", v.name, n, made[v.name])
		}
	}
}

// TestAPIServerStopped: without an API server VMs go on, and once it is back
// the status says within half a minute what has happened meanwhile.
func TestAPIServerStopped(t *testing.T) {
	// The kubelet and the scheduler need as long again to come back.
	outage := 10 * time.Second
	if long() {
		outage = 5 * time.Minute
	}
	ns := namespace(t)
	var vmis []vmi
	var before []nodeProcess
	// What is to be said of each, once the API server is back.
	wants := []struct {
		name   string
		phase  v1.VirtualMachineInstancePhase
		reason string
	}{
		{"one", v1.Running, "GuestRunning"}, {"two", v1.Running, "GuestRunning"}, {"three", v1.Running, "GuestRunning"},
		{"dies", v1.Failed, "QEMUExited"},
		{"stops", v1.Running, "QEMUNotResponding"},
	}
	if outage < 2*noticed {
		wants = wants[:4] // it would be noticed too late
	}
	for _, want := range wants {
		vmis = append(vmis, create(t, ns, tiny(want.name)))
	}
	for _, v := range vmis {
		v.await(v1.Running)
		before = append(before, v.qemu())
	}
	restarts := componentRestarts(t)
	tell := func(program, command string) {
		t.Helper()
		if _, err := output("", "cluster", command, "--name", os.Getenv(clusterVariable), program); err != nil {
			t.Fatal(err)
		}
	}
	apiServer := func(command string) { tell("kube-apiserver", command) }
	apiServer("stop")
	started := false
	t.Cleanup(func() {
		if !started {
			apiServer("start")
		}
	})
	signal(t, "KILL", before[3])
	if len(before) > 4 {
		signal(t, "STOP", before[4])
	}
	for end := time.Now().Add(outage); time.Now().Before(end); time.Sleep(time.Second) {
		all, err := nodeProcesses()
		if err != nil {
			t.Fatal(err)
		}
		alive := map[int]string{}
		for _, p := range all {
			alive[p.PID] = p.Start
		}
		for i, p := range before[:3] {
			if alive[p.PID] != p.Start {
				t.Fatalf("QEMU %d of VMI %s died while there was no API server", p.PID, vmis[i].name)
			}
		}
	}
	apiServer("start")
	started = true
	back := time.Now()
	err := poll(func() error {
		for i, v := range vmis {
			status, want := v.get().Status, wants[i]
			if ready := status.Condition(v1.ConditionReady); status.Phase != want.phase || ready == nil || ready.Reason != want.reason {
				return fmt.Errorf("VMI %s is %s, Ready %+v; want %+v", v.name, status.Phase, ready, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	t.Logf("the status is right %.1f s after the API server was back, which was away for %s", time.Since(back).Seconds(), outage)
	for i, v := range vmis[:3] {
		if now := v.qemu(); now.PID != before[i].PID || now.Start != before[i].Start {
			t.Errorf("QEMU of VMI %s is %d, was %d", v.name, now.PID, before[i].PID)
		}
	}
	if now := componentRestarts(t); !maps.Equal(now, restarts) {
		t.Errorf("restarts were %v, are %v", restarts, now)
	}
	// For up to a minute its watches back off, so that it takes the node for lost,
	// and pods out of their Services. The next tests are not about that.
	tell("kube-controller-manager", "stop")
	tell("kube-controller-manager", "start")
}
