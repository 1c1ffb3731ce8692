package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// What a guest that writes to its serial port without end may cost: what the
// launcher lets through at once and each second (launcher/serial), and some
// of virt-handler's memory, which none of it passes through; nor does much of what a
// guest's agent says.
const (
	floodBurst     = 1 << 20
	floodPerSecond = 64 << 10
	floodRSS       = 24 << 10 // KiB; other tests run beside this one, and a busy heap may triple (internal/heap)
)

// handlerUse returns virt-handler's process, and its memory in KiB.
func handlerUse(t *testing.T) (p nodeProcess, rss int) {
	t.Helper()
	p, err := findProcess(func(p nodeProcess) bool { return strings.HasSuffix(p.Args[0], "/virt-handler") })
	if err == nil {
		rss, err = strconv.Atoi(strings.TrimSuffix(procStatus(t, p)["VmRSS"], " kB"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return p, rss
}

// TestSerialFlood: a guest that floods its serial port reaches neither
// virt-handler, nor the node's disk, nor its neighbour.
func TestSerialFlood(t *testing.T) {
	t.Parallel()
	flood := 10 * time.Second
	if long() {
		flood = 2 * time.Minute
	}
	ns := namespace(t)
	guest, neighbour := create(t, ns, tiny("floods")), create(t, ns, tiny("neighbour"))
	guest.await(v1.Running)
	neighbour.await(v1.Running)
	for _, v := range []vmi{guest, neighbour} {
		v.log().shows("tiny: up") // an emulated guest takes its time beside others
	}
	loud, quiet := guest.shell(), neighbour.shell()
	logged := func() int {
		t.Helper()
		pod := guest.pod()
		out, err := onNode(`cat /var/log/pods/"$1"_"$2"_*/compute/*.log* | wc -c`, ns, pod.Name)
		n, numberErr := strconv.Atoi(strings.TrimSpace(out))
		if err != nil || numberErr != nil {
			t.Fatalf("measure the log of %s: %q, %v", pod.Name, out, err)
		}
		return n
	}
	process, rss := handlerUse(t)
	had, begin := logged(), time.Now()

	loud.send("cat /dev/zero | tr '\\0' x\n") // and no end of line
	loud.expect(`x{1000}`)
	for time.Since(begin) < flood {
		asked := time.Now()
		if out, _ := quiet.run("echo $((6 * 7))"); out != "42\n" {
			t.Errorf("the neighbour's console answers %q", out)
		}
		if took := time.Since(asked); took > 10*time.Second {
			t.Errorf("the neighbour took %s to answer", took)
		}
		time.Sleep(time.Second)
	}
	// The log's lines are wrapped by the container runtime, which adds some.
	most := (floodBurst + int(time.Since(begin).Seconds()+1)*floodPerSecond) * 5 / 4
	if grown := logged() - had; grown > most || grown == 0 {
		t.Errorf("the pod's log has grown by %d bytes within %s, want at most %d", grown, time.Since(begin), most)
	}
	if now, nowRSS := handlerUse(t); now.Start != process.Start || nowRSS > rss+floodRSS {
		t.Errorf("virt-handler is process %d with %d KiB RSS, was %d with %d", now.PID, nowRSS, process.PID, rss)
	}
	guest.awaitReady("GuestRunning")
	if rss, err := strconv.Atoi(strings.TrimSuffix(procStatus(t, guest.launcher())["VmRSS"], " kB")); err != nil || rss > 2*maxLauncherRSS {
		t.Errorf("the flooded launcher has %d KiB RSS (%v), want at most %d", rss, err, 2*maxLauncherRSS)
	}
	deletesSoon(t, guest)
}

// TestHandlerSeesNoFilesOfPods: virt-handler, which is root on its node, sees no
// file of any pod: there is no path, and so no link, that could lead it astray.
func TestHandlerSeesNoFilesOfPods(t *testing.T) {
	t.Parallel()
	v := create(t, namespace(t), tiny("guest"))
	v.await(v1.Running)
	pod := get[corev1.Pod](t, "-n", "kubevirt", "pod", handlerPod(t))
	if pod.Spec.HostPID || pod.Spec.HostIPC {
		t.Error("virt-handler is in the host's PID or IPC namespace: /proc shows it the root of each process")
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.HostPath == nil {
			continue
		}
		// A pod's files are below these.
		for _, root := range []string{"/var/lib/kubelet/pods", "/var/lib/containerd", "/run/containerd", "/proc", "/var/log/pods"} {
			if path := strings.TrimSuffix(volume.HostPath.Path, "/"); root == path || strings.HasPrefix(root, path+"/") || strings.HasPrefix(path, root+"/") {
				t.Errorf("virt-handler has the host's folder %s", volume.HostPath.Path)
			}
		}
	}
	p, err := findProcess(func(p nodeProcess) bool { return strings.HasSuffix(p.Args[0], "/virt-handler") })
	if err != nil {
		t.Fatal(err)
	}
	// What it has open, and what its file system shows of the launcher's overlay and of other processes.
	out, err := onNode(`find "/proc/$1/root/" \( -path '*/root/proc' -o -path '*/root/sys' \) -prune -o -name '*.qcow2' -print; for f in /proc/$1/fd/*; do readlink "$f"; done | grep -E 'kubelet/pods|overlays|images' ; ls "/proc/$1/root/proc" | grep -E '^[0-9]+$' | wc -l`, strconv.Itoa(p.PID))
	if err != nil {
		t.Fatal(err)
	}
	var processes int
	if _, err := fmt.Sscan(out, &processes); err != nil || processes > 3 {
		t.Errorf("virt-handler sees files of a pod, or more processes than its own: %q", out)
	}
}
