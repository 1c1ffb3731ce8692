package kvmcheck

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// TestMain lets the test binary be the child.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 {
		os.Exit(m.Run())
	}
	switch os.Args[1] {
	case Argument:
		os.Exit(Main(os.Stdout))
	case OffersArgument:
		os.Exit(MainOffers(os.Stdout))
	case "loops":
		loops, _ := strconv.ParseUint(os.Args[2], 10, 64)
		result, err := timed(loops, time.Minute)
		fmt.Println(result, err)
		if err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	case "starve":
		starve("spin")
	case "spin":
		for i := 0; ; i++ {
		}
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

// TestCheckOfThisMachine really checks. Whatever comes out, it comes out in time, with
// a reason, and leaves no child.
func TestCheckOfThisMachine(t *testing.T) {
	start := time.Now()
	result := Checker{}.Run(context.Background())
	elapsed := time.Since(start)
	t.Logf("verdict on KVM here: %q (%s), known after %v", result.Verdict, result.Reason, elapsed)
	if result.Reason == "" {
		t.Error("no reason")
	}
	if limit := DefaultLimits().Wall + killLimit + testkit.Patience; elapsed > limit {
		t.Errorf("took %v, more than %v", elapsed, limit)
	}
	if _, err := os.Stat(device); err != nil && (result.Verdict != Broken || !strings.Contains(result.Reason, "no such file")) {
		t.Errorf("without %s: %+v", device, result)
	}
}

// TestPayloadEndsWithTheRightSum: a few loops of the payload end with the right sum even where
// KVM crawls.
func TestPayloadEndsWithTheRightSum(t *testing.T) {
	if _, err := os.Stat(device); err != nil {
		t.Skipf("THIS MACHINE HAS NO %s: the payload is not run at all", device)
	}
	result := Checker{Args: []string{"loops", "1000"}}.Run(context.Background())
	if result.Verdict != Works || !strings.Contains(result.Reason, "5000 instructions took") {
		t.Errorf("%+v", result)
	}
}

func TestMissingDeviceIsNamed(t *testing.T) {
	for _, path := range []string{t.TempDir() + "/none", "/dev/null", t.TempDir()} {
		if _, err := runPayload(path, loops); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want an error that names it", path, err)
		}
	}
}

func TestHangingChildIsKilled(t *testing.T) {
	file := t.TempDir() + "/pid"
	start := time.Now()
	limits := Limits{CPU: time.Hour, Asleep: time.Second, Wall: time.Hour}
	result := Checker{Args: []string{"hang", file}, Limits: limits}.Run(context.Background())
	if elapsed := time.Since(start); elapsed < time.Second {
		t.Errorf("took %v", elapsed)
	}
	if result.Verdict != Broken || !strings.Contains(result.Reason, "slept for 1s, and was killed") {
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
	testkit.Eventually(t, fmt.Sprintf("the end of the child %d", pid), func() error {
		if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
			return fmt.Errorf("it is still there: %w", err)
		}
		return nil
	})
}

// starve runs this program anew, with an argument, where nobody else wants to run, on a CPU that somebody else
// wants. Policy and affinity belong to a thread, and Go may move a goroutine to another thread. All threads of a
// program have both if they are set before the program starts.
func starve(arg string) {
	runtime.LockOSThread()
	var one unix.CPUSet
	one.Set(0)
	for _, err := range []error{
		unix.SchedSetaffinity(0, &one),
		unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0),
	} {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
	}
	fmt.Fprintln(os.Stderr, unix.Exec("/proc/self/exe", []string{os.Args[0], arg}, os.Environ()))
	os.Exit(3)
}

// A child that gets no CPU time says nothing of KVM; one that had it, and did
// not end, does.
func TestLoadIsNotABrokenKVM(t *testing.T) {
	var stop atomic.Bool
	var hogs sync.WaitGroup
	defer hogs.Wait()
	defer stop.Store(true)
	for range 2 {
		hogs.Go(func() {
			runtime.LockOSThread() // and never unlocked: the thread ends with its affinity
			var one unix.CPUSet
			one.Set(0)
			if err := unix.SchedSetaffinity(0, &one); err != nil {
				t.Error(err)
			}
			for !stop.Load() {
			}
		})
	}
	limits := Limits{CPU: time.Second, Asleep: time.Minute, Wall: 1500 * time.Millisecond}
	starved := Checker{Args: []string{"starve"}, Limits: limits}.Run(context.Background())
	if starved.Verdict != Unknown || !strings.Contains(starved.Reason, "of CPU time within 1.5s") {
		t.Errorf("starved: %+v", starved)
	}
	limits.CPU, limits.Wall = limits.CPU/4, time.Hour
	if served := (Checker{Args: []string{"spin"}, Limits: limits}).Run(context.Background()); served.Verdict != Broken || !strings.Contains(served.Reason, "within 250ms of CPU time") {
		t.Errorf("not starved: %+v", served)
	}
}

func TestWhichLimitIsExceeded(t *testing.T) {
	limits := Limits{CPU: 5 * time.Second, Asleep: 10 * time.Second, Wall: 2 * time.Minute}
	tests := []struct {
		name  string
		usage usage
		since time.Duration
		want  Verdict
		over  bool
	}{
		{"just begun", usage{true, time.Millisecond, 0}, time.Second, "", false},
		{"on a busy node", usage{true, time.Second, 89 * time.Second}, 95 * time.Second, "", false},
		{"crawls", usage{true, 5*time.Second + 1, 0}, 6 * time.Second, Broken, true},
		{"crawls on a busy node", usage{true, 5*time.Second + 1, time.Minute}, 66 * time.Second, Broken, true},
		{"sleeps", usage{true, time.Second, time.Second}, 13 * time.Second, Broken, true},
		{"gets no time", usage{true, time.Second, 2 * time.Minute}, 121 * time.Second, Unknown, true},
		{"the kernel does not say", usage{}, time.Minute, "", false},
		{"the kernel never says", usage{}, 121 * time.Second, Unknown, true},
	}
	for _, tt := range tests {
		if got, over := limits.exceeded(tt.usage, tt.since); got.Verdict != tt.want || over != tt.over {
			t.Errorf("%s: %+v, over %v; want %q, %v", tt.name, got, over, tt.want, tt.over)
		}
	}
}

func TestCancelledCheckIsUnknown(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if result := (Checker{Args: []string{"hang", t.TempDir() + "/pid"}}).Run(ctx); result.Verdict != Unknown {
		t.Errorf("%+v", result)
	}
}

func TestVerdictOfTheChild(t *testing.T) {
	tests := []struct {
		name string
		args []string
		want Result
	}{
		{"works", []string{"say", "fast\n", "0"}, Result{Works, "fast"}},
		{"fails", []string{"say", "create VM: no\nmore", "1"}, Result{Broken, "create VM: no"}},
		{"fails without a word", []string{"say", "", "1"}, Result{Unknown, "run the check: exit status 1"}},
		{"floods", []string{"say", strings.Repeat("x", 100_000), "1"}, Result{Broken, strings.Repeat("x", 512)}},
		{"not UTF-8", []string{"say", "a\xffb", "1"}, Result{Broken, "ab"}},
		{"is killed", []string{"die"}, Result{Unknown, "run the check: signal: killed"}},
	}
	for _, tt := range tests {
		if got := (Checker{Args: tt.args}).Run(context.Background()); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
	if got := (Checker{Path: "/nonexistent"}).Run(context.Background()); got.Verdict != Unknown || !strings.Contains(got.Reason, "no such file") {
		t.Errorf("no executable: %+v", got)
	}
}
