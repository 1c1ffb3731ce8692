//go:build long

package resolve

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/kubeqemu/kubeqemu/api/instancetype"
	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	"github.com/kubeqemu/kubeqemu/api/instancetype/wellknown"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// wellKnown are virt-controller's instancetypes, and its preferences for arm64, by their names.
type wellKnown struct {
	sizes       map[string]*v1beta1.VirtualMachineInstancetypeSpec
	preferences map[string]*v1beta1.VirtualMachinePreferenceSpec
}

func wellKnownARM64(t *testing.T) wellKnown {
	t.Helper()
	all, err := wellknown.Objects()
	if err != nil {
		t.Fatal(err)
	}
	w := wellKnown{map[string]*v1beta1.VirtualMachineInstancetypeSpec{}, map[string]*v1beta1.VirtualMachinePreferenceSpec{}}
	for _, o := range all {
		if o.Kind == wellknown.Instancetype {
			object := &v1beta1.VirtualMachineInstancetype{}
			err = yaml.Unmarshal(o.Manifest, object)
			w.sizes[o.Name] = &object.Spec
		} else if strings.HasSuffix(o.Name, ".arm64") {
			object := &v1beta1.VirtualMachinePreference{}
			err = yaml.Unmarshal(o.Manifest, object)
			w.preferences[o.Name] = &object.Spec
		}
		if err != nil {
			t.Fatalf("%s: %v", o.Name, err)
		}
	}
	if len(w.sizes) != 65 || len(w.preferences) != 3 {
		t.Fatalf("%d instancetypes, and %d preferences for arm64", len(w.sizes), len(w.preferences))
	}
	return w
}

// machine resolves a VM that names nothing but its architecture, an instancetype, perhaps a preference, a disk and a
// network.
func (w wellKnown) machine(t *testing.T, size, preference string, host Host) *qemuargs.Machine {
	t.Helper()
	vm := &v1.VirtualMachine{}
	if err := yaml.UnmarshalStrict([]byte(`
metadata: {name: vm, namespace: default}
spec:
  runStrategy: Always
  template:
    spec:
      architecture: arm64
      domain: {devices: {disks: [{name: root}], interfaces: [{name: default, masquerade: {}}]}}
      networks: [{name: default, pod: {}}]
      volumes: [{name: root, containerDisk: {image: "image:v1"}}]
`), vm); err != nil {
		t.Fatal(err)
	}
	vm.UID = types.UID("0a1b2c3d-0000-4000-8000-000000000001")
	expanded, errs := instancetype.ExpandChecked(vm, w.sizes[size], w.preferences[preference])
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	vmi := expanded.Draft(false)
	expanded.Identify(vmi, &v1.KubeVirtConfiguration{})
	m, errs := Machine(vmi, host)
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	if m.Arch != qemuargs.ARM64 {
		t.Fatalf("the guest is of %s", m.Arch)
	}
	return m
}

// startable returns the machine as this machine can start it: without KVM, and in the memory that there is.
func startable(m *qemuargs.Machine) {
	const most = 4 << 30 // QEMU reserves it, and touches little
	if m.Accelerator == qemuargs.KVM {
		m.Accelerator, m.CPU.Model, m.GIC = qemuargs.TCG, "max", qemuargs.GICv3
		for i := range m.NICs {
			m.NICs[i].Vhost = false
		}
	}
	if m.HugePageBytes > 0 { // few machines have pages of 1 GiB
		m.HugePageBytes, m.MemoryBytes = 2<<20, 128<<20
	}
	m.MemoryBytes = min(m.MemoryBytes, most)
	share := m.MemoryBytes / int64(max(1, len(m.NUMA)))
	for i := range m.NUMA {
		m.NUMA[i].MemoryBytes = share
	}
}

// TestWellKnownARM64Starts: QEMU takes the machine of each instancetype, and of each preference for arm64, as a node
// with KVM and one without would start it.
func TestWellKnownARM64Starts(t *testing.T) {
	path, err := exec.LookPath("qemu-system-aarch64")
	if err != nil {
		t.Fatalf("%v: install Debian's qemu-system-arm (make test-arm64)", err)
	}
	root, err := filepath.Abs(arm64Root)
	if err != nil {
		t.Fatal(err)
	}
	w := wellKnownARM64(t)
	vm := []struct{ size, preference string }{}
	for size := range w.sizes {
		vm = append(vm, struct{ size, preference string }{size, ""}) // a preference may ask for more than a size has
	}
	for preference := range w.preferences {
		vm = append(vm, struct{ size, preference string }{"u1.medium", preference})
	}
	for _, q := range []program{{path: path}, {path: root + "/usr/bin/qemu-system-aarch64", root: root}} {
		q.ask(t)
		for _, accelerator := range []qemuargs.Accelerator{qemuargs.KVM, qemuargs.TCG} {
			for _, v := range vm {
				t.Run(strings.Join([]string{v.size, v.preference, string(accelerator), q.version}, "/"), func(t *testing.T) {
					host := Host{}
					read(t, filepath.Join("testdata/hosts", hosts[0]+".yaml"), &host)
					host.Accelerator, host.QEMUVersion, host.VhostNet = accelerator, q.version, accelerator == qemuargs.KVM
					host.ContainerDisks = map[string]qemuargs.ImageFacts{"root": {Path: "/root.qcow2", Format: qemuargs.QCOW2, VirtualSize: 1 << 30, Direct: true}}
					host.NICs = map[string]NIC{"default": {MTU: 1500}}
					m := w.machine(t, v.size, v.preference, host)
					if kvm := slices.Contains(qemuargs.Strings(m.Args()), "kvm"); kvm != (accelerator == qemuargs.KVM) {
						t.Errorf("the machine's accelerator is %s", m.Accelerator)
					}
					startable(m)
					if said := startStopped(t, q, m); strings.Contains(said, "deprecated") {
						t.Errorf("QEMU %s warns:\n%s", q.version, said)
					}
				})
			}
		}
	}
}
