package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/handlerlease"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/compare"
)

// tool builds qemuargs, and returns its path.
func tool(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "qemuargs")
	if _, err := output("", "go", "build", "-o", program, "../../cmd/qemuargs"); err != nil {
		t.Fatal(err)
	}
	return program
}

// rendered returns the arguments that qemuargs prints for a manifest and a host file.
func rendered(t *testing.T, program, manifest, host string) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "host.yaml")
	if err := os.WriteFile(file, []byte(host), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := output(manifest, program, "render", "--json", "--host", file, "-")
	var said struct{ Args []string }
	if err == nil {
		err = json.Unmarshal([]byte(text), &said)
	}
	if err != nil {
		t.Fatalf("render the manifest: %v", err)
	}
	return said.Args
}

// sameArguments checks that two command lines differ in the numbers of inherited files at most.
func sameArguments(t *testing.T, who string, got, want []string) {
	t.Helper()
	if slices.Equal(got, want) {
		t.Logf("%s: %d words, equal to the last number", who, len(got))
		return
	}
	is, shall := compare.Words(got), compare.Words(want)
	for i := range max(len(is), len(shall)) {
		if i >= len(is) || i >= len(shall) || is[i].Unnumbered() != shall[i].Unnumbered() {
			t.Fatalf("%s: from argument %d on %q, and QEMU has %q", who, i, is[min(i, len(is)):],
				shall[min(i, len(shall)):])
		}
	}
	t.Logf("%s: %d words, equal but for numbers of files", who, len(got))
}

// TestRenderPrintsWhatRuns: /proc, the subresource, virt-launcher in the pod, and qemuargs with the facts of the guest
// name the same arguments of a running QEMU, CPU flags included. No secret is among them.
func TestRenderPrintsWhatRuns(t *testing.T) {
	t.Parallel()
	ns, program := namespace(t), tool(t)
	const secret = "hunter2-of-this-guest"
	hold(t, ns, object(t, "Secret", "keys", map[string]string{"key": secret}))
	claims{t, ns}.folder("data", "16Mi", "chown 107:107 .")
	inNepal := func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Clock = &v1.Clock{Timezone: "Asia/Kathmandu"} }
	shown := tiny("shown", bootsKernel, cloudInit("#tiny\n# "+secret+"\n"), onClaim("data"),
		files(cdrom(v1.DiskBusSATA), keys()), inNepal)
	v := create(t, ns, shown)
	path := v.path("virtualmachineinstances", "qemuargs")
	waits := create(t, ns, tiny("waits", bootsKernel, func(s *v1.VirtualMachineInstanceSpec) {
		s.NodeSelector = map[string]string{"e2e": "nowhere"}
	}))
	for name, want := range map[string]string{waits.name: "VMI is not running", "none": "not found"} {
		_, err := output("", program, "host", "--vmi", name, "-n", ns)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("facts of VMI %s: %v, want %q", name, err, want)
		}
	}
	v.await(v1.Running)

	process := v.qemu().Args
	running := process[1:]
	allFlags := func(a string) bool { return strings.HasPrefix(a, "base,") && strings.Count(a, ",") > 50 }
	if !slices.ContainsFunc(running, allFlags) {
		t.Errorf("QEMU's CPU is not the node's own, flag by flag: %q", running)
	}
	document := document[v1.VirtualMachineInstanceQEMUArguments](v, "qemuargs")
	if document.Program != process[0] || document.ClockStart == 0 {
		t.Errorf("the subresource has the program %q and the clock's start %d", document.Program, document.ClockStart)
	}
	sameArguments(t, "the subresource", document.Arguments, running)
	got := kubectl(t, "-n", ns, "exec", v.pod().Name, "--", "virt-launcher", "args")
	if strings.TrimSpace(got) != strings.TrimSpace(qemuargs.QuoteWords(process)) {
		t.Errorf("virt-launcher args prints %s, and QEMU has %q", got, process)
	}
	host, err := output("", program, "host", "--vmi", v.name, "-n", ns)
	if err != nil {
		t.Fatal(err)
	}
	object := kubectl(t, "-n", ns, "get", "vmi", v.name, "-o", "yaml")
	sameArguments(t, "render of the VMI", rendered(t, program, object, host), running)
	now := v.get()
	shown.Namespace, shown.UID = ns, now.UID // the MACs follow from it; the cluster has chosen the UUID
	shown.Spec.Domain.Firmware.UUID = now.Spec.Domain.Firmware.UUID
	manifest, err := json.Marshal(shown)
	if err != nil {
		t.Fatal(err)
	}
	sameArguments(t, "render of the manifest", rendered(t, program, string(manifest), host), running)
	raw := kubectl(t, "get", "--raw", path)
	if strings.Contains(raw, secret) || strings.Contains(raw, "hunter2") {
		t.Errorf("a secret is in %s", raw)
	}
	t.Logf("the answer has %d bytes, the host file %d", len(raw), len(host))
	v.factsOfTheNode(program, string(manifest), running)
	v.shownTo(path)
}

// factsOfTheNode checks what qemuargs prints of the VMI's node: from that follows the CPU of the running QEMU, too.
func (v vmi) factsOfTheNode(program, manifest string, running []string) {
	v.t.Helper()
	node := v.get().Status.NodeName
	host, err := output("", program, "host", "--node", node)
	if err != nil {
		v.t.Fatal(err)
	}
	for _, flag := range []string{"-machine", "-accel", "-cpu", "-smp", "-m"} {
		at, is := slices.Index(running, flag), rendered(v.t, program, manifest, host)
		if i := slices.Index(is, flag); at < 0 || i < 0 || is[i+1] != running[at+1] {
			v.t.Errorf("%s by the facts of the node: %q, and QEMU has %q", flag, is, running)
		}
	}
	lease := get[coordinationv1.Lease](v.t, "-n", "kubevirt", "lease", handlerlease.Name(node))
	v.t.Logf("the node's facts have %d bytes in the Lease", len(lease.Annotations[handlerlease.HostKey]))
	if _, err := output("", program, "host", "--node", "none"); err == nil ||
		!strings.Contains(err.Error(), "virt-handler of node none publishes no facts") {
		v.t.Errorf("facts of a node that is not there: %v", err)
	}
}

// shownTo checks who may read a VMI's arguments.
func (v vmi) shownTo(path string) {
	v.t.Helper()
	for _, role := range []string{"admin", "edit", "view"} {
		kubectl(v.t, "-n", v.namespace, "create", "rolebinding", role, "--clusterrole="+role, "--user=args-"+role)
		may(v.t, v.namespace, "--as=args-"+role, "get", "virtualmachineinstances.kubevirt.io")
		if _, err := output("", "kubectl", "--as=args-"+role, "get", "--raw", path); err != nil {
			v.t.Errorf("%s may not read the arguments: %v", role, err)
		}
	}
	_, err := output("", "kubectl", "--as=args-nobody", "get", "--raw", path)
	if err == nil || !strings.Contains(strings.ToLower(err.Error()), "forbidden") {
		v.t.Errorf("a user without a role: %v", err)
	}
}

// movedPrints checks that the facts of a guest that has come from another node make its arguments, too. Its QEMU has
// -incoming besides.
func (v vmi) movedPrints(program string) {
	v.t.Helper()
	running := document[v1.VirtualMachineInstanceQEMUArguments](v, "qemuargs").Arguments
	machine, incoming := running[:len(running)-2], running[len(running)-2:]
	if !slices.Equal(incoming, []string{"-incoming", "defer"}) {
		v.t.Errorf("the guest has come from another node, and QEMU's last arguments are %q", incoming)
	}
	host, err := output("", program, "host", "--vmi", v.name, "-n", v.namespace)
	if err != nil {
		v.t.Fatal(err)
	}
	object := kubectl(v.t, "-n", v.namespace, "get", "vmi", v.name, "-o", "yaml")
	sameArguments(v.t, "render on "+v.get().Status.NodeName, rendered(v.t, program, object, host), machine)
}
