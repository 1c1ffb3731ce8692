package launcher

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// uefi gives the machine the OVMF of the launcher's image, which finds nothing to boot. OVMF writes variables then,
// such as the order of what it has tried.
func (v *vm) uefi(secure bool) {
	v.Helper()
	root, err := filepath.Abs("../_output/cache/launcher-root")
	v.must(err)
	folder := layout.Below(root, layout.FirmwareDir)
	f := &qemuargs.Firmware{Code: filepath.Join(folder, "OVMF_CODE_4M.fd"),
		Variables: qemuargs.Variables{Path: v.path("variables.fd"), Template: filepath.Join(folder, "OVMF_VARS_4M.fd")}}
	if secure {
		f.Code, f.Variables.Template, f.SecureBoot = filepath.Join(folder, "OVMF_CODE_4M.secboot.fd"),
			filepath.Join(folder, "OVMF_VARS_4M.ms.fd"), true
		v.request.Machine.SMM = qemuargs.On
	}
	v.request.Machine.Firmware = f
	v.request.Machine.MemoryBytes = 128 << 20
}

// tried waits until OVMF has found nothing to boot, and has written its variables. It ends in its shell. It ends in a
// menu where secure boot does not allow the shell, and where the shell fails: nobody has taken a text from the serial
// port for so long that OVMF has given up.
func (v *vm) tried() []byte {
	v.Helper()
	v.stdout.ExpectAny("Shell> ", "enter the Boot Manager Menu")
	return v.written()
}

// written waits until OVMF has written variables, and has written no more for a while.
func (v *vm) written() []byte {
	v.Helper()
	f := v.request.Machine.Firmware
	template, err := os.ReadFile(f.Variables.Template)
	v.must(err)
	var last []byte
	deadline := time.After(patience)
	for tick := time.NewTicker(3 * time.Second); ; {
		now, err := os.ReadFile(f.Variables.Path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			v.Fatal(err)
		}
		if bytes.Equal(now, last) && len(now) == qemuargs.VariablesBytes && !bytes.Equal(now, template) {
			tick.Stop()
			return now
		}
		last = now
		select {
		case <-deadline:
			v.Fatalf("OVMF has written no variables to %s", f.Variables.Path)
		case <-tick.C:
		}
	}
}

// TestMigrateUEFI: the variables of a guest with UEFI arrive in the target's own file, where the target's copy of the
// template was, with secure boot and without. The firmware's code comes along: the target's own is none at all, and
// the guest starts with its firmware again.
func TestMigrateUEFI(t *testing.T) {
	t.Parallel()
	for name, secure := range map[string]bool{"plain": false, "secure boot": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &move{source: launch(t)}
			m.source.uefi(secure)
			m.source.must(m.source.call(control.CommandStart, m.source.request, nil))
			m.source.until(control.StateRunning)
			m.source.tried()
			m.aimUEFI()
			m.begin(limits)
			m.target.until(control.StateReceived)
			m.source.until(control.StateMoved)
			sent, err := os.ReadFile(m.source.request.Machine.Firmware.Variables.Path)
			m.source.must(err)
			m.runsAtTarget()
			if got := m.target.written(); !bytes.Equal(got, sent) {
				t.Error("the target's variables are not the source's")
			}
			before := len(m.target.stdout.String())
			m.target.must(m.target.call(control.CommandReset, nil, nil))
			m.target.stdout.Expect("BdsDxe: ")
			if again := m.target.stdout.String()[before:]; !strings.Contains(again, "BdsDxe: ") {
				t.Errorf("after a reset OVMF says %q", again)
			}
		})
	}
}

// newUEFIMove runs a guest that has written its variables, and makes a target wait for it.
func newUEFIMove(t *testing.T) *move {
	t.Helper()
	m := &move{source: launch(t)}
	m.source.uefi(false)
	m.source.must(m.source.call(control.CommandStart, m.source.request, nil))
	m.source.until(control.StateRunning)
	m.source.tried()
	m.aimUEFI()
	return m
}

// TestMigrateUEFIWritten: a guest that writes UEFI variables while its memory is copied stays, because QEMU would
// leave these behind. It can move later.
func TestMigrateUEFIWritten(t *testing.T) {
	t.Parallel()
	m := newUEFIMove(t)
	request := limits
	request.BytesPerSecond = 2 << 20
	job := m.begin(request)
	m.source.untilReport("memory to be sent",
		func(r control.StateReport) bool { return r.Migration != nil && r.Migration.Transferred > 0 })
	// QEMU's writes change the time, too.
	m.source.must(os.Chtimes(m.source.request.Machine.Firmware.Variables.Path, time.Time{}, time.Now()))
	failed := m.source.jobEnded()
	if failed.State != control.StateRunning || failed.Jobs[0].State != control.JobFailed ||
		!strings.Contains(failed.Jobs[0].Error, "UEFI variables") {
		t.Errorf("the source says %+v", failed)
	}
	m.source.must(m.source.call(control.CommandForgetJob, control.JobRequest{ID: job}, nil))
	if end := m.target.termination(); end.Succeeded() {
		t.Errorf("the target ends with %+v", end)
	}
	m.aimUEFI()
	m.begin(limits)
	m.target.until(control.StateReceived)
}

// aimUEFI does what aim does, for a target with variables of its own.
func (m *move) aimUEFI() {
	m.source.Helper()
	m.target = launch(m.source.T)
	machine := m.source.request.Machine
	firmware := *machine.Firmware
	if !firmware.Variables.InState {
		firmware.Variables.Path = m.target.path("variables.fd")
	}
	firmware.Code = m.target.path("code.fd")
	m.target.must(os.WriteFile(firmware.Code, make([]byte, qemuargs.CodeBytes), 0o644))
	machine.Firmware = &firmware
	m.target.request.Machine, m.target.request.Incoming = machine, true
	m.target.must(m.target.call(control.CommandStart, m.target.request, nil))
	m.target.until(control.StateReceiving)
	m.connect(control.CommandOpenChannel, control.CommandOpenChannel, nil)
}

// TestUEFIOfOtherSize: OVMF's files of another size than the machine's are refused, before QEMU starts.
func TestUEFIOfOtherSize(t *testing.T) {
	t.Parallel()
	v := launch(t)
	v.uefi(false)
	v.request.Machine.Firmware.Code = v.path("code.fd")
	v.must(os.WriteFile(v.path("code.fd"), make([]byte, 1966080), 0o644))
	v.must(v.call(control.CommandStart, v.request, nil))
	v.expectEnd(control.ReasonStartFailed, "code.fd has 1966080 bytes, and must have 3653632")
}
