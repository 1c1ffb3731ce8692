package resolve

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestHotpluggedMachineStarts: a machine with hotplugged CPU and memory is started anew as it is, as a migration's
// target does. virtiofsd maps the memory of a machine with file systems whenever the memory was plugged.
func TestHotpluggedMachineStarts(t *testing.T) {
	const own, shared = `"qom-type":"memory-backend-ram","id":"memory-1-ram","size":134217728,"reserve":false`, `"qom-type":"memory-backend-memfd","id":"memory-1-ram","size":134217728,"share":true,"reserve":false`
	for machine, backend := range map[string]string{"minimal": own, "filesystem": shared} {
		t.Run(machine, func(t *testing.T) { placesStart(t, machine, backend) })
	}
}

func placesStart(t *testing.T, machine, backend string) {
	for _, q := range qemus(t) {
		t.Run(q.version, func(t *testing.T) {
			vmi, host := load(t, "testdata/machines/"+machine, hosts[0])
			host.QEMUVersion = q.version
			m, errs := Machine(vmi, host)
			if len(errs) > 0 {
				t.Fatal(errs.ToAggregate())
			}
			m.CPU.MaxSockets, m.CPU.Plugged = 4, []qemuargs.PluggedCPU{{ID: "cpu-1", Socket: 1}}
			spare := slices.IndexFunc(m.RootPorts, func(p qemuargs.RootPort) bool { return p.Spare })
			m.Memory = &qemuargs.MemoryPlaces{MaxBytes: 4 << 30, Devices: []qemuargs.MemoryDevice{{
				ID: "memory-1", Bytes: 128 << 20, BlockBytes: 2 << 20, RequestedBytes: 64 << 20, Address: 4 << 30,
				PCI: qemuargs.PCIAddress{Bus: m.RootPorts[spare].ID}}}}
			if said := startStopped(t, q, m); said != "" {
				t.Errorf("QEMU says %s", said)
			}
			line := strings.Join(qemuargs.Strings(m.Args()), " ")
			for _, want := range []string{"-smp 1,maxcpus=4,sockets=4,cores=1,threads=1", "-m size=128M,maxmem=4096M", backend, `"driver":"max-x86_64-cpu"`, `"memaddr":4294967296`} {
				if !strings.Contains(line, want) {
					t.Errorf("no %s in %s", want, line)
				}
			}
		})
	}
}

func TestMachineType(t *testing.T) {
	for _, q := range qemus(t) {
		if got, _, err := machineType("q35", boardNames[v1.AMD64], q.version); err != nil || !v1.KnownMachineType(got, v1.AMD64) {
			t.Errorf("the type of QEMU %s, %q, is not among those that are known: %v", q.version, got, err)
		}
	}
	tests := []struct{ wanted, qemu, got, problem string }{
		{"q35", "7.2.22", "pc-q35-7.2", ""},
		{"q35", "11.1.3", "pc-q35-11.1", ""},
		{"pc-q35-7.2", "11.1.3", "pc-q35-7.2", ""},
		{"pc-q35-5.2", "11.1.3", "pc-q35-5.2", ""},
		{"pc-q35-10.2", "11.1.3", "pc-q35-10.2", ""},
		{"pc-q35-11.1", "11.1.3", "pc-q35-11.1", ""},
		{"pc-q35-5.1", "11.1.3", "pc-q35-5.2", ""},
		{"pc-q35-5.1", "7.2.22", "pc-q35-5.2", ""}, // a later QEMU would not run it
		{"pc-q35-rhel9.6.0", "11.1.3", "pc-q35-9.1", ""},
		{"pc-q35-rhel9.6.0", "7.2.22", "", "newer"},
		{"pc-q35-0.0", "11.1.3", "", "is not a machine type of QEMU"},
		{"pc-q35-11.2", "11.1.3", "", "newer"},
		{"pc-q35-8.0", "7.2.22", "", "newer"},
		{"pc-q35-9.7", "11.1.3", "", "is not a machine type of QEMU"},
		{"pc-q35-99999999999999999999.1", "11.1.3", "", "no QEMU release"},
		{"q35", "", "", "no QEMU release"},
	}
	for _, tt := range tests {
		got, _, err := machineType(tt.wanted, boardNames[v1.AMD64], tt.qemu)
		if got != tt.got || (err == nil) != (tt.problem == "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
			t.Errorf("%s with QEMU %s: %q, %v; want %q, %q", tt.wanted, tt.qemu, got, err, tt.got, tt.problem)
		}
	}
}

// TestWhatQEMUWouldChooseIsStated: what QEMU would choose by its CPUs, its host or its version stands
// on the command line, of every golden and with every QEMU.
func TestWhatQEMUWouldChooseIsStated(t *testing.T) {
	stated := map[string][]string{
		"virtio-blk-pci":  {`"num-queues":`, `"queue-size":256`},
		"virtio-scsi-pci": {`"num_queues":`, `"virtqueue_size":256`},
		"virtio-net-pci":  {`"rx_queue_size":256`, `"tx_queue_size":256`},
	}
	seen := map[string]int{}
	for _, dir := range cases(t, machineCases) {
		for _, version := range []string{"7.2.22", "8.2.0", "10.1.0", "11.1.3"} {
			vmi, host := load(t, dir, hosts[0])
			host.QEMUVersion = version
			m, errs := Machine(vmi, host)
			if len(errs) > 0 {
				continue
			}
			for _, word := range qemuargs.Strings(m.Args()) {
				for driver, properties := range stated {
					if !strings.Contains(word, `"driver":"`+driver) {
						continue
					}
					seen[driver]++
					for _, p := range properties {
						if !strings.Contains(word, p) {
							t.Errorf("%s, QEMU %s: no %s in %s", dir, version, p, word)
						}
					}
				}
				if strings.Contains(word, `"driver":"virtio-net-pci`) {
					board, _ := release(strings.TrimPrefix(strings.TrimPrefix(m.Type, typePrefix), "virt-"))
					uso, tunnels := strings.Contains(word, `"host_uso":false,"guest_uso4":false,"guest_uso6":false`), strings.Contains(word, `"guest_tunnel":false`)
					if uso == board.before(version82) || tunnels == board.before(version102) {
						t.Errorf("%s: type %s has USO stated: %t, tunnels: %t", dir, m.Type, uso, tunnels)
					}
				}
			}
		}
	}
	for driver := range stated {
		if seen[driver] == 0 {
			t.Errorf("no golden has a %s", driver)
		}
	}
}

// TestSpareRootPortsAndNoSharedPlace: hotplug has its spare ports whatever sits on pcie.0, and two
// devices never share a place.
func TestSpareRootPortsAndNoSharedPlace(t *testing.T) {
	for _, dir := range cases(t, machineCases) {
		m, errs := Machine(load(t, dir, hosts[0]))
		if len(errs) > 0 {
			continue
		}
		want, spare := 3, 0
		if m.MemoryBytes > 2<<30 {
			want = 6
		}
		places := map[string]string{}
		for _, p := range m.RootPorts {
			if p.Spare {
				spare++
				places[p.ID+" 0x0"] = "kept free"
			}
		}
		// Before a port that a pciAddress names there may be more.
		if pinned := strings.Contains(filepath.Base(dir), "pci-address") || strings.HasSuffix(dir, "sriov-place"); spare < want || spare > want && !pinned {
			t.Errorf("%s: %d spare ports, want %d", dir, spare, want)
		}
		for _, word := range qemuargs.Strings(m.Args()) {
			var bus, addr string
			if _, rest, ok := strings.Cut(word, `"bus":"`); ok {
				bus, _, _ = strings.Cut(rest, `"`)
			}
			if _, rest, ok := strings.Cut(word, `"addr":"`); ok {
				addr, _, _ = strings.Cut(rest, `"`)
			}
			if addr == "" {
				continue
			}
			place := fmt.Sprint(bus, " ", addr)
			if other, taken := places[place]; taken {
				t.Errorf("%s: %s is at %s, which is %s", dir, word, place, other)
			}
			places[place] = "taken by " + word
		}
	}
}
