package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// badNetwork is a network of Multus on which a VM has an interface, both with the name of the case.
type badNetwork struct {
	name string
	// config is the plugin's configuration that is bad; empty: there is none.
	config string
	// definition is the network's name in the spec, if it is not the case's.
	definition string
	edit       func(*v1.VirtualMachineInstanceSpec)
	want       complaint
	// then is the later complaint, which takes the place of want.
	then complaint
	// good is the configuration that mends it, and address the guest's there, if the network gives it.
	good, address string
	// mend does what else is needed.
	mend func()
	// restart: the guest runs on the bad network, and is started anew for the good one.
	restart bool
}

// complaint is a condition of a VMI's, or of a VM's if it is Failure.
type complaint struct {
	kind   v1.ConditionType
	status metav1.ConditionStatus
	reason string
	words  []string
}

func unconnected(words ...string) complaint {
	return complaint{v1.ConditionSynchronized, metav1.ConditionFalse, v1.ReasonSandboxFailed, words}
}

// refused: the VM says so. Its VMIs end at once.
func refused(words ...string) complaint {
	return complaint{v1.ConditionFailure, metav1.ConditionTrue, v1.ReasonGuestNotStarted, words}
}

// awaitComplaint waits until the VM, or its VMI of the time, has the condition, and its message names the network.
func (m vm) awaitComplaint(c complaint) {
	m.t.Helper()
	err := poll(func() error {
		var has *v1.VirtualMachineInstanceCondition
		var state string
		if c.kind == v1.ConditionFailure {
			now := m.machine()
			has, state = now.Status.Condition(c.kind), string(now.Status.PrintableStatus)
		} else {
			now, err := m.instance()
			if err != nil {
				return err
			}
			has, state = now.Status.Condition(c.kind), string(now.Status.Phase)
		}
		if has == nil || has.Status != c.status || has.Reason != c.reason {
			return fmt.Errorf("%s (%s) has the condition %s %+v, want %s with the reason %s", m.name, state, c.kind, has, c.status, c.reason)
		}
		for _, word := range append(slices.Clone(c.words), fmt.Sprintf("%q", strings.TrimSuffix(m.name, "-2"))) {
			if !strings.Contains(has.Message, word) {
				return fmt.Errorf("VMI %s says %s: %q, want %q in it", m.name, c.kind, has.Message, word)
			}
		}
		return nil
	})
	if err != nil {
		m.t.Error(err)
	}
}

// bridgeTo is a configuration of the plugin bridge on the LAN, with more of it.
func bridgeTo(more string) string {
	return `{"cniVersion": "1.0.0", "name": "bad", "type": "bridge", "bridge": "br-lan"` + more + `}`
}

// given is an address by the plugin static.
func given(address string) string {
	return `, "ipam": {"type": "static", "addresses": [{"address": "` + address + `"}]}`
}

const fromRouter = `, "ipam": {}`

// unruly are network plugins that do as bridge does, but for what the files in a folder say.
type unruly struct{ folder, hangs, fails string }

// newUnruly puts the plugins where the node looks for plugins, until the test ends.
func newUnruly(t *testing.T) unruly {
	t.Helper()
	u := unruly{folder: t.TempDir(), hangs: "e2e-hangs", fails: "e2e-fails"}
	// What hangs has no output open: who waits for its end would wait for that too.
	for name, text := range map[string]string{
		u.hangs: `while [ "$CNI_COMMAND" = ADD ] && [ -e ` + u.folder + `/e2e-hangs ]; do sleep 1; hung=1; done
[ -z "$hung" ] || exit 1`,
		u.fails: `if [ "$CNI_COMMAND" = DEL ] && [ -e ` + u.folder + `/e2e-fails ]; then
	echo '{"cniVersion": "1.0.0", "code": 101, "msg": "the switch does not answer"}'
	exit 1
fi`,
	} {
		file := filepath.Join("..", "..", "_output", "bin", name)
		script := "#!/bin/sh\nexec 2>/dev/null\nconfig=$(cat)\n" + text + "\nprintf %s \"$config\" | sed 's/\"type\": *\"" + name + "\"/\"type\":\"bridge\"/' | /usr/lib/cni/bridge\n"
		testkit.Program(t, file, []byte(script))
		t.Cleanup(func() { os.Remove(file) })
		if err := os.WriteFile(filepath.Join(u.folder, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return u
}

// behave mends a plugin.
func (u unruly) behave(name string) { os.Remove(filepath.Join(u.folder, name)) }

// pluginFiles are what network plugins and their callers remember of pods on the node: addresses that are taken, and results.
func pluginFiles() (string, error) {
	return onNode(`cd /var/lib/cni && { find networks -type f -name "[0-9]*" | sed "s,/[^/]*$,,"; find results multus -type f 2>/dev/null | sed -E "s/[0-9a-f]{64}/ID/g"; } | sort | uniq -c; true`)
}

// holdsAddress is a pod that has the only address of a network.
const holdsAddress = `---
apiVersion: v1
kind: Pod
metadata: {name: holder, annotations: {k8s.v1.cni.cncf.io/networks: no-address}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: holder, image: "` + clientImage + `", imagePullPolicy: Never, command: [busybox, sleep, "3600"]}
`

// hasIPVLAN says whether the node's kernel has ipvlan.
func hasIPVLAN() bool {
	_, err := onNode(`ip link add probe0 link eth2 type ipvlan && ip link del probe0`)
	return err == nil
}

// TestVMOnABadNetworkSaysWhy: a VM on a network that is bad says why it does not start, or what its guest lacks. It starts when the network is mended, and
// its guest is reached there. When all is deleted, nothing is left on the node.
func TestVMOnABadNetworkSaysWhy(t *testing.T) {
	ns, other := namespace(t), namespace(t)
	l := newLAN(t)
	installMultus(t)
	scripts := newUnruly(t)
	if _, err := onNode(`ip link add card0 type veth peer name card1`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := onNode(`ip link del card0`); err != nil {
			t.Error(err)
		}
	})
	check := leavesNothing(t)
	files, err := pluginFiles()
	if err != nil {
		t.Fatal(err)
	}
	// Should the test fail: the plugins are still there.
	t.Cleanup(func() {
		scripts.behave(scripts.hangs)
		scripts.behave(scripts.fails)
		if _, err := output("", "kubectl", "-n", ns, "delete", "vm,pod", "--all", "--timeout=600s"); err != nil {
			t.Error(err)
		}
	})

	const only = `, "ipam": {"type": "host-local", "ranges": [[{"subnet": "192.168.78.0/24", "rangeStart": "192.168.78.31", "rangeEnd": "192.168.78.31"}]]}`
	const twinsMAC = "02:00:00:00:77:01"
	ipvlan := refused("is an ipvlan")
	if !hasIPVLAN() {
		t.Log("THIS MACHINE'S KERNEL HAS NO ipvlan: THE PLUGIN SAYS SO, AND VIRT-HANDLER SEES NO ipvlan HERE")
		ipvlan = unconnected("failed to create ipvlan")
	}
	cases := []badNetwork{
		{name: "missing", want: unconnected("cannot find a network-attachment-definition (missing)"), good: bridgeTo(fromRouter)},
		{name: "foreign", definition: other + "/foreign", want: unconnected("refers to target namespace " + other), good: bridgeTo(fromRouter), restart: true},
		{name: "garbled", config: `{"cniVersion": "1.0.0", `, want: unconnected("JSON"), good: bridgeTo(fromRouter)},
		{name: "unknown", config: `{"cniVersion": "1.0.0", "name": "bad", "type": "no-such-plugin"}`, want: unconnected("no-such-plugin"), good: bridgeTo(fromRouter)},
		{name: "no-address", config: bridgeTo(only), want: unconnected("no IP addresses available"), address: "192.168.78.31",
			mend: func() { kubectl(t, "-n", ns, "delete", "pod", "holder", "--timeout=600s") }},
		{name: "twins", config: bridgeTo(fromRouter), edit: chosenMAC(twinsMAC), restart: true,
			want: complaint{v1.ConditionSharedMAC, metav1.ConditionTrue, v1.ReasonMACInUse, []string{twinsMAC, `"twins-2"`, "macAddress"}}},
		{name: "mtu-60000", config: bridgeTo(`, "mtu": 60000` + fromRouter), good: bridgeTo(fromRouter), restart: true,
			want: complaint{v1.ConditionUnusualMTU, metav1.ConditionTrue, v1.ReasonMTUTooLarge, []string{"60000", "9216"}}},
		{name: "mtu-1279", config: bridgeTo(`, "mtu": 1279` + fromRouter), good: bridgeTo(fromRouter), restart: true,
			want: complaint{v1.ConditionUnusualMTU, metav1.ConditionTrue, v1.ReasonMTUTooSmall, []string{"1279", "1280", "IPv6"}}},
		{name: "mtu-of-macvlan", config: `{"cniVersion": "1.0.0", "name": "bad", "type": "macvlan", "master": "eth2", "mtu": 60000, "ipam": {}}`,
			want: unconnected("invalid MTU 60000"), good: bridgeTo(fromRouter)},
		{name: "mtu-68", config: bridgeTo(`, "mtu": 68` + given("192.168.78.32/24")), want: refused("MTU 68", "576"),
			good: bridgeTo(given("192.168.78.32/24")), address: "192.168.78.32"},
		{name: "ipvlan", config: `{"cniVersion": "1.0.0", "name": "bad", "type": "ipvlan", "master": "eth2", "ipam": {}}`, want: ipvlan, good: bridgeTo(fromRouter)},
		{name: "card", config: `{"cniVersion": "1.0.0", "name": "bad", "type": "host-device", "device": "card0"}`, want: refused("is a network card of the node"),
			good: bridgeTo(fromRouter)},
		{name: "private", config: bridgeTo(given("10.0.2.77/24")), want: refused("10.0.2.77", "10.0.2.0/24", "vmNetworkCIDR"),
			good: bridgeTo(given("192.168.78.33/24")), address: "192.168.78.33"},
		{name: "hangs", config: strings.Replace(bridgeTo(fromRouter), `"bridge"`, `"`+scripts.hangs+`"`, 1),
			want: complaint{v1.ConditionSynchronized, metav1.ConditionFalse, v1.ReasonSandboxSlow, []string{"a network plugin may hang"}},
			then: unconnected("DeadlineExceeded"), mend: func() { scripts.behave(scripts.hangs) }},
	}
	apply(t, other, network("foreign", bridgeTo(fromRouter)))
	// Before the VM that wants the same address.
	apply(t, ns, network("no-address", bridgeTo(only))+holdsAddress)
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/holder", "--timeout=600s")
	machines := map[string]vm{}
	for _, c := range cases {
		if c.config != "" {
			apply(t, ns, network(c.name, c.config))
		}
		definition := c.definition
		if definition == "" {
			definition = c.name
		}
		edits := []func(*v1.VirtualMachineInstanceSpec){on(c.name, definition)}
		if c.edit != nil {
			edits = append(edits, c.edit)
		}
		machines[c.name] = createVM(t, ns, c.name, v1.RunStrategyAlways, edits...)
	}
	twin := createVM(t, ns, "twins-2", v1.RunStrategyAlways, on("twins", "twins"), chosenMAC(twinsMAC))

	// The node gives a plugin that hangs up after 4 minutes, and says something else from then on.
	for _, c := range cases {
		if c.then.kind != "" {
			machines[c.name].awaitComplaint(c.want)
		}
	}
	for _, c := range cases {
		want := c.want
		if c.then.kind != "" {
			want = c.then
		}
		machines[c.name].awaitComplaint(want)
	}
	twin.awaitComplaint(complaint{v1.ConditionSharedMAC, metav1.ConditionTrue, v1.ReasonMACInUse, []string{`VMI "twins"`}})

	before := map[string]types.UID{}
	for _, c := range cases {
		m := machines[c.name]
		if c.good != "" {
			apply(t, ns, network(c.name, c.good))
		}
		if c.mend != nil {
			c.mend()
		}
		switch c.name {
		case "foreign":
			m.patchNIC(ns, `{"op": "replace", "path": "/spec/template/spec/networks/1/multus/networkName", "value": "foreign"}`)
		case "twins":
			m.patchNIC(ns, `{"op": "replace", "path": "/spec/template/spec/domain/devices/interfaces/1/macAddress", "value": "02:00:00:00:77:02"}`)
		}
		if before[c.name] = m.uid(); c.restart {
			kubectl(t, "-n", ns, "delete", "vmi", m.name, "--wait=false")
		}
	}
	mended := func(m vm, c badNetwork) {
		t.Run(c.name, func(t *testing.T) {
			m.t, m.vmi.t = t, t
			l.awaitRunsAfter(m, before[c.name], c.restart)
			l.reaches(m, c.name, c.address)
			now := m.get()
			for _, kind := range []v1.ConditionType{v1.ConditionSynchronized, v1.ConditionUnusualMTU, v1.ConditionSharedMAC} {
				if has := now.Status.Condition(kind); has != nil {
					t.Errorf("mended, the VMI says %+v", has)
				}
			}
			if has := m.machine().Status.Condition(v1.ConditionFailure); has != nil {
				t.Errorf("mended, the VM says %+v", has)
			}
			if c.name == "twins" {
				twin.t, twin.vmi.t = t, t
				if err := poll(func() error {
					if has := twin.get().Status.Condition(v1.ConditionSharedMAC); has != nil {
						return fmt.Errorf("mended, the other twin says %+v", has)
					}
					return nil
				}); err != nil {
					t.Error(err)
				}
				l.reaches(twin, "twins", "")
			}
			kubectl(t, "-n", ns, "delete", "vm", m.name, "--timeout=600s") // its CPU time is for the others
		})
	}
	for _, c := range cases {
		mended(machines[c.name], c)
	}
	kubectl(t, "-n", ns, "delete", "vm", "--all", "--timeout=600s")

	// Multus forgets a pod that it failed to disconnect. The next time it asks the API server for the pod's networks, and leaves the pod's files
	// behind if the API server is too busy to answer. So this VM has the node for itself.
	fails := badNetwork{name: "fails-at-del", config: strings.Replace(bridgeTo(fromRouter), `"bridge"`, `"`+scripts.fails+`"`, 1), restart: true,
		want: complaint{v1.ConditionSynchronized, metav1.ConditionFalse, v1.ReasonSandboxStays, []string{"the switch does not answer"}}}
	apply(t, ns, network(fails.name, fails.config))
	m := createVM(t, ns, fails.name, v1.RunStrategyAlways, on(fails.name, fails.name))
	l.awaitRunsAfter(m, "", false)
	before[fails.name] = m.uid()
	kubectl(t, "-n", ns, "delete", "vmi", m.name, "--wait=false")
	m.awaitComplaint(fails.want)
	scripts.behave(scripts.fails)
	mended(m, fails)

	check()
	err = poll(func() error {
		if left, err := pluginFiles(); err != nil || left != files {
			return fmt.Errorf("the plugins remember\n%s\nand remembered\n%s (%v)", left, files, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// chosenMAC gives the guest's last card a MAC.
func chosenMAC(mac string) func(*v1.VirtualMachineInstanceSpec) {
	return func(s *v1.VirtualMachineInstanceSpec) {
		nics := s.Domain.Devices.Interfaces
		nics[len(nics)-1].MacAddress = mac
	}
}

// patchNIC changes the VM's template by a JSON patch.
func (m vm) patchNIC(ns, operation string) {
	m.t.Helper()
	err := poll(func() error { // virt-api may be too busy for the API server
		_, err := output("", "kubectl", "-n", ns, "patch", "vm", m.name, "--type=json", "--patch", "["+operation+"]")
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

// awaitRunsAfter waits until a VM's guest runs, in another VMI than before if it was started anew. A VM that has failed is started again after a
// pause, which becomes longer each time.
func (l lan) awaitRunsAfter(m vm, before types.UID, anew bool) {
	m.t.Helper()
	err := poll(func() error {
		now, err := m.instance()
		if err == nil && (now.Status.Phase != v1.Running || anew && now.UID == before) {
			err = fmt.Errorf("VMI %s is %s: %+v", m.name, now.Status.Phase, now.Status.Conditions)
		}
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

// reaches wants the guest to answer on the network at its address, or at the one that the LAN's DHCP server has given to it. All guests of
// the test boot at once, and are emulated.
func (l lan) reaches(m vm, nic, address string) {
	m.t.Helper()
	err := pollFor(15*time.Minute, func() (err error) {
		to := address
		if to == "" {
			if to, err = l.lease(nicOf(m.get(), nic).MAC); err != nil {
				return err
			}
		}
		return l.echoes(to, 7, 100_000)
	})
	if err != nil {
		m.t.Errorf("network %q: %v", nic, err)
	}
}
