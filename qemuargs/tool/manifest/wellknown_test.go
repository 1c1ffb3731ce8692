package manifest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestWellKnownInstancetypesMakeMachines: each instancetype and each preference that virt-controller creates makes a
// machine with the CPUs, the memory and the devices that its name promises.
func TestWellKnownInstancetypesMakeMachines(t *testing.T) {
	text, err := os.ReadFile("../../../config/instancetypes/objects.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := Read("objects.yaml", strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	vms := &strings.Builder{}
	for _, o := range objects {
		size, preference := "u1.2xlarge", o.Name
		if o.Kind == "VirtualMachineClusterInstancetype" {
			size, preference = o.Name, "linux"
		}
		fmt.Fprintf(vms, `---
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: %s}
spec:
  runStrategy: Always
  instancetype: {name: %s}
  preference: {name: %s}
  template:
    spec:
      domain: {devices: {disks: [{name: root}], interfaces: [{name: default, masquerade: {}}]}}
      networks: [{name: default, pod: {}}]
      volumes: [{name: root, containerDisk: {image: "image:v1"}}]
`, o.Name, size, preference)
	}
	machines, err := Read("vms.yaml", strings.NewReader(vms.String()))
	if err != nil {
		t.Fatal(err)
	}
	instances, err := append(machines, objects...).Instances()
	if err != nil || len(instances) != len(objects) || len(objects) < 25 {
		t.Fatalf("%d instances of %d objects: %v", len(instances), len(objects), err)
	}
	host, err := ParseHost(DefaultHost)
	if err != nil {
		t.Fatal(err)
	}
	args := map[string]string{}
	for _, i := range instances {
		machine, err := i.Machine(host)
		if err != nil {
			t.Errorf("%s: %v", i.Name, err)
			continue
		}
		args[i.Name] = strings.Join(qemuargs.Strings(machine.Args()), " ")
	}
	for name, want := range map[string][]string{
		"u1.nano":        {"512"},
		"m1.large1gi":    {`"hugetlbsize":1073741824`},
		"rhel.8.dpdk":    {"cores=4", "threads=2"},
		"legacy":         {"e1000", "ide-hd"},
		"alpine":         {"virtio-rng", "virtio-blk", "virtio-net"},
		"rhel.8.desktop": {"virtio-tablet"},
		"debian":         {"pflash0=pflash0", "/OVMF_CODE_4M.fd"},
		"windows.7":      {"e1000e", "ide-hd", "hpet=off"},
		"fedora":         {"smm=on", "/OVMF_CODE_4M.secboot.fd"},
	} {
		for _, word := range want {
			if !strings.Contains(args[name], word) {
				t.Errorf("%s has no %s: %s", name, word, args[name])
			}
		}
	}
}
