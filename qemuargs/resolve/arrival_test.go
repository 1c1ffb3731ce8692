package resolve

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestGuestHasItsMachineOnAnotherNode: the target's Machine is the source's, but for what the node decides, and what the spec does not
// have is refused.
func TestGuestHasItsMachineOnAnotherNode(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Spec.Domain.CPU = &v1.CPU{Sockets: 2, Cores: 1, Threads: 1}
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: resource.NewQuantity(1<<30, resource.BinarySI)}
	multi := true
	vmi.Spec.Domain.Devices.NetworkInterfaceMultiQueue = &multi
	vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default", Model: "virtio", MacAddress: "02:00:00:00:00:01"}}
	good := func() Origin {
		return Origin{QEMUVersion: "7.2.22", Machine: qemuargs.Machine{Version: qemuargs.Version, Type: "pc-q35-7.2", Accelerator: qemuargs.TCG, MemoryBytes: 1 << 30,
			NICs: []qemuargs.NIC{{Name: "default", Queues: 2, MAC: "02:00:00:00:00:01", Vhost: true}}}}
	}
	host := Host{Accelerator: qemuargs.TCG, QEMUVersion: "7.2.22", VhostNet: true}
	from := good()
	got, err := Arrival(vmi, from, host)
	if err != nil || !reflect.DeepEqual(*got, good().Machine) {
		t.Fatalf("%+v, %v", got, err)
	}
	if !reflect.DeepEqual(from, good()) {
		t.Error("the source's Machine was changed")
	}
	newer := Host{Accelerator: qemuargs.TCG, QEMUVersion: "11.1.0"}
	if got, err = Arrival(vmi, from, newer); err != nil || !got.MonitorObject || got.NICs[0].Vhost || got.Type != "pc-q35-7.2" || !from.Machine.NICs[0].Vhost {
		t.Errorf("on a newer QEMU without vhost-net: %+v, %v", got, err)
	}
	// The Machine of the source names a socket. Arrival names the socket of the target's pod instead.
	byPasst, others := vmi.DeepCopy(), good()
	byPasst.Spec.Domain.Devices.Interfaces[0].PasstBinding = &v1.InterfacePasstBinding{}
	others.Machine.NICs[0] = qemuargs.NIC{Name: "default", Queues: 1, MAC: "02:00:00:00:00:01", Passt: "/run/elsewhere", Vhost: true}
	if got, err = Arrival(byPasst, others, host); err != nil || got.NICs[0].Passt != "/run/kubeqemu-networks/default/passt.sock" || got.NICs[0].Vhost {
		t.Errorf("with passt: %+v, %v", got, err)
	}
	for says, change := range map[string]func(*Origin, *Host){
		"has version 2":              func(o *Origin, _ *Host) { o.Machine.Version++ },
		"runs under tcg":             func(_ *Origin, h *Host) { h.Accelerator = qemuargs.KVM },
		"to an older QEMU":           func(o *Origin, _ *Host) { o.QEMUVersion = "10.0.3" },
		"source's QEMU":              func(o *Origin, _ *Host) { o.QEMUVersion = "x" },
		"target's QEMU":              func(_ *Origin, h *Host) { h.QEMUVersion = "" },
		"more memory than the guest": func(o *Origin, _ *Host) { o.Machine.MemoryBytes++ },
		"of the spec, which has 1Gi": func(o *Origin, _ *Host) {
			o.Machine.MemoryBytes = 512 << 20
			devices := []qemuargs.MemoryDevice{{RequestedBytes: 256 << 20}, {RequestedBytes: 257 << 20}}
			o.Machine.Memory = &qemuargs.MemoryPlaces{Devices: devices}
		},
		"0 interfaces":                       func(o *Origin, _ *Host) { o.Machine.NICs = nil },
		`interface "default"`:                func(o *Origin, _ *Host) { o.Machine.NICs[0].Queues = 200 },
		"has not the interface":              func(o *Origin, _ *Host) { o.Machine.NICs[0].Name = "other" },
		"hardware address 02:00:00:00:00:02": func(o *Origin, _ *Host) { o.Machine.NICs[0].MAC = "02:00:00:00:00:02" },
		"another binding":                    func(o *Origin, _ *Host) { o.Machine.NICs[0].Passt = "/run/kubeqemu-networks/default/passt.sock" },
		"of the spec":                        func(o *Origin, _ *Host) { o.Machine.NICs[0].User = &qemuargs.UserNetwork{} },
	} {
		from, to := good(), host
		change(&from, &to)
		if _, err := Arrival(vmi, from, to); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(says, "older") != errors.Is(err, errOlder) {
			t.Errorf("%v, want %q", err, says)
		}
	}
}

// TestEachMachineArrives: each machine of the catalogue is taken by a node like its own, and is refused with a disk
// that is another one than the spec's, by the disk's name.
func TestEachMachineArrives(t *testing.T) {
	spoil := map[string]func(*qemuargs.Machine){
		"disk %q of the spec": func(m *qemuargs.Machine) { m.Disks = m.Disks[1:] },
		"disk %q, and the spec has not": func(m *qemuargs.Machine) {
			m.Disks = append(m.Disks, m.Disks[0])
			m.Disks[len(m.Disks)-1].Name += "-x"
		},
		"disk %q as another device":  func(m *qemuargs.Machine) { m.Disks[0].Driver = "virtio-blk-pci" },
		"disk %q as another device ": func(m *qemuargs.Machine) { m.Disks[0].Serial += "x" },
		"disk %q twice":              func(m *qemuargs.Machine) { m.Disks = append(m.Disks, m.Disks[0]) },
	}
	for _, dir := range cases(t, machineCases) {
		vmi, host := load(t, dir, "11.1")
		v1.Default(vmi)
		machine, errs := Machine(vmi, host)
		if len(errs) > 0 || len(machine.Disks) == 0 {
			continue
		}
		if strings.Contains(dir, "sriov") {
			continue // its card stays
		}
		from := Origin{Machine: *machine, QEMUVersion: host.QEMUVersion}
		if _, err := Arrival(vmi, from, host); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
		for says, how := range spoil {
			other := from
			other.Machine.Disks = slices.Clone(machine.Disks)
			how(&other.Machine)
			name := machine.Disks[0].Name
			if strings.Contains(says, "has not") {
				name += "-x"
			}
			want := fmt.Sprintf(strings.TrimSpace(says), name)
			if _, err := Arrival(vmi, other, host); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", dir, err, want)
			}
		}
	}
}
