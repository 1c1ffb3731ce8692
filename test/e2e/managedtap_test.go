package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// byPlugin connects an interface on a network of Multus, or the guest's first interface where definition is empty, by a plugin.
func byPlugin(nic, definition, plugin string) func(*v1.VirtualMachineInstanceSpec) {
	return func(s *v1.VirtualMachineInstanceSpec) {
		binding := &v1.PluginBinding{Name: plugin}
		if definition == "" {
			s.Domain.Devices.Interfaces[0].Masquerade, s.Domain.Devices.Interfaces[0].Binding = nil, binding
			return
		}
		s.Domain.Devices.Interfaces = append(s.Domain.Devices.Interfaces, v1.Interface{Name: nic, Binding: binding})
		s.Networks = append(s.Networks, v1.Network{Name: nic, Multus: &v1.MultusNetwork{NetworkName: definition}})
	}
}

// refusesPlugin waits until the API server refuses a VMI with a plugin on the pod network, with these words. virt-api hears of
// another configuration a moment later.
func refusesPlugin(t *testing.T, ns, plugin, words string) {
	t.Helper()
	text, err := json.Marshal(tiny("refused", byPlugin("", "", plugin)))
	if err != nil {
		t.Fatal(err)
	}
	err = poll(func() error {
		_, err := output(string(text), "kubectl", "-n", ns, "create", "--dry-run=server", "-f", "-")
		if err == nil || !strings.Contains(err.Error(), words) || len(err.Error()) > 5000 {
			return fmt.Errorf("a VMI with the plugin %.40q gets %.5000v, want a refusal with %q", plugin, err, words)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestManagedTap: a guest is on the pod network and on a LAN by plugins with managedTap. Nothing of the pod gives the guest an
// address: on the LAN the guest asks the LAN's DHCP server, and on the pod network the guest takes the pod's address by itself. An
// administrator's change of the plugins holds from the next start on.
func TestManagedTap(t *testing.T) {
	const (
		registered = `{"network":{"binding":{"still":{"domainAttachmentType":"managedTap"},"moving":{"domainAttachmentType":"managedTap","migration":{}},"sidecar":{"sidecarImage":"registry.example/x:1"},"still2":null}}}`
		changed    = `{"network":{"binding":{"still":null,"moving":{"migration":null},"still2":{"domainAttachmentType":"managedTap"}}}}`
		field      = "spec.domain.devices.interfaces[0].binding.name"
	)
	ns := namespace(t)
	apply(t, ns, clientManifest)
	refusesPlugin(t, ns, "still", field+`: Invalid value: "still": the KubeVirt object has no such plugin`)
	refusesPlugin(t, ns, strings.Repeat("x", 10_000), "interfaces[0].binding.name: Too long")
	l := newLAN(t)
	installMultus(t)
	apply(t, ns, lanNetwork)
	configure(t, registered, `{"network":{"binding":null}}`)
	refusesPlugin(t, ns, "sidecar", field+`: Invalid value: "sidecar": the plugin has a sidecarImage`)

	m := vm{vmi{t: t, namespace: ns, name: "served"}}
	manifest := manifestOf(t, m.name, v1.RunStrategyAlways, byPlugin("", "", "still"), byPlugin("lan", "lan", "moving"))
	if err := poll(func() error {
		_, err := output(manifest, "kubectl", "-n", ns, "apply", "-f", "-")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	uid := m.runs("")
	leased := l.awaitLease(m.vmi, "lan")
	m.log().shows("tiny: eth1 " + strings.ReplaceAll(leased, ".", `\.`) + "/24")
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/client", "--timeout=600s")
	m.takesPodAddress()
	l.serve(8080)
	m.speaks(l, "at first", leased)

	bindings := func() string { text, _ := json.Marshal(m.get().Status.Bindings); return string(text) }
	before := bindings()
	if before != `[{"name":"default"},{"name":"lan","migration":{}}]` {
		t.Errorf("status.bindings is %s", before)
	}
	if c := m.get().Status.Condition(v1.ConditionLiveMigratable); c == nil || c.Reason != v1.ReasonInterfaceNotMigratable || !strings.Contains(c.Message, "interfaces[0] is on the pod network by the plugin still") {
		t.Errorf("LiveMigratable is %+v", c)
	}

	// The administrator changes the list while the guest runs.
	configure(t, changed, `{"network":{"binding":null}}`)
	refusesPlugin(t, ns, "still", "has no such plugin")
	m.speaks(l, "without its plugins", leased)
	if now := bindings(); now != before || m.uid() != uid {
		t.Errorf("status.bindings is %s of %s, and was %s of %s", now, m.uid(), before, uid)
	}
	kubectl(t, "-n", ns, "delete", "vmi", m.name, "--timeout=600s")
	if err := poll(func() error {
		said, err := output("", "kubectl", "-n", ns, "get", "events", "--field-selector=reason=InvalidSpec,involvedObject.name="+m.name, "-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(said, "the KubeVirt object has no such plugin") {
			err = fmt.Errorf("the events of the VMI without its plugin are %q", said)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	configure(t, registered, `{"network":{"binding":null}}`)
	m.runs(uid)
	if again := l.awaitLease(m.vmi, "lan"); again != leased {
		t.Errorf("restarted, the guest has %s, and had %s", again, leased)
	}
	m.takesPodAddress()
	m.speaks(l, "restarted", leased)
	kubectl(t, "-n", ns, "delete", "vm", m.name, "--timeout=600s")
}

// takesPodAddress has the guest take the pod's address on the pod network, as the network's own DHCP server would give it, after
// nothing there has answered the guest.
func (m vm) takesPodAddress() {
	m.t.Helper()
	status := m.get().Status.Interfaces[0]
	if pod := m.pod().Status.PodIP; status.IP != pod || pod == "" {
		m.t.Errorf("status.interfaces[0] is %+v, the pod has %s", status, pod)
	}
	route, err := output("", "kubectl", "-n", m.namespace, "exec", "client", "--", "busybox", "ip", "route", "show", "default")
	_, gateway, found := strings.Cut(route, "via ")
	if err != nil || !found {
		m.t.Fatalf("the client's route is %q: %v", route, err)
	}
	gateway = strings.Fields(gateway)[0]
	shell := m.shell()
	if out, got := shell.run("cat /sys/class/net/eth0/address"); got != 0 || strings.TrimSpace(out) != status.MAC {
		m.t.Errorf("the guest's MAC is %q (%d), the status says %s", out, got, status.MAC)
	}
	if out, got := shell.run("udhcpc -f -n -q -i eth0 -t 3 -T 1 -s /bin/true 2>&1"); got == 0 || !strings.Contains(out, "no lease") {
		m.t.Errorf("asked for an address on the pod network, the guest hears %q (%d)", out, got)
	}
	take := fmt.Sprintf("ip addr add %s/32 dev eth0 && ip route replace %[2]s dev eth0 && ip route replace default via %[2]s dev eth0", status.IP, gateway)
	if out, got := shell.run(take); got != 0 {
		m.t.Fatalf("take the pod's address: %s", out)
	}
}

// speaks: a pod, the node and the LAN reach the guest, and the guest reaches a pod and the LAN.
func (m vm) speaks(l lan, when, leased string) {
	m.t.Helper()
	address := m.get().Status.Interfaces[0].IP
	for from, attempt := range map[string]func() error{
		"a pod":    func() error { return echoes(m.namespace, address, 7) },
		"the node": func() error { return nodeEchoes(address, 7) },
		"the LAN":  func() error { return l.echoes(leased, 7, 100_000) },
	} {
		if err := poll(attempt); err != nil {
			m.t.Errorf("%s, from %s: %v", when, from, err)
		}
	}
	shell := m.shell()
	for _, to := range []string{get[corev1.Pod](m.t, "-n", m.namespace, "pod", "client").Status.PodIP, lanAddress} {
		if out, status := shell.run("echo to-and-fro | nc -w 5 " + to + " 8080"); status != 0 || strings.TrimSpace(out) != "to-and-fro" {
			m.t.Errorf("%s, from the guest to %s: %q (%d)", when, to, out, status)
		}
	}
}
