package libvirt

import (
	"maps"
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

// catalogue returns the machines by their folders' names.
func catalogue(t *testing.T) map[string]*qemuargs.Machine {
	t.Helper()
	folders, err := filepath.Glob(catalogueFolder + "/*")
	if err != nil || len(folders) < 40 {
		t.Fatalf("%d machines in %s: %v", len(folders), catalogueFolder, err)
	}
	out := map[string]*qemuargs.Machine{}
	for _, folder := range folders {
		out[filepath.Base(folder)] = machine(t, folder)
	}
	return out
}

func machine(t *testing.T, folder string) *qemuargs.Machine {
	t.Helper()
	vmi, host := instance(t, folder), resolve.Host{}
	read(t, hostFile, &host)
	if own := filepath.Join(folder, "host.yaml"); exists(own) {
		read(t, own, &host)
	}
	m, errs := resolve.Machine(vmi, host)
	if len(errs) > 0 {
		t.Fatalf("%s: %v", folder, errs.ToAggregate())
	}
	return m
}

func instance(t *testing.T, folder string) *v1.VirtualMachineInstance {
	t.Helper()
	vmi := &v1.VirtualMachineInstance{}
	read(t, filepath.Join(folder, "vmi.yaml"), vmi)
	return vmi
}

// domainXML is a machine of the catalogue as KubeVirt would describe it to libvirt.
func domainXML(t *testing.T, name string, m *qemuargs.Machine, emulator string) string {
	t.Helper()
	domain, err := Of(m, emulator)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	// The Machine does not say any more which of the two modes of host CPUs the VMI has.
	if cpu := instance(t, filepath.Join(catalogueFolder, name)).Spec.Domain.CPU; cpu != nil && cpu.Model == "host-model" {
		domain.CPU.Mode = "host-model"
	}
	text, err := domain.XML()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return string(text)
}

func names(machines map[string]*qemuargs.Machine) []string {
	return slices.Sorted(maps.Keys(machines))
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
