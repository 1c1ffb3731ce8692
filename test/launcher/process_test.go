package launcher_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// maxRSS is the budget of an idle launcher: 8 MiB, in KiB.
const maxRSS = 8 << 10

// program builds virt-launcher as it is shipped, which is without -race.
func program(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "virt-launcher")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "../../cmd/virt-launcher")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build virt-launcher: %v\n%s", err, out)
	}
	return path
}

// process starts virt-launcher as a child; its termination message goes to the
// file that is returned.
func process(t *testing.T, v *vm) (*exec.Cmd, string) {
	t.Helper()
	message := filepath.Join(t.TempDir(), "termination-log")
	if err := os.WriteFile(message, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := v.config
	cmd := exec.Command(program(t), "run", "--slot", c.SlotSocket, "--qemu", c.QEMU, "--console", c.ConsoleSocket, "--agent", c.AgentSocket,
		"--images", c.Images, "--overlays", c.Overlays, "--termination-log", message)
	cmd.Stdout, cmd.Stderr = c.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	v.accept()
	return cmd, message
}

func TestProcessMemoryAndEnd(t *testing.T) {
	v := prepareVM(t)
	cmd, message := process(t, v)
	v.start(v.machine("polite"), 20)
	v.await(control.StateRunning)
	v.booted()
	// Idle: nothing is on its way any more.
	time.Sleep(time.Second)
	rss := residentKiB(t, cmd.Process.Pid)
	t.Logf("virt-launcher, idle beside a running guest: %d KiB RSS (budget %d)", rss, maxRSS)
	if rss > maxRSS {
		t.Errorf("virt-launcher has %d KiB RSS, more than its budget of %d", rss, maxRSS)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Errorf("virt-launcher ended with %v, want 0 after an orderly shutdown", err)
	}
	data, err := os.ReadFile(message)
	var said control.Termination
	if err == nil {
		err = control.Decode(data, &said)
	}
	if err != nil || said.Reason != control.ReasonShutdown {
		t.Errorf("termination message %q: %v", data, err)
	}
}

func residentKiB(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(status)
	if match == nil {
		t.Fatalf("no VmRSS in %s", status)
	}
	rss, err := strconv.Atoi(string(match[1]))
	if err != nil {
		t.Fatal(err)
	}
	return rss
}

// TestProcessKilled: QEMU goes with its launcher, also where that is not PID 1.
func TestProcessKilled(t *testing.T) {
	v := prepareVM(t)
	cmd, _ := process(t, v)
	v.start(v.machine("polite"), 20)
	qemu := v.await(control.StateRunning).QEMUPID
	cmd.Process.Kill()
	cmd.Wait()
	deadline := time.Now().Add(patience)
	for !gone(qemu) {
		if time.Now().After(deadline) {
			t.Fatal("QEMU outlived its launcher")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestProcessUsage(t *testing.T) {
	path := program(t)
	for _, tt := range []struct {
		args []string
		code int
	}{
		{[]string{"--help"}, 0}, {[]string{"run", "--help"}, 0}, {[]string{"no-such-command"}, 2}, {[]string{"run", "--no-such-flag"}, 2},
		{[]string{"run", "extra"}, 2}, {[]string{""}, 2}, {[]string{"console", "--console", "/nowhere"}, 1},
		{[]string{"guest-ping", "--socket", "/nowhere"}, 1}, {[]string{"guest-ping", "extra"}, 2}, {[]string{"guest-exec"}, 2}, {[]string{"guest-exec", "--socket", "/nowhere", "--", "/bin/true"}, 1},
	} {
		err := exec.Command(path, tt.args...).Run()
		code := 0
		if exit, ok := err.(*exec.ExitError); ok {
			code = exit.ExitCode()
		}
		if code != tt.code {
			t.Errorf("virt-launcher %q exits with %d, want %d", tt.args, code, tt.code)
		}
	}
}
