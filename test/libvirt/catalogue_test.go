package libvirt

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

const reviewedFile = "testdata/differences.yaml"

// catalogueFolder holds a folder for each feature, which package resolve has goldens of. The
// host is one with QEMU 7.2, which Debian's libvirt drives.
const (
	catalogueFolder = "../../qemuargs/resolve/testdata/machines"
	hostFile        = "../../qemuargs/resolve/testdata/hosts/7.2.yaml"
)

// feature is a VMI of the catalogue, and the Machine that it gets with an accelerator.
type feature struct {
	name    string
	vmi     *v1.VirtualMachineInstance
	machine *qemuargs.Machine
}

// catalogue returns each VMI with each of the accelerators. A machine of amd64 has no KVM for guests of arm64.
func catalogue(t *testing.T, accelerators ...qemuargs.Accelerator) (out []feature) {
	t.Helper()
	folders, err := filepath.Glob(catalogueFolder + "/*")
	if err != nil || len(folders) < 40 {
		t.Fatalf("%d machines in %s: %v", len(folders), catalogueFolder, err)
	}
	for _, folder := range folders {
		if exists(filepath.Join(folder, "7.2.errors")) {
			continue // the host refuses it
		}
		for _, a := range accelerators {
			if f := newFeature(t, folder, a); f.machine.Arch == qemuargs.AMD64 || a == qemuargs.TCG {
				out = append(out, f)
			}
		}
	}
	return out
}

func newFeature(t *testing.T, folder string, accelerator qemuargs.Accelerator) feature {
	t.Helper()
	f, host := feature{name: filepath.Base(folder) + "-" + string(accelerator), vmi: &v1.VirtualMachineInstance{}}, resolve.Host{}
	read(t, filepath.Join(folder, "vmi.yaml"), f.vmi)
	read(t, hostFile, &host)
	if own := filepath.Join(folder, "host.yaml"); exists(own) {
		read(t, own, &host)
	}
	host.Accelerator, host.VhostNet = accelerator, true
	host.FirmwareDir = "/var/lib/ovmf" // where testdata/libvirt.sh can make files
	m, errs := resolve.Machine(f.vmi, host)
	if len(errs) > 0 {
		t.Fatalf("%s: %v", f.name, errs.ToAggregate())
	}
	f.machine = m
	return f
}

// domain is the machine as KubeVirt would describe it to libvirt.
func (f feature) domain(t *testing.T, emulator string) string {
	t.Helper()
	domain, err := Of(f.machine, emulator)
	if err != nil {
		t.Fatalf("%s: %v", f.name, err)
	}
	if !f.hasBootOrder() {
		// KubeVirt then says nothing, and libvirt chooses.
		for i := range domain.Devices.Disks {
			domain.Devices.Disks[i].Boot = nil
		}
	}
	// The Machine does not say any more which of the two modes of host CPUs the VMI has.
	if cpu := f.vmi.Spec.Domain.CPU; cpu != nil && cpu.Model == "host-model" {
		domain.CPU.Mode, domain.CPU.Model = "host-model", ""
	}
	// The Machine has QEMU's names of features.
	vmi := f.vmi.DeepCopy()
	v1.Default(vmi)
	for _, feature := range vmi.Spec.Domain.CPU.Features {
		domain.CPU.Features = append(domain.CPU.Features, CPUFeature{cmp.Or(string(feature.Policy), "require"), feature.Name})
	}
	text, err := domain.XML()
	if err != nil {
		t.Fatalf("%s: %v", f.name, err)
	}
	return string(text)
}

// hasBootOrder says whether the VMI orders its devices.
func (f feature) hasBootOrder() bool {
	devices := f.vmi.Spec.Domain.Devices
	return slices.ContainsFunc(devices.Disks, func(d v1.Disk) bool { return d.BootOrder != nil }) ||
		slices.ContainsFunc(devices.Interfaces, func(i v1.Interface) bool { return i.BootOrder != nil })
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = yaml.UnmarshalStrict(data, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
