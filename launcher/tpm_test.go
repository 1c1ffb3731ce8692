package launcher

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/launchertest"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// launchTPM is launch for a machine with a TPM, which the swtpm of the launcher's image is.
func launchTPM(t *testing.T) *vm {
	t.Helper()
	program := launchertest.TPM(t, "../_output/cache/launcher-root")
	v := launch(t, func(c *Config) { c.TPM = program })
	v.tpm()
	return v
}

func (v *vm) tpm() {
	v.request.Machine.TPM = &qemuargs.TPM{Interface: qemuargs.TIS, Folder: v.path("tpm")}
	v.request.Needs = v.request.NeededFeatures()
}

// permanent is the state of the TPM that outlives its emulator. Seeds that no other TPM has are in it.
func (v *vm) permanent() []byte {
	v.Helper()
	data, err := os.ReadFile(filepath.Join(v.request.Machine.TPM.Folder, "tpm2-00.permall"))
	v.must(err)
	return data
}

// emulators are the processes of swtpm of this machine, which have its folder open.
func (v *vm) emulators() (pids []int) {
	v.Helper()
	folders, err := filepath.Glob("/proc/[0-9]*/fd/4")
	v.must(err)
	for _, fd := range folders {
		if at, err := os.Readlink(fd); err == nil && at == v.request.Machine.TPM.Folder {
			pid, err := strconv.Atoi(strings.Split(fd, "/")[2])
			v.must(err)
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestTPM: the TPM's emulator runs beside QEMU, writes nothing outside its folder, and ends with QEMU.
func TestTPM(t *testing.T) {
	t.Parallel()
	v := launchTPM(t)
	v.boot()
	if pids := v.emulators(); len(pids) != 1 {
		t.Fatalf("%d emulators of the TPM: %v", len(pids), pids)
	}
	if len(v.permanent()) == 0 {
		t.Error("the TPM has no state")
	}
	v.must(v.call(control.CommandReset, nil, nil))
	v.stdout.WaitFor("a second banner", func(said []byte) bool { return bytes.Count(said, []byte(banner)) == 2 })
	v.answers("B", "b")
	v.must(v.call(control.CommandShutdown, nil, nil))
	v.expectEnd(control.ReasonShutdown, "")
	if pids := v.emulators(); len(pids) != 0 {
		t.Errorf("the emulator outlives QEMU: %v", pids)
	}
}

// TestTPMLost: a guest whose TPM fails goes on, and its launcher says what has happened. QEMU ends when such a guest reboots.
func TestTPMLost(t *testing.T) {
	t.Parallel()
	v := launchTPM(t)
	v.boot()
	v.must(syscall.Kill(v.emulators()[0], syscall.SIGKILL))
	report := v.untilReport("the TPM to be lost", func(r control.StateReport) bool { return r.TPMLost != "" })
	if report.State != control.StateRunning || report.TPMLost != "the emulator of the TPM was killed by signal 9 (killed)" {
		t.Errorf("the launcher says %+v", report)
	}
	_ = v.call(control.CommandReset, nil, nil) // which QEMU may not live to answer
	if end := v.expectEnd(control.ReasonQEMUExited, "exited with code 1"); !strings.Contains(end.Stderr, "tpm") {
		t.Errorf("QEMU's last words are %q", end.Stderr)
	}
}

// launchBrokenTPM is launch for a machine with a TPM, which is a program of a shell; none, if it is empty.
func launchBrokenTPM(t *testing.T, program string) *vm {
	t.Helper()
	path := filepath.Join(t.TempDir(), "swtpm")
	if program != "" {
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+program+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	v := launch(t, func(c *Config) { c.TPM = path })
	v.tpm()
	return v
}

// TestTPMDoesNotStart: without its TPM no guest starts, and the VM's end says why.
func TestTPMDoesNotStart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		program string // of a shell; empty for none
		folder  func(v *vm, path string) error
		message string
	}{
		"no swtpm":         {message: "Debian's package swtpm has it"},
		"swtpm that fails": {program: "echo no entropy >&2; exit 1", message: "the emulator of the TPM exited with code 1: no entropy"},
		"a folder that is there": {program: "exit 0", folder: func(v *vm, path string) error { return os.Mkdir(path, 0o700) },
			message: "make the folder of the TPM's state"},
		"a link in the folder's place": {program: "exit 0", folder: func(v *vm, path string) error { return os.Symlink(v.dir, path) },
			message: "make the folder of the TPM's state"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := launchBrokenTPM(t, c.program)
			if c.folder != nil {
				v.must(c.folder(v, v.request.Machine.TPM.Folder))
			}
			v.must(v.call(control.CommandStart, v.request, nil))
			v.expectEnd(control.ReasonStartFailed, c.message)
			if pids := v.emulators(); len(pids) != 0 {
				t.Errorf("emulators are left: %v", pids)
			}
		})
	}
}

// TestMigrateTPM: the TPM's state goes with the guest, and the source's emulator ends with the source's QEMU.
func TestMigrateTPM(t *testing.T) {
	t.Parallel()
	m := &move{source: launchTPM(t)}
	m.source.boot()
	sent := m.source.permanent()
	m.aimTPM()
	m.begin(limits)
	m.target.until(control.StateReceived)
	m.source.until(control.StateMoved)
	m.target.must(m.target.call(control.CommandRun, control.RunRequest{}, nil))
	m.target.until(control.StateRunning)
	m.source.must(m.source.call(control.CommandRelease, nil, nil))
	m.source.expectEnd(control.ReasonMigrated, "another pod")
	if pids := m.source.emulators(); len(pids) != 0 {
		t.Errorf("the source's emulator is left: %v", pids)
	}
	if !bytes.Equal(m.target.permanent(), sent) {
		t.Error("the target's TPM has not the source's state")
	}
	m.target.must(m.target.call(control.CommandReset, nil, nil))
	m.target.stdout.Expect(banner)
	if pids := m.target.emulators(); len(pids) != 1 {
		t.Errorf("the target's emulators are %v", pids)
	}
}

// TestMigrateTPMLost: a guest whose TPM has failed does not move, goes on where it is, and its migration says why.
func TestMigrateTPMLost(t *testing.T) {
	t.Parallel()
	m := &move{source: launchTPM(t)}
	m.source.boot()
	m.aimTPM()
	m.source.must(syscall.Kill(m.source.emulators()[0], syscall.SIGKILL))
	m.source.untilReport("the TPM to be lost", func(r control.StateReport) bool { return r.TPMLost != "" })
	m.begin(limits)
	failed := m.source.jobEnded()
	if failed.State != control.StateRunning || failed.Jobs[0].State != control.JobFailed {
		t.Errorf("the source says %+v", failed)
	}
	t.Log(failed.Jobs[0].Error)
}

// aimTPM is aim for a target whose TPM has a folder of its own.
func (m *move) aimTPM() {
	m.source.Helper()
	m.target = launchTPM(m.source.T)
	own := m.target.request.Machine.TPM
	m.target.request.Machine, m.target.request.Incoming = m.source.request.Machine, true
	m.target.request.Machine.TPM = own
	m.target.request.Needs = m.target.request.NeededFeatures()
	m.target.must(m.target.call(control.CommandStart, m.target.request, nil))
	m.target.until(control.StateReceiving)
	m.connect(control.CommandOpenChannel, control.CommandOpenChannel, nil)
}
