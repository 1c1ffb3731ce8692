package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/cmd/qemuargs/local"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
	"github.com/kubeqemu/kubeqemu/launcher/launchertest"
	"github.com/kubeqemu/kubeqemu/launcher/process/processtest"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// fakes is the command itself, as a program of its own.
var fakes = processtest.Fakes{"qemuargs": func() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }}

func TestMain(m *testing.M) { golden.Main(withFakes{m}, "testdata/explain/*.txt") }

// withFakes is the tests, or the command.
type withFakes struct{ *testing.M }

// Run runs the tests with one cache of images, so that the tiny guest's is unpacked once; or it plays a fake.
func (w withFakes) Run() int {
	if _, plays := fakes[filepath.Base(os.Args[0])]; plays {
		return fakes.Run(w.M, 0)
	}
	cache, err := os.MkdirTemp("", "cache")
	if err == nil {
		err = os.Setenv("XDG_CACHE_HOME", cache)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "make a cache of images:", err)
		return 1
	}
	defer os.RemoveAll(cache)
	return fakes.Run(w.M, 0)
}

// tinyImage is the tiny guest's container disk.
const tinyImage = "../../_output/images/tiny-virtio-container-disk.tar"

const sectorVM = `
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: sector}
spec:
  domain:
    memory: {guest: 64Mi}
    devices:
      autoattachPodInterface: false
      disks: [{name: root, disk: {bus: virtio}}]
  volumes: [{name: root, containerDisk: {image: registry.example/sector:v1}}]
  terminationGracePeriodSeconds: 30
`

// started is "qemuargs run" in a process of its own.
type started struct {
	*testing.T
	cmd        *exec.Cmd
	out, notes *testkit.Transcript
	stdin      *os.File
	temporary  string
	ended      chan struct{}
	manifest   string
	terminal   *os.File // its keyboard and screen; nil without a terminal
}

// newStarted prepares the run of a manifest. The guest is that of launchertest, unless the
// arguments say otherwise.
func newStarted(t *testing.T, manifest string, args ...string) *started {
	t.Helper()
	dir, err := os.MkdirTemp("", "run") // another user must get into it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &started{T: t, temporary: filepath.Join(dir, "tmp"), ended: make(chan struct{}), manifest: filepath.Join(dir, "vm.yaml")}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(s.temporary, 0o755), os.WriteFile(s.manifest, []byte(manifest), 0o644)); err != nil {
		t.Fatal(err)
	}
	if manifest == sectorVM {
		launchertest.Guest(t, filepath.Join(dir, "guest.img"))
		args = append(args, "--image", "root="+filepath.Join(dir, "guest.img"))
	}
	s.cmd = exec.Command(fakes.Path(t, "qemuargs"), append([]string{"run", s.manifest, "--accelerator", "tcg"}, args...)...)
	s.cmd.Env = append(os.Environ(), "TMPDIR="+s.temporary, "HOME="+s.temporary)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return s
}

// begin starts the command with pipes.
func (s *started) begin() *started {
	s.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		s.Fatal(err)
	}
	var out, notes *os.File
	out, s.out = testkit.Pipe(s.T, "standard output")
	notes, s.notes = testkit.Pipe(s.T, "standard error")
	s.stdin, s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = w, r, out, notes
	s.Cleanup(func() { w.Close() })
	s.start()
	// The command has its own copies. The test closes its copies, so that the output ends with the last process that writes it.
	for _, f := range []*os.File{r, out, notes} {
		f.Close()
	}
	return s
}

func (s *started) start() {
	s.Helper()
	if err := s.cmd.Start(); err != nil {
		s.Fatal(err)
	}
	go func() { defer close(s.ended); s.cmd.Wait() }()
	s.Cleanup(func() {
		s.cmd.Process.Kill()
		<-s.ended
		if s.Failed() {
			s.Logf("the command: %q", s.cmd.Args)
			s.Logf("QEMU's command line: %s", s.rendered())
			s.Logf("standard output: %q", s.out)
			s.Logf("standard error: %s", s.notes)
		}
	})
}

// rendered is as much of QEMU's command line as is known without the run.
func (s *started) rendered() string {
	return runCommand(s.T, "", "render", "--shell", "--host", "tcg-7.2", s.manifest).out
}

// noted waits until the command has said something on standard error, and returns the pattern's group of it.
func (s *started) noted(what, pattern string) string {
	s.Helper()
	var found [][]byte
	s.notes.WaitFor(what, func(data []byte) bool {
		found = regexp.MustCompile(pattern).FindSubmatch(data)
		return found != nil
	})
	return string(found[1])
}

// shell waits until the tiny guest has said a text, and until its shell has written a prompt. The shell empties the
// terminal's queue when it begins. So keys that are pressed earlier may be lost.
func (s *started) shell(text string) {
	s.Helper()
	s.out.WaitFor(strconv.Quote(text)+" and the shell", func(data []byte) bool {
		return bytes.Contains(data, []byte(text)) && bytes.Contains(data, []byte("tiny# "))
	})
}

func (s *started) press(keys string) {
	s.Helper()
	if _, err := s.stdin.WriteString(keys); err != nil {
		s.Fatal(err)
	}
}

func (s *started) signal(sig syscall.Signal) {
	s.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.Fatal(err)
	}
}

// expectCode waits for the command's end, after which nothing is left of the VM.
func (s *started) expectCode(want int) {
	s.Helper()
	testkit.Receive(s.T, s.ended, "the command's end")
	if got := s.cmd.ProcessState.ExitCode(); got != want {
		s.Errorf("exit code %d (%s), want %d", got, s.cmd.ProcessState, want)
	}
	if left, _ := filepath.Glob(s.temporary + "/qemuargs-run-*"); len(left) > 0 {
		s.Errorf("left behind: %q", left)
	}
}

// qemu is the process of the command's QEMU.
func (s *started) qemu() int {
	s.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", s.cmd.Process.Pid))
	children := strings.Fields(string(text))
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.cmd.Process.Pid))
	for _, task := range tasks {
		text, _ := os.ReadFile(task)
		children = append(children, strings.Fields(string(text))...)
	}
	if len(children) == 0 {
		s.Fatalf("the command has no child: %v", err)
	}
	pid, err := strconv.Atoi(children[0])
	if err != nil {
		s.Fatal(err)
	}
	return pid
}

// TestRunPowersOff: a guest that powers off by itself ends the command with 0. What is piped in
// is typed, and what the guest writes comes out.
func TestRunPowersOff(t *testing.T) {
	t.Parallel()
	s := newStarted(t, sectorVM, "--vnc=127.0.0.1:0").begin()
	s.out.Expect(launchertest.Banner)
	s.press("hello")
	s.out.Expect("hello")
	if err := greets(s.noted("a VNC server", `VNC: (.*)\n`)); err != nil {
		t.Error(err)
	}
	s.press("P")
	s.expectCode(0)
	s.notes.Expect("the guest powered off")
}

// greets reads the greeting of a VNC server.
func greets(address string) error {
	conn, err := net.DialTimeout("tcp", address, testkit.Patience)
	if err != nil {
		return err
	}
	defer conn.Close()
	greeting := make([]byte, len("RFB 003.008\n"))
	err = conn.SetDeadline(time.Now().Add(testkit.Patience))
	if err == nil {
		_, err = io.ReadFull(conn, greeting)
	}
	if err == nil && !strings.HasPrefix(string(greeting), "RFB ") {
		err = fmt.Errorf("the VNC server says %q", greeting)
	}
	return err
}

// TestRunVolume: what the guest writes to a claim is in the user's file afterwards.
func TestRunVolume(t *testing.T) {
	t.Parallel()
	disk := guestFile(t)
	s := newStarted(t, strings.Replace(sectorVM, "containerDisk: {image: registry.example/sector:v1}", "persistentVolumeClaim: {claimName: data}", 1), "--volume", "root="+disk).begin()
	s.out.Expect(launchertest.Banner)
	s.press("W")
	s.out.Expect("w")
	s.press("P")
	s.expectCode(0)
	data, err := os.ReadFile(disk)
	if err != nil || len(data) != 1<<20 || len(strings.Trim(string(data[512:1024]), "\x00")) == 0 {
		t.Errorf("the second sector of %d bytes is empty: %v", len(data), err)
	}
}

// TestRunSignals: the first signal presses the power button, the second ends the VM.
func TestRunSignals(t *testing.T) {
	t.Parallel()
	s := newStarted(t, sectorVM).begin()
	s.out.Expect(launchertest.Banner)
	s.signal(syscall.SIGINT)
	s.notes.Expect("the power button is pressed, and the guest has 30 seconds")
	s.press("still here")
	s.out.Expect("still here") // this guest does not obey the button yet
	s.signal(syscall.SIGINT)
	s.expectCode(local.CodeEnded)

	s = newStarted(t, sectorVM).begin()
	s.out.Expect(launchertest.Banner)
	s.press("B")
	s.out.Expect("b")
	s.signal(syscall.SIGTERM)
	s.expectCode(0)
	s.notes.Expect("the guest powered off after the ACPI power button")

	// A terminal that is closed sends SIGHUP, perhaps twice. The guest keeps its time.
	s = newStarted(t, sectorVM).begin()
	s.out.Expect(launchertest.Banner)
	for range 3 {
		s.signal(syscall.SIGHUP)
		s.press("still here")
		s.out.Expect("still here")
	}
	s.notes.Expect("hangup: the power button is pressed, and the guest has 30 seconds")
	s.signal(syscall.SIGINT)
	s.notes.Expect("interrupt: the VM is ended at once")
	s.expectCode(local.CodeEnded)
}

// TestRunEndsWhereNobodyReads: where nobody reads the console any more, the guest is turned off.
func TestRunEndsWhereNobodyReads(t *testing.T) {
	t.Parallel()
	s := newStarted(t, sectorVM)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	notes, transcript := testkit.Pipe(t, "standard error")
	input, keys, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr, s.stdin, s.notes, s.out = input, w, notes, keys, transcript, transcript
	s.start()
	input.Close()
	w.Close()
	if _, err := io.ReadFull(r, make([]byte, len(launchertest.Banner))); err != nil {
		t.Fatal(err)
	}
	s.press("B")
	if _, err := r.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	r.Close()
	s.press("text") // its echo cannot be written
	s.expectCode(0)
	s.notes.Expect("the console cannot be shown")
}

// TestRunStopAfter: the power button is pressed after the time, and the exit code says so.
func TestRunStopAfter(t *testing.T) {
	t.Parallel()
	s := newStarted(t, sectorVM, "--stop-after", "1s").begin()
	s.out.Expect(launchertest.Banner)
	s.press("B")
	s.expectCode(local.CodeStopAfter)
}

// TestRunQEMUDies: the exit code says that QEMU failed. Where the command itself is killed, no
// QEMU lives on, and the next run removes what is left.
func TestRunQEMUDies(t *testing.T) {
	t.Parallel()
	s := newStarted(t, sectorVM).begin()
	s.out.Expect(launchertest.Banner)
	if err := syscall.Kill(s.qemu(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.expectCode(local.CodeFailed)

	s = newStarted(t, sectorVM).begin()
	s.out.Expect(launchertest.Banner)
	qemu := s.qemu()
	pidfd, err := unix.PidfdOpen(qemu, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	s.signal(syscall.SIGKILL)
	ready := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(ready, int(testkit.Patience/time.Millisecond))
		if errors.Is(err, unix.EINTR) { // the Go runtime's signals
			continue
		}
		if n != 1 {
			t.Errorf("QEMU, process %d, lives on: %v", qemu, err)
		}
		break
	}
	testkit.Receive(t, s.ended, "the command's end")
	next := newStarted(t, sectorVM, "--console=false")
	next.cmd.Env = append(next.cmd.Env, "TMPDIR="+s.temporary)
	next.temporary = s.temporary
	next.begin()
	next.notes.Expect("the guest runs")
	next.signal(syscall.SIGINT)
	next.notes.Expect("the power button is pressed")
	next.signal(syscall.SIGINT)
	testkit.Receive(t, next.ended, "the next run's end")
	if left, _ := filepath.Glob(s.temporary + "/qemuargs-run-*"); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// onTerminal starts the command on a terminal of its own.
func (s *started) onTerminal() *started {
	s.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		s.Fatal(err)
	}
	s.terminal = os.NewFile(uintptr(fd), "ptmx")
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		s.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		s.Fatal(err)
	}
	s.out = testkit.NewTranscript(s.T, "the terminal")
	s.notes, s.stdin = s.out, s.terminal
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = slave, slave, slave
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	copied := make(chan struct{})
	go func() { defer close(copied); io.Copy(s.out, s.terminal) }()
	s.Cleanup(func() { slave.Close(); <-copied; s.terminal.Close() })
	s.start()
	return s
}

// cooked says whether the terminal makes a signal of Ctrl+C.
func (s *started) cooked() bool {
	s.Helper()
	mode, err := unix.IoctlGetTermios(int(s.terminal.Fd()), unix.TCGETS)
	if err != nil {
		s.Fatal(err)
	}
	return mode.Lflag&unix.ISIG != 0
}

// TestRunOnTerminal: in the console each key goes to the guest. Ctrl+] leaves it, and then
// Ctrl+C ends the VM; Ctrl+C does not reach QEMU itself.
func TestRunOnTerminal(t *testing.T) {
	t.Parallel()
	const ctrlC, leave = "\x03", "\x1d"
	s := newStarted(t, sectorVM).onTerminal()
	s.out.Expect("leave it, and turn the VM off, with Ctrl+].")
	s.out.Expect(launchertest.Banner)
	if s.cooked() {
		t.Error("the terminal keeps keys for itself")
	}
	s.press("x" + ctrlC + "y")
	s.out.Expect("x" + ctrlC + "y")
	s.press(leave)
	s.out.Expect("the power button is pressed")
	if !s.cooked() {
		t.Error("the terminal was not given back")
	}
	s.press(ctrlC)
	s.expectCode(local.CodeEnded)
	s.out.Expect("interrupt: the VM is ended at once")

	s = newStarted(t, sectorVM, "--console=false").onTerminal()
	s.out.Expect("the guest runs")
	s.press(ctrlC)
	s.out.Expect("interrupt: the power button is pressed")
	s.press(ctrlC)
	s.expectCode(local.CodeEnded)
}

// TestRunUEFIAndTPM: UEFI starts the guest, which finds a TPM 2.0 in which UEFI has measured what it started, and extends a PCR.
func TestRunUEFIAndTPM(t *testing.T) {
	t.Parallel()
	image, err := filepath.Abs("../../_output/images/tiny-virtio-container-disk.tar")
	if err != nil {
		t.Fatal(err)
	}
	sample, err := os.ReadFile("../../config/samples/vmi-tiny.yaml")
	if err != nil {
		t.Fatal(err)
	}
	manifest := strings.Replace(string(sample), "  domain:\n", "  domain:\n    firmware: {bootloader: {efi: {secureBoot: false}}}\n", 1)
	manifest = strings.Replace(manifest, "    devices:\n", "    devices:\n      tpm: {}\n", 1)
	manifest = strings.Replace(manifest, "128Mi", "256Mi", 1) // UEFI and Linux together need more than 128 MiB
	const root = "../../_output/cache/launcher-root"
	s := newStarted(t, manifest, "--image", "localhost/kubeqemu/tiny-container-disk:dev="+image, "--firmware", layout.Below(root, layout.FirmwareDir),
		"--swtpm", launchertest.TPM(t, root)).begin()
	s.out.Expect("BdsDxe: starting ")
	s.shell("tiny: eth0 10.0.2.2/24")
	s.press("ls /sys/firmware/efi\n")
	s.out.Expect("runtime-map")
	s.press("echo version $(cat /sys/class/tpm/tpm0/tpm_version_major) bios $(cat /sys/class/tpm/tpm0/pcr-sha256/0) end\n")
	s.out.Expect("version 2 bios ")
	s.out.Expect(" end") // the digest has come
	if zero := "version 2 bios " + strings.Repeat("0", 64); strings.Contains(s.out.String(), zero) {
		t.Error("UEFI has measured nothing")
	}
	digest := sha256.Sum256([]byte("something"))
	s.press(launchertest.ExtendPCR(23, digest) + "; echo; echo 23 is $(cat /sys/class/tpm/tpm0/pcr-sha256/23)\n")
	s.out.Expect(fmt.Sprintf("23 is %X", sha256.Sum256(append(make([]byte, 32), digest[:]...))))
	s.signal(syscall.SIGTERM)
	s.out.Expect("tiny: ACPI power button, shutting down")
}

// TestRunWithoutSWTPM: who has no swtpm is told of which package it is.
func TestRunWithoutSWTPM(t *testing.T) {
	t.Parallel()
	manifest := strings.Replace(sectorVM, "    devices:\n", "    devices:\n      tpm: {}\n", 1)
	dir := t.TempDir()
	launchertest.Guest(t, filepath.Join(dir, "guest.img"))
	s := newStarted(t, manifest, "--image", "root="+filepath.Join(dir, "guest.img"), "--swtpm", filepath.Join(dir, "none")).begin()
	s.notes.Expect("install it (Debian: swtpm), or name it with --swtpm")
}

// sharedVM is the tiny guest with a file system.
func sharedVM(t *testing.T) string {
	t.Helper()
	sample, err := os.ReadFile("../../config/samples/vmi-tiny.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(sample), "    devices:\n", "    devices:\n      filesystems: [{name: data, virtiofs: {}}]\n", 1)
	return strings.Replace(text, "  volumes:\n", "  volumes:\n  - {name: data, persistentVolumeClaim: {claimName: data}}\n", 1)
}

// TestRunFileSystem: the guest reads and writes a folder of this machine, and nothing outside it. virtiofsd ends with the guest.
func TestRunFileSystem(t *testing.T) {
	t.Parallel()
	image, err := filepath.Abs(tinyImage)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	shared, link := filepath.Join(dir, "shared"), filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(shared, 0o755), os.Symlink(shared, link), os.WriteFile(filepath.Join(shared, "file"), []byte("from here\n"), 0o644),
		os.WriteFile(filepath.Join(dir, "outside"), []byte("secret\n"), 0o644), os.Symlink("../outside", filepath.Join(shared, "relative")),
		os.Symlink(filepath.Join(dir, "outside"), filepath.Join(shared, "absolute"))); err != nil {
		t.Fatal(err)
	}
	s := newStarted(t, sharedVM(t), "--image", "root="+image, "--virtiofsd", launchertest.VirtioFSD(t, "../../_output/cache/launcher-root"), "--filesystem", "data="+link).begin()
	s.shell("tiny: eth0 10.0.2.2/24")
	s.press("modprobe -q virtiofs; mkdir -p /tmp/data; mount -t virtiofs data /tmp/data && cat /tmp/data/file && echo from the guest >/tmp/data/written; cat /tmp/data/relative /tmp/data/absolute; echo links $?\n")
	s.out.Expect("from here")
	s.out.Expect("links 1")
	if strings.Contains(s.out.String(), "secret") {
		t.Error("the guest has read a file outside the folder")
	}
	if text, err := os.ReadFile(filepath.Join(shared, "written")); err != nil || string(text) != "from the guest\n" {
		t.Errorf("the guest has written %q (%v)", text, err)
	}
	s.signal(syscall.SIGTERM)
	s.out.Expect("tiny: ACPI power button, shutting down")
	testkit.Receive(t, s.ended, "the command's end")
	if left := processesWith(t, shared); len(left) > 0 {
		t.Errorf("these processes have the folder still: %v", left)
	}
}

// processesWith are the processes that have a path in their arguments.
func processesWith(t *testing.T, path string) (found []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), path) {
			found = append(found, file+": "+strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	return found
}

// TestRunFileSystemRefused: the user is told what lacks, and a virtiofsd that fails ends the attempt.
func TestRunFileSystemRefused(t *testing.T) {
	t.Parallel()
	image, err := filepath.Abs(tinyImage)
	if err != nil {
		t.Fatal(err)
	}
	none := filepath.Join(t.TempDir(), "none")
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"no folder named":   {nil, "give a folder with --filesystem data=FOLDER"},
		"unknown name":      {[]string{"--filesystem", "data=/tmp", "--filesystem", "other=/tmp"}, "--filesystem other: the VM has no file system of this name"},
		"folder is missing": {[]string{"--filesystem", "data=" + none, "--virtiofsd", "/bin/false"}, "share the folder of the file system data: "},
		"file":              {[]string{"--filesystem", "data=/etc/passwd", "--virtiofsd", "/bin/false"}, "/etc/passwd is no folder"},
		"no program":        {[]string{"--filesystem", "data=/tmp", "--virtiofsd", none}, "install it (Debian 13: virtiofsd), or name it with --virtiofsd"},
		"program fails":     {[]string{"--filesystem", "data=/tmp", "--virtiofsd", "/bin/false"}, "has ended before a guest used it: exit status 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStarted(t, sharedVM(t), append([]string{"--image", "root=" + image}, c.args...)...).begin()
			s.notes.Expect(c.want)
			testkit.Receive(t, s.ended, "the command's end")
			if code := s.cmd.ProcessState.ExitCode(); code != local.CodeNotStarted {
				t.Errorf("exit code %d, want %d", code, local.CodeNotStarted)
			}
		})
	}
}

// TestRunWithoutOVMF: who has no OVMF is told where it is looked for, and of which package it is.
func TestRunWithoutOVMF(t *testing.T) {
	t.Parallel()
	manifest := strings.Replace(sectorVM, "  domain:\n", "  domain:\n    firmware: {bootloader: {efi: {secureBoot: false}}}\n", 1)
	dir := t.TempDir()
	launchertest.Guest(t, filepath.Join(dir, "guest.img"))
	s := newStarted(t, manifest, "--image", "root="+filepath.Join(dir, "guest.img"), "--firmware", filepath.Join(dir, "none")).begin()
	s.notes.Expect("UEFI needs its firmware's files in " + filepath.Join(dir, "none") + " (Debian's package ovmf")
}

// TestRunAsOrdinaryUser: an ordinary user's guest answers on a forwarded port, and goes down by the power
// button.
func TestRunAsOrdinaryUser(t *testing.T) {
	t.Parallel()
	image, err := filepath.Abs(tinyImage)
	if err == nil {
		_, err = os.Stat(image)
	}
	if err != nil {
		t.Fatalf("find the tiny guest (run config/images/build.sh tiny): %v", err)
	}
	manifest, err := os.ReadFile("../../config/samples/vmi-tiny.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s := newStarted(t, string(manifest), "--forward", "0:7")
	// The repository may be in root's home, which an ordinary user cannot read.
	readable := filepath.Join(s.temporary, "tiny.tar")
	if err := copyFile(image, readable, 0o644); err != nil {
		t.Fatal(err)
	}
	s.cmd.Args = append(s.cmd.Args, "--image", "localhost/kubeqemu/tiny-container-disk:dev="+readable)
	if os.Geteuid() == 0 {
		s.becomeNobody()
	}
	s.begin()
	s.out.Expect("tiny: eth0 10.0.2.2/24 via 10.0.2.1 dns 10.0.2.3 mtu 1500")
	port := s.noted("a port", `tcp port (\d+) of 127\.0\.0\.1 leads to port 7 of the guest`)
	if err := echo(t.Context(), "127.0.0.1:"+port); err != nil {
		t.Error(err)
	}
	s.signal(syscall.SIGTERM)
	s.out.Expect("tiny: ACPI power button, shutting down")
	s.expectCode(0)
}

// echo talks to an echo server, as soon as there is one.
func echo(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, testkit.Patience)
	defer cancel()
	// An attempt before the guest listens may hear nothing, and one of a guest that is emulated on a busy machine takes long.
	for patience := 5 * time.Second; ; patience *= 2 {
		err := echoOnce(ctx, address, patience)
		if err == nil || ctx.Err() != nil {
			return err
		}
	}
}

func echoOnce(ctx context.Context, address string, patience time.Duration) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	const text = "to-and-fro\n"
	got := make([]byte, len(text))
	err = errors.Join(conn.SetDeadline(time.Now().Add(patience)), func() error { _, err := io.WriteString(conn, text); return err }())
	if err == nil {
		_, err = io.ReadFull(conn, got)
	}
	if err == nil && string(got) != text {
		err = fmt.Errorf("the echo is %q", got)
	}
	return err
}

// becomeNobody has the command run as a user without any right.
func (s *started) becomeNobody() {
	s.Helper()
	const nobody = 65534
	program := filepath.Join(filepath.Dir(s.manifest), "qemuargs")
	self, err := os.ReadFile("/proc/self/exe")
	if err = errors.Join(err, os.Chown(s.temporary, nobody, nobody)); err != nil {
		s.Fatal(err)
	}
	testkit.Program(s, program, self)
	s.cmd.Path = program
	s.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	s.cmd.Dir, s.cmd.Env = s.temporary, append(s.cmd.Env, "XDG_CACHE_HOME="+filepath.Join(s.temporary, "cache"))
}

func copyFile(from, to string, mode os.FileMode) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}

// TestRunRefuses: what cannot be run is said before anything is started.
func TestRunRefuses(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	two := sectorVM + "---" + strings.ReplaceAll(sectorVM, "name: sector}", "name: other}")
	for name, c := range map[string]struct {
		manifest, want string
		args           []string
	}{
		"several VMs":    {two, "choose one with --name: VirtualMachineInstance default/sector, VirtualMachineInstance default/other", nil},
		"another's name": {two, `make no VM "third": choose one with --name: Virtual`, []string{"--name", "third"}},
		"no QEMU":        {sectorVM, "find QEMU", []string{"--qemu", "/nonexistent"}},
		"no image":       {sectorVM, "--image registry.example/sector:v1=PATH", []string{"--pull", "Never"}},
		"no such file":   {sectorVM, "open /nonexistent as image", []string{"--image", "root=/nonexistent"}},
		"no VM":          {"", "there is no VirtualMachineInstance", nil},
		"hostDisk":       {strings.ReplaceAll(sectorVM, "containerDisk: {image: registry.example/sector:v1}", "hostDisk: {path: /x, type: Disk}"), "hostDisk: Forbidden", nil},
		"no interface":   {sectorVM, "no network interface", []string{"--forward", "1:1", "--image", "root=" + guestFile(t)}},
	} {
		t.Run(name, func(t *testing.T) {
			if s := runCommand(t, c.manifest, append([]string{"run", "-", "--accelerator", "tcg"}, c.args...)...); s.code != exitInvalid || !strings.Contains(s.err, c.want) {
				t.Errorf("%+v, want an error with %q", s, c.want)
			}
		})
	}
	for _, args := range [][]string{{"--image", "x"}, {"--volume", "=x"}, {"--volume", "a=b", "--volume", "a=c"}, {"--forward", "x"}, {"--accelerator", "hvf"}, {"--pull", "never"}, {"--stop-after", "-1s"}} {
		if s := runCommand(t, sectorVM, append([]string{"run", "-"}, args...)...); s.code != exitUsage || !strings.Contains(s.err, "--help") {
			t.Errorf("%q: %+v, want usage", args, s)
		}
	}
}

func guestFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "guest.img")
	launchertest.Guest(t, path)
	return path
}
