package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestRuntimeRestarted: VMs and their networks do not notice that containerd is
// killed, or the kubelet, or both, or that the CNI plugin's configuration goes and
// comes. What ended meanwhile is said afterwards, the device plugin is there again
// within 15 s, and the next VM starts. TestKubeletKilled has the kubelet killed
// while there is no virt-handler.
func TestRuntimeRestarted(t *testing.T) {
	check := leavesNothing(t)
	ns := namespace(t)
	p := power{t}
	stays := []vmi{create(t, ns, tiny("bridge", bridged)), create(t, ns, tiny("masquerade"))}
	dies := create(t, ns, tiny("dies"))
	var before []nodeProcess
	for _, v := range append(stays, dies) {
		v.await(v1.Running)
		before = append(before, v.qemu())
		v.log().shows("tiny: eth0 ")
	}
	restarts := componentRestarts(t)
	goesOn := func(when string) {
		t.Helper()
		for i, v := range stays {
			if now := v.qemu(); now.PID != before[i].PID || now.Start != before[i].Start {
				t.Errorf("%s, QEMU of VMI %s is %d, was %d", when, v.name, now.PID, before[i].PID)
			}
			if err := poll(func() error { return nodeEchoes(v.get().Status.Interfaces[0].IP, 7) }); err != nil {
				t.Errorf("%s: %v", when, err)
			}
			if pod := v.pod(); pod.Status.Phase != corev1.PodRunning || pod.Status.ContainerStatuses[0].RestartCount != 0 {
				t.Errorf("%s, the pod of VMI %s is %+v", when, v.name, pod.Status)
			}
			v.awaitReady("GuestRunning")
		}
	}
	starts := func(name string) {
		t.Helper()
		v := create(t, ns, tiny(name))
		v.await(v1.Running)
		v.delete()
	}

	p.cluster("stop", "containerd")
	t.Cleanup(func() { output("", "cluster", "start", "--name", os.Getenv(clusterVariable), "containerd") })
	goesOn("without containerd")
	signal(t, "KILL", before[2])
	waits := create(t, ns, tiny("waits"))
	p.cluster("start", "containerd")
	waits.await(v1.Running)
	if status := dies.await(v1.Failed).Status; status.Reason != "QEMUExited" {
		t.Errorf("what died without containerd has the reason %q, want QEMUExited", status.Reason)
	}
	goesOn("after containerd is back")
	for _, v := range stays {
		if out, _ := v.shell().run("echo $((6 * 7))"); out != "42\n" {
			t.Errorf("the console of VMI %s answers %q", v.name, out)
		}
	}

	p.cluster("stop", "kubelet")
	t.Cleanup(func() { output("", "cluster", "start", "--name", os.Getenv(clusterVariable), "kubelet") })
	goesOn("without kubelet")
	p.cluster("start", "kubelet")
	registersSoon(t)
	goesOn("after the kubelet is back")
	starts("after-kubelet")

	p.cluster("stop", "kubelet")
	p.cluster("stop", "containerd")
	goesOn("without either")
	p.cluster("start", "containerd")
	p.cluster("start", "kubelet")
	registersSoon(t)
	goesOn("after both are back")
	starts("after-both")

	conflist := filepath.Join(filepath.Dir(os.Getenv("KUBECONFIG")), "node-1", "cni", "10-pods.conflist")
	if err := os.Rename(conflist, conflist+".away"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Rename(conflist+".away", conflist) })
	waits = create(t, ns, tiny("without-network"))
	goesOn("without the CNI plugin's configuration")
	if err := os.Rename(conflist+".away", conflist); err != nil {
		t.Fatal(err)
	}
	waits.await(v1.Running)
	goesOn("after it is back")

	if now := componentRestarts(t); fmt.Sprint(now) != fmt.Sprint(restarts) {
		t.Errorf("restarts were %v, are %v", restarts, now)
	}
	kubectl(t, "-n", ns, "delete", "vmi", "--all", "--timeout=600s")
	check()
	addressesAreFreed(t)
}

// registersSoon looks how long after the kubelet made its socket, which is when it
// can be asked at all, virt-handler had registered with it.
func registersSoon(t *testing.T) {
	t.Helper()
	out, err := onNode(`stat -c %.3Y /var/lib/kubelet/device-plugins/kubelet.sock`)
	if err != nil {
		t.Fatal(err)
	}
	var made float64
	if _, err := fmt.Sscan(out, &made); err != nil {
		t.Fatalf("read when the kubelet made its socket: %q", out)
	}
	registered := regexp.MustCompile(`(?m)^.*"msg":"registered with the kubelet".*$`)
	err = poll(func() error {
		var line struct {
			Time time.Time `json:"time"`
		}
		log, err := output("", "kubectl", "-n", "kubevirt", "logs", handlerPod(t))
		if err != nil {
			return err // the kubelet has just come back
		}
		lines := registered.FindAllString(log, -1)
		if len(lines) == 0 {
			return fmt.Errorf("virt-handler has never registered")
		}
		if err := json.Unmarshal([]byte(strings.TrimSpace(lines[len(lines)-1])), &line); err != nil {
			return err
		}
		after := float64(line.Time.UnixMilli())/1000 - made
		if after < 0 {
			return fmt.Errorf("virt-handler has registered last %.1f s before the kubelet was back", -after)
		}
		t.Logf("virt-handler had registered %.2f s after the kubelet was back", after)
		if after > 15 {
			t.Errorf("virt-handler has registered only %.1f s after the kubelet was back", after)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	err = poll(func() error {
		if slots := theNode(t).Status.Allocatable["devices.kubevirt.io/vm"]; slots.IsZero() {
			return fmt.Errorf("the node has no slots")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
