package kvmcheck

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// TestMain lets the test binary be the child.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 {
		os.Exit(m.Run())
	}
	switch os.Args[1] {
	case Argument:
		os.Exit(Main(os.Stdout))
	case "loops":
		loops, _ := strconv.ParseUint(os.Args[2], 10, 64)
		result, err := timed(loops, time.Minute)
		fmt.Println(result, err)
		if err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	case "hang":
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
		if err := os.WriteFile(os.Args[2], []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
			os.Exit(3)
		}
		for {
			time.Sleep(time.Hour)
		}
	case "say":
		fmt.Print(os.Args[2])
		code, _ := strconv.Atoi(os.Args[3])
		os.Exit(code)
	case "die":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	os.Exit(m.Run())
}

func TestLayout(t *testing.T) {
	for name, sizes := range map[string][2]uintptr{
		"kvm_userspace_memory_region": {unsafe.Sizeof(memoryRegion{}), 32},
		"kvm_regs":                    {unsafe.Sizeof(registers{}), 144},
		"kvm_segment":                 {unsafe.Sizeof(segment{}), 24},
		"kvm_sregs":                   {unsafe.Sizeof(specialRegisters{}), 312},
		"kvm_cpuid2":                  {unsafe.Offsetof(supportedCPUID{}.entry), 8},
	} {
		if sizes[0] != sizes[1] {
			t.Errorf("struct %s has %d bytes, want %d", name, sizes[0], sizes[1])
		}
	}
}

// TestThisMachine really checks. Whatever comes out, it comes out in time, with
// a reason, and leaves no child.
func TestThisMachine(t *testing.T) {
	start := time.Now()
	result := Checker{}.Run(context.Background())
	elapsed := time.Since(start)
	t.Logf("KVM works here: %v (%s), known after %v", result.Works, result.Reason, elapsed)
	if result.Reason == "" {
		t.Error("no reason")
	}
	if limit := DefaultTimeout + killLimit + time.Second; elapsed > limit {
		t.Errorf("took %v, more than %v", elapsed, limit)
	}
	if _, err := os.Stat(device); err != nil && (result.Works || !strings.Contains(result.Reason, "no such file")) {
		t.Errorf("without %s: %+v", device, result)
	}
}

// TestPayload: a few loops of the payload end with the right sum even where
// KVM crawls.
func TestPayload(t *testing.T) {
	if _, err := os.Stat(device); err != nil {
		t.Skipf("THIS MACHINE HAS NO %s: the payload is not run at all", device)
	}
	result := Checker{Args: []string{"loops", "1000"}}.Run(context.Background())
	if !result.Works || !strings.Contains(result.Reason, "5000 instructions took") {
		t.Errorf("%+v", result)
	}
}

func TestNoDevice(t *testing.T) {
	for _, path := range []string{t.TempDir() + "/none", "/dev/null", t.TempDir()} {
		if _, err := runPayload(path, loops); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want an error that names it", path, err)
		}
	}
}

func TestHangingChildIsKilled(t *testing.T) {
	file := t.TempDir() + "/pid"
	start := time.Now()
	result := Checker{Args: []string{"hang", file}, Timeout: time.Second}.Run(context.Background())
	if elapsed := time.Since(start); elapsed < time.Second || elapsed > time.Second+killLimit {
		t.Errorf("took %v", elapsed)
	}
	if result.Works || !strings.Contains(result.Reason, "did not end within 1s, and was killed") {
		t.Errorf("%+v", result)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("the child never ran: %v", err)
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
		t.Errorf("the child %d is still there: %v", pid, err)
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if result := (Checker{Args: []string{"hang", t.TempDir() + "/pid"}}).Run(ctx); result.Works {
		t.Errorf("%+v", result)
	}
}

func TestChild(t *testing.T) {
	tests := []struct {
		name string
		args []string
		want Result
	}{
		{"works", []string{"say", "fast\n", "0"}, Result{true, "fast"}},
		{"fails", []string{"say", "create VM: no\nmore", "1"}, Result{false, "create VM: no"}},
		{"fails without a word", []string{"say", "", "1"}, Result{false, "run the check: exit status 1"}},
		{"floods", []string{"say", strings.Repeat("x", 100_000), "1"}, Result{false, strings.Repeat("x", 512)}},
		{"not UTF-8", []string{"say", "a\xffb", "1"}, Result{false, "ab"}},
		{"is killed", []string{"die"}, Result{false, "run the check: signal: killed"}},
	}
	for _, tt := range tests {
		if got := (Checker{Args: tt.args}).Run(context.Background()); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
	if got := (Checker{Path: "/nonexistent"}).Run(context.Background()); got.Works || !strings.Contains(got.Reason, "no such file") {
		t.Errorf("no executable: %+v", got)
	}
}
