package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestLinkState: the guest's kernel sees the cable pulled and plugged in again while the guest runs, without a restart, and a
// guest that starts with its link down finds no carrier.
func TestLinkState(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	apply(t, ns, clientManifest)
	m := createVM(t, ns, "cable", v1.RunStrategyAlways)
	uid := m.runs("")
	m.log().shows(2*time.Minute, `tiny: eth0 10\.0\.2\.2/24`)
	pod := m.pod().Name

	carrier := func(when string, want v1.InterfaceState) {
		t.Helper()
		said := map[v1.InterfaceState]string{v1.LinkUp: "1", v1.LinkDown: "0"}[want]
		shell := m.shell()
		err := poll(time.Minute, func() error {
			if got := m.get().Status.Interfaces[0].LinkState; got != want {
				return fmt.Errorf("status.interfaces[0].linkState is %q", got)
			}
			if out, status := shell.run(20*time.Second, "ip link set eth0 up; cat /sys/class/net/eth0/carrier"); status != 0 || strings.TrimSpace(out) != said {
				return fmt.Errorf("the guest's carrier is %q (%d), want %s", out, status, said)
			}
			return nil
		})
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
	}
	set := func(state string) {
		t.Helper()
		kubectl(t, "-n", ns, "patch", "vm", m.name, "--type=json", "--patch",
			`[{"op":"add","path":"/spec/template/spec/domain/devices/interfaces/0/state","value":"`+state+`"}]`)
	}
	reached := func() error { return echoes(ns, m.get().Status.Interfaces[0].IP, 7) }
	carrier("at first", v1.LinkUp)
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/client", "--timeout=180s")
	if err := poll(time.Minute, reached); err != nil {
		t.Fatal(err)
	}
	set("down")
	carrier("taken down", v1.LinkDown)
	if err := reached(); err == nil {
		t.Error("the guest is reached over a link that is down")
	}
	set("up")
	carrier("taken up", v1.LinkUp)
	if err := poll(time.Minute, reached); err != nil {
		t.Error(err)
	}
	set("down")
	carrier("taken down again", v1.LinkDown)
	if vm := m.machine(); vm.Status.Condition(v1.ConditionRestartRequired) != nil || vm.Status.ObservedGeneration != vm.Generation || m.uid() != uid || m.pod().Name != pod {
		t.Errorf("the VM was restarted, or has to be: %+v", vm.Status)
	}

	kubectl(t, "-n", ns, "delete", "vmi", m.name, "--wait=false")
	m.runs(uid)
	carrier("started down", v1.LinkDown)
	set("up")
	carrier("taken up after a start", v1.LinkUp)
	kubectl(t, "-n", ns, "delete", "vm", m.name, "--timeout=120s")
}
