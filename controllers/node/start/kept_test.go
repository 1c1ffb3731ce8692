package start

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
	"github.com/kubeqemu/kubeqemu/internal/jsonsize"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// TestLauncherKeepsTheHost: the launcher gets the host with the start. From that host the very machine follows. A
// launcher that does not know of hosts starts its guest without.
func TestLauncherKeepsTheHost(t *testing.T) {
	var seen *v1.VirtualMachineInstance
	note := func(vmi *v1.VirtualMachineInstance) { seen = vmi }
	for name, c := range map[string]struct {
		commands control.Commands
		keeps    bool
	}{"this version": {control.KnownCommands(), true}, "without hosts": {without(control.CommandStart, "host"), false}} {
		t.Run(name, func(t *testing.T) {
			last, _ := startDemanding(t, c.commands, note)
			var request control.StartRequest
			if err := control.Decode(last.Data, &request); err != nil || last.Execute != control.CommandStart {
				t.Fatalf("%s: %v", last.Execute, err)
			}
			if (request.Host != "") != c.keeps {
				t.Fatalf("the host is %q", request.Host)
			}
			if !c.keeps {
				return
			}
			var host resolve.Host
			if err := json.Unmarshal([]byte(request.Host), &host); err != nil {
				t.Fatal(err)
			}
			machine, errs := resolve.Machine(seen, host)
			if len(errs) > 0 {
				t.Fatal(errs.ToAggregate())
			}
			is, shall := qemuargs.Strings(machine.Args()), qemuargs.Strings(request.Machine.Args())
			if !slices.Equal(is, shall) {
				t.Errorf("the host makes %q, and the launcher has %q", is, shall)
			}
		})
	}
}

// TestHostThatIsTooLongIsLeftOut: the guest starts without.
func TestHostThatIsTooLongIsLeftOut(t *testing.T) {
	host := resolve.Host{FirmwareDir: strings.Repeat("x", control.MaxHostBytes)}
	if text, err := Kept(host, control.KnownCommands()); text != "" || err != nil {
		t.Errorf("%d bytes are kept: %v", len(text), err)
	}
}

// TestArgumentsOfManyDisksFitIntoAnAnswer: what a launcher answers of a guest with 200 disks is within all bounds on
// its way to the user.
func TestArgumentsOfManyDisksFitIntoAnAnswer(t *testing.T) {
	vmi := nodetest.Demanding()
	vmi.Spec.Domain.Clock = nil
	host := resolve.Host{Accelerator: qemuargs.KVM, QEMUVersion: "11.1.3", Claims: map[string]qemuargs.VolumeFacts{},
		NICs: map[string]resolve.NIC{"default": {MTU: 1450, MAC: "02:00:00:00:00:01"}}}
	for i := range 300 {
		host.HostModel = append(host.HostModel, fmt.Sprintf("some-feature-%d=on", i))
	}
	for i := range 200 {
		name := fmt.Sprintf("disk-of-a-database-%d", i)
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: name,
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}})
		vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks,
			v1.Disk{Name: name, Disk: &v1.DiskTarget{Bus: v1.DiskBusSCSI}})
		host.Claims[name] = qemuargs.VolumeFacts{DiskSize: 1 << 40, Size: 1 << 40, Taken: 1 << 39, Free: 1 << 41,
			Direct: true, Blocks: &qemuargs.BlockSizes{Logical: 4096, Physical: 4096}}
	}
	v1.Default(vmi)
	machine, errs := resolve.Machine(vmi, host)
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	text, err := Kept(host, control.KnownCommands())
	if err != nil || text == "" {
		t.Fatalf("the host is not kept: %v", err)
	}
	answer, err := json.Marshal(control.Arguments{Program: "qemu", Arguments: qemuargs.Strings(machine.Args()),
		Host: json.RawMessage(text)})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("host %d bytes, answer %d bytes, %d values", len(text), len(answer), jsonsize.Values(answer))
	if err := handlerapi.CheckDocument(answer); err != nil || len(answer) > control.MaxArgumentsBytes {
		t.Errorf("%d bytes: %v", len(answer), err)
	}
}
