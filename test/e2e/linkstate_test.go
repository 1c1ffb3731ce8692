package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// carrier waits until the guest's kernel and the VMI's status say what the link of its first card is.
func (m vm) carrier(when string, want v1.InterfaceState) {
	m.t.Helper()
	said := map[v1.InterfaceState]string{v1.LinkUp: "1", v1.LinkDown: "0"}[want]
	shell := m.shell()
	err := poll(func() error {
		if got := m.get().Status.Interfaces[0].LinkState; got != want {
			return fmt.Errorf("status.interfaces[0].linkState is %q", got)
		}
		if out, status := shell.run("ip link set eth0 up; cat /sys/class/net/eth0/carrier"); status != 0 || strings.TrimSpace(out) != said {
			return fmt.Errorf("the guest's carrier is %q (%d), want %s", out, status, said)
		}
		return nil
	})
	if err != nil {
		m.t.Fatalf("%s: %v", when, err)
	}
}

// setLink has the template of a VM say the state of the link of its first interface.
func (m vm) setLink(state string) {
	m.t.Helper()
	kubectl(m.t, "-n", m.namespace, "patch", "vm", m.name, "--type=json", "--patch",
		`[{"op":"add","path":"/spec/template/spec/domain/devices/interfaces/0/state","value":"`+state+`"}]`)
}

// TestMigrationLinkState: a link stays down where the guest goes, and a change that comes while the guest moves is
// carried out. A guest that reboots there gets its lease again. The facts of its arguments go along with it.
func TestMigrationLinkState(t *testing.T) {
	newSecondNode(t)
	ns := namespace(t)
	kubectl(t, "cordon", secondName)
	m := createVM(t, ns, "cable", v1.RunStrategyAlways, cloudInit("#tiny\n"))
	uid := m.runs("")
	kubectl(t, "uncordon", secondName)
	m.log().shows("tiny: eth0")
	m.setLink("down")
	m.carrier("taken down", v1.LinkDown)
	m.migrate("there", nil).ends(v1.MigrationSucceeded)
	m.carrier("moved", v1.LinkDown)
	program := tool(t)
	m.movedPrints(program)
	back := m.migrate("back", nil)
	m.setLink("up")
	back.ends(v1.MigrationSucceeded)
	m.carrier("moved back", v1.LinkUp)
	m.movedPrints(program)
	if m.uid() != uid || m.get().Status.NodeName != firstName {
		t.Errorf("the guest is %s on %s, and was %s", m.uid(), m.get().Status.NodeName, uid)
	}
	// A guest that reboots where it has come to gets its lease again.
	log := m.log()
	m.shell().send("reboot -f\n")
	log.shows(`tiny: eth0 10\.0\.2\.2/24`)
	m.carrier("rebooted", v1.LinkUp)
	kubectl(t, "-n", ns, "delete", "vm", m.name, "--timeout=600s")
}

// waitsForARestart changes a field of the template that the running guest does not follow, and checks who says so: a
// warning, the condition, an event, and a column.
func (m vm) waitsForARestart() {
	m.t.Helper()
	const field = "domain.cpu.cores: 1 → 2"
	out, err := exec.Command("kubectl", "-n", m.namespace, "patch", "vm", m.name, "--type=merge", "--patch",
		`{"spec":{"template":{"spec":{"domain":{"cpu":{"cores":2}}}}}}`).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Warning: a guest that runs takes this at its next start") {
		m.t.Errorf("kubectl patch: %v: %s", err, out)
	}
	if err := poll(func() error {
		c := m.machine().Status.Condition(v1.ConditionRestartRequired)
		if c == nil || !strings.Contains(c.Message, field) || !strings.Contains(c.Message, "virtctl restart "+m.name) {
			return fmt.Errorf("RestartRequired is %+v", c)
		}
		return nil
	}); err != nil {
		m.t.Error(err)
	}
	wide := kubectl(m.t, "-n", m.namespace, "get", "vm", m.name, "-o", "wide")
	if !strings.Contains(wide, "RESTART REQUIRED") || !strings.Contains(wide, "Always         True") ||
		!strings.Contains(wide, firstName) || !strings.Contains(wide, m.get().Status.Interfaces[0].IP) {
		m.t.Errorf("kubectl get vm -o wide: %s", wide)
	}
	if err := poll(func() error {
		said, err := output("", "kubectl", "-n", m.namespace, "get", "events.events.k8s.io", "--field-selector",
			"reason=RestartRequired")
		if err == nil && !strings.Contains(said, field) {
			err = fmt.Errorf("the events are %s", said)
		}
		return err
	}); err != nil {
		m.t.Error(err)
	}
}

// TestLinkState: the guest's kernel sees the cable pulled and plugged in again while the guest runs, without a restart, and a
// guest that starts with its link down finds no carrier.
func TestLinkState(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	apply(t, ns, clientManifest)
	m := createVM(t, ns, "cable", v1.RunStrategyAlways)
	uid := m.runs("")
	m.log().shows(`tiny: eth0 10\.0\.2\.2/24`)
	pod := m.pod().Name
	want := qemuargs.QuoteWords(m.qemu().Args)
	got := kubectl(t, "-n", ns, "exec", pod, "--", "virt-launcher", "args")
	if strings.TrimSpace(got) != strings.TrimSpace(want) {
		t.Errorf("virt-launcher args prints %s, and QEMU has %s", got, want)
	}

	reached := func() error { return echoes(ns, m.get().Status.Interfaces[0].IP, 7) }
	m.carrier("at first", v1.LinkUp)
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/client", "--timeout=600s")
	if err := poll(reached); err != nil {
		t.Fatal(err)
	}
	m.setLink("down")
	m.carrier("taken down", v1.LinkDown)
	if err := reached(); err == nil {
		t.Error("the guest is reached over a link that is down")
	}
	m.setLink("up")
	m.carrier("taken up", v1.LinkUp)
	if err := poll(reached); err != nil {
		t.Error(err)
	}
	m.setLink("down")
	m.carrier("taken down again", v1.LinkDown)
	if vm := m.machine(); vm.Status.Condition(v1.ConditionRestartRequired) != nil || vm.Status.ObservedGeneration != vm.Generation || m.uid() != uid || m.pod().Name != pod {
		t.Errorf("the VM was restarted, or has to be: %+v", vm.Status)
	}

	m.waitsForARestart()
	kubectl(t, "-n", ns, "delete", "vmi", m.name, "--wait=false")
	m.runs(uid)
	m.carrier("started down", v1.LinkDown)
	m.setLink("up")
	m.carrier("taken up after a start", v1.LinkUp)
	kubectl(t, "-n", ns, "delete", "vm", m.name, "--timeout=600s")
}

// TestGuestFollowsThoughVirtHandlerIsKilled: links change and a disk grows though virt-handler is killed before it
// asks the launcher, while the launcher does it, or before virt-handler has seen that it is done. No guest is
// restarted.
func TestGuestFollowsThoughVirtHandlerIsKilled(t *testing.T) {
	ns := namespace(t)
	claims{t, ns}.folder("data", "100Mi", "true")
	m := createVM(t, ns, "cable", v1.RunStrategyAlways, bootsKernel, onClaim("data"))
	uid := m.runs("")
	m.carrier("at first", v1.LinkUp)
	for i, delay := range []time.Duration{0, 30, 100, 200, 400, 800} {
		state := []v1.InterfaceState{v1.LinkDown, v1.LinkUp}[i%2]
		m.setLink(string(state))
		<-time.After(delay * time.Millisecond)
		killHandler(t)
		m.carrier(fmt.Sprintf("killed %d ms after the change", delay), state)
	}
	shell := m.shell()
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		if _, err := output("", "kubectl", "-n", "kubevirt", "delete", "pod", "-l", "kubevirt.io=virt-handler",
			"--force", "--grace-period=0"); err != nil {
			t.Error(err)
		}
	}()
	m.grow(shell, "data", 189<<20)
	<-killed
	if m.uid() != uid {
		t.Error("the guest was restarted")
	}
	kubectl(t, "-n", ns, "delete", "vm", m.name, "--timeout=600s")
}
