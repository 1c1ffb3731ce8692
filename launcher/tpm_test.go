package launcher

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/launchertest"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// launchTPM does what launch does, for a machine with a TPM. The TPM is the swtpm of the launcher's image.
func launchTPM(t *testing.T) *vm {
	t.Helper()
	program := launchertest.TPM(t, "../_output/cache/launcher-root")
	v := launch(t, func(c *Config) { c.TPM = program })
	v.tpm()
	return v
}

func (v *vm) tpm() {
	v.request.Machine.TPM = &qemuargs.TPM{Interface: qemuargs.TIS, Folder: v.path("tpm")}
}

// permanent returns the state of the TPM that outlives its emulator. Seeds that no other TPM has are in it.
func (v *vm) permanent() []byte {
	v.Helper()
	data, err := os.ReadFile(filepath.Join(v.request.Machine.TPM.Folder, "tpm2-00.permall"))
	v.must(err)
	return data
}

// emulators returns the processes of swtpm of this machine, which have its folder open.
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

// TestTPMEmulatorRunsBesideQEMU: the TPM's emulator runs beside QEMU, writes nothing outside its folder, and ends
// with QEMU.
func TestTPMEmulatorRunsBesideQEMU(t *testing.T) {
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

// TestTPMLost: a guest whose TPM fails goes on, and its launcher says what has happened. QEMU ends when such a guest
// reboots.
func TestTPMLost(t *testing.T) {
	t.Parallel()
	v := launchTPM(t)
	v.boot()
	v.must(syscall.Kill(v.emulators()[0], syscall.SIGKILL))
	report := v.untilReport("the TPM to be lost", func(r control.StateReport) bool { return r.TPMLost != "" })
	if report.State != control.StateRunning ||
		report.TPMLost != "the emulator of the TPM was killed by signal 9 (killed)" {
		t.Errorf("the launcher says %+v", report)
	}
	_ = v.call(control.CommandReset, nil, nil) // which QEMU may not live to answer
	if end := v.expectEnd(control.ReasonQEMUExited, "exited with code 1"); !strings.Contains(end.Stderr, "tpm") {
		t.Errorf("QEMU's last words are %q", end.Stderr)
	}
}

// launchBrokenTPM does what launch does, for a machine with a TPM that is a program of a shell. If program is empty,
// there is no such program.
func launchBrokenTPM(t *testing.T, program string) *vm {
	t.Helper()
	path := filepath.Join(t.TempDir(), "swtpm")
	if program != "" {
		testkit.Program(t, path, []byte("#!/bin/sh\n"+program+"\n"))
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
		"no swtpm": {message: "Debian's package swtpm has it"},
		"swtpm that fails": {program: "echo no entropy >&2; exit 1",
			message: "the emulator of the TPM exited with code 1: no entropy"},
		"a folder that is there": {program: "exit 0", folder: func(v *vm, path string) error { return os.Mkdir(path, 0o700) },
			message: "make the folder of the TPM's state"},
		"a link in the folder's place": {program: "exit 0",
			folder:  func(v *vm, path string) error { return os.Symlink(v.dir, path) },
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

// TestTPMWithoutQEMU: where QEMU cannot be started, the VM's end says why, and its TPM's emulator, which has done
// nothing wrong, ends by itself.
func TestTPMWithoutQEMU(t *testing.T) {
	t.Parallel()
	program, version := launchertest.TPM(t, "../_output/cache/launcher-root"), filepath.Join(t.TempDir(), "qemu-version")
	if err := os.WriteFile(version, []byte("7.2.22\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	v := launch(t, func(c *Config) { c.TPM, c.QEMU, c.QEMUVersion = program, version+".none", version })
	v.tpm()
	v.must(v.call(control.CommandStart, v.request, nil))
	if end := v.expectEnd(control.ReasonStartFailed, "start QEMU: "); strings.Contains(end.Message, "emulator") {
		t.Errorf("the end is %+v", end)
	}
	if pids := v.emulators(); len(pids) != 0 {
		t.Errorf("the emulator is left: %v", pids)
	}
}

// TestReceiveBrokenTPM: the report of a target whose TPM does not start has the emulator's last words, because nobody
// reads the end of a target's pod.
func TestReceiveBrokenTPM(t *testing.T) {
	t.Parallel()
	v := launchBrokenTPM(t, "echo no entropy >&2; exit 1")
	v.request.Incoming = true
	v.must(v.call(control.CommandStart, v.request, nil))
	v.expectBrokenTPM()
}

// TestReceiveBrokenTPMSlowly: what a target says does not depend on how long QEMU takes to miss its TPM.
func TestReceiveBrokenTPMSlowly(t *testing.T) {
	t.Parallel()
	v := prepareVM(t)
	v.TPM, v.QEMU = v.path("swtpm"), v.path("slow")
	testkit.Program(t, v.TPM, []byte("#!/bin/sh\necho no entropy >&2; exit 1\n"))
	testkit.Program(t, v.QEMU,
		fmt.Appendf(nil, "#!/bin/sh\n[ \"$1\" = -version ] || until [ -e %s ]; do sleep 0.1; done\nexec %s \"$@\"\n",
			v.path("now"), launchertest.Program(t, "qemu-system-x86_64")))
	v.run()
	v.conn = launchertest.Accept(t, v.handler)
	v.tpm()
	v.request.Incoming = true
	v.must(v.call(control.CommandStart, v.request, nil))
	v.untilReport("the TPM to be lost", func(r control.StateReport) bool { return r.TPMLost != "" })
	v.must(os.WriteFile(v.path("now"), nil, 0o600))
	v.expectBrokenTPM()
}

// expectBrokenTPM waits for the end of a target whose TPM had no entropy. The target says so once.
func (v *vm) expectBrokenTPM() {
	v.Helper()
	report := v.until(control.StateExited)
	if want := "the emulator of the TPM exited with code 1: no entropy"; strings.Count(report.Failure, want) != 1 ||
		strings.HasSuffix(report.Failure, "\n") {
		v.Errorf("the report says %q", report.Failure)
	}
	if end := v.expectEnd(control.ReasonStartFailed, "no entropy"); strings.Count(end.Message, "no entropy") != 1 ||
		strings.Contains(end.Message, "\n") {
		v.Errorf("the end is %q", end.Message)
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
	m.runsAtTarget()
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
	m.target.must(m.target.call(control.CommandReceive, nil, nil))
	if err := m.source.call(control.CommandMigrate, limits, nil); err == nil ||
		!strings.Contains(err.Error(), "the emulator of the TPM was killed by signal 9") {
		t.Errorf("the source says %v", err)
	}
	if s := m.source.state(); s.State != control.StateRunning || len(s.Jobs) > 0 {
		t.Errorf("the source is %+v", s)
	}
}

// TestReceivedTPMLost: a guest that has come is not let run by a target whose TPM has failed, and goes on at its
// source, whose TPM is whole.
func TestReceivedTPMLost(t *testing.T) {
	t.Parallel()
	m := &move{source: launchTPM(t)}
	m.source.boot()
	m.aimTPM()
	m.begin(limits)
	m.target.until(control.StateReceived)
	m.source.until(control.StateMoved)
	m.target.must(syscall.Kill(m.target.emulators()[0], syscall.SIGKILL))
	m.target.log.Expect("the TPM's emulator has ended")
	var reply control.RunReply
	m.target.must(m.target.call(control.CommandRun, control.RunRequest{}, &reply))
	if reply.Refused != "the emulator of the TPM was killed by signal 9 (killed)" {
		t.Errorf("the target says %+v", reply)
	}
	if end := m.target.termination(); end.Reason != control.ReasonStartFailed {
		t.Errorf("the target ends with %+v", end)
	}
	m.source.must(m.source.call(control.CommandTakeBack, nil, nil))
	m.source.until(control.StateRunning)
	m.source.must(m.source.call(control.CommandReset, nil, nil))
	m.source.stdout.Expect(banner)
}

// aimTPM does what aim does, for a target whose TPM has a folder of its own.
func (m *move) aimTPM() {
	m.source.Helper()
	m.target = launchTPM(m.source.T)
	own := m.target.request.Machine.TPM
	m.target.request.Machine, m.target.request.Incoming = m.source.request.Machine, true
	m.target.request.Machine.TPM = own
	m.target.must(m.target.call(control.CommandStart, m.target.request, nil))
	m.target.until(control.StateReceiving)
	m.connect(control.CommandOpenChannel, control.CommandOpenChannel, nil)
}

// keepsTPM makes a machine keep its TPM's state in a volume with the guest's state.
func (v *vm) keepsTPM(volume string) {
	v.request.Machine.TPM = &qemuargs.TPM{Interface: qemuargs.CRB, Folder: filepath.Join(volume, "tpm"), InState: true}
}

// kept returns the state in the volume's folder of a number.
func kept(t *testing.T, volume, number string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(volume, "tpm", number, "tpm2-00.permall"))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// sameTPM reports whether two states are of one TPM. A start changes a few counters. Another TPM has other seeds, of
// hundreds of bytes.
func sameTPM(a, b []byte) bool {
	if len(a) == 0 || len(a) != len(b) {
		return false
	}
	different := 0
	for i := range a {
		if a[i] != b[i] {
			different++
		}
	}
	return different < 100
}

// TestTPMStateOutlivesItsGuest: a guest finds the TPM of the guest before it. A state that is broken or none keeps
// the guest from starting, and the VM's end says so.
func TestTPMStateOutlivesItsGuest(t *testing.T) {
	t.Parallel()
	volume := t.TempDir()
	next := func() *vm {
		v := launchTPM(t)
		v.keepsTPM(volume)
		return v
	}
	first := next()
	first.boot()
	seeds := kept(t, volume, "1")
	first.stop()
	second := next()
	second.boot()
	if !sameTPM(kept(t, volume, "1"), seeds) {
		t.Error("the second guest has another TPM")
	}
	second.stop()
	other := launchTPM(t)
	other.boot()
	if sameTPM(other.permanent(), seeds) {
		t.Fatal("two TPMs cannot be told apart: nothing is tested")
	}
	const broken = "before the guest ran"
	path := filepath.Join(volume, "tpm/1/tpm2-00.permall")
	for name, c := range map[string]struct {
		put     func() error
		message string
	}{
		"cut short": {func() error { return os.Truncate(path, int64(len(seeds)/2)) }, "it is cut short"},
		"empty":     {func() error { return os.Truncate(path, 0) }, "it has 0 bytes"},
		"garbage": {func() error {
			return os.WriteFile(path, append(bytes.Clone(seeds[:16]), make([]byte, len(seeds)-16)...), 0o600)
		}, broken},
		"a GiB": {func() error { return os.Truncate(path, 1<<30) }, "/tpm/1/tpm2-00.permall has 1073741824 bytes"},
	} {
		first.must(os.WriteFile(path, seeds, 0o600))
		first.must(c.put())
		v := next()
		v.must(v.call(control.CommandStart, v.request, nil))
		end := v.expectEnd(control.ReasonStartFailed, c.message)
		if c.message == broken && !strings.Contains(end.Stderr, "tpm-emulator: ") {
			t.Errorf("%s: QEMU's last words are %q", name, end.Stderr)
		}
	}
}

// TestMigrateTPMOnASharedVolume: source and target have the same volume. The TPM goes on in a folder of its own,
// which the VM's next start finds. A target that fails leaves nothing.
func TestMigrateTPMOnASharedVolume(t *testing.T) {
	t.Parallel()
	volume := t.TempDir()
	m := &move{source: launchTPM(t)}
	m.source.keepsTPM(volume)
	m.source.boot()
	sent := kept(t, volume, "1")
	aim := func() {
		m.target = launchTPM(t)
		m.target.request.Machine, m.target.request.Incoming = m.source.request.Machine, true
		m.target.must(m.target.call(control.CommandStart, m.target.request, nil))
		m.target.until(control.StateReceiving)
	}
	aim()
	m.target.stop()
	folders, err := os.ReadDir(filepath.Join(volume, "tpm"))
	if err != nil || len(folders) != 1 {
		t.Errorf("a target that received nothing leaves %v (%v)", folders, err)
	}
	aim()
	m.connect(control.CommandOpenChannel, control.CommandOpenChannel, nil)
	m.begin(limits)
	m.target.until(control.StateReceived)
	m.source.until(control.StateMoved)
	if folders, err = os.ReadDir(filepath.Join(volume, "tpm")); err != nil || len(folders) != 2 ||
		folders[1].Name() == "2" {
		t.Errorf("before the guest runs the volume has %v (%v)", folders, err)
	}
	m.runsAtTarget()
	m.target.must(m.target.call(control.CommandReset, nil, nil))
	m.target.stdout.Expect(banner)
	if !sameTPM(kept(t, volume, "2"), sent) {
		t.Error("the target's TPM has not the source's state")
	}
	m.target.stop()
	again := launchTPM(t)
	again.keepsTPM(volume)
	again.boot()
	if !sameTPM(kept(t, volume, "2"), sent) {
		t.Error("the next start has another TPM")
	}
}
