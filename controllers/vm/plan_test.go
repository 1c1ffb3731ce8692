package vm

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

var now = time.Unix(1_000_000, 0)

const thisUID, otherUID types.UID = "this", "other"

// machine returns a VM of a strategy that was carried out before.
func machine(strategy v1.VirtualMachineRunStrategy,
	requests ...v1.VirtualMachineStateChangeRequest) *v1.VirtualMachine {
	return &v1.VirtualMachine{
		ObjectMeta: metav1.ObjectMeta{Name: "vm", Namespace: "ns", UID: "vm-uid", Generation: 3},
		Spec:       v1.VirtualMachineSpec{RunStrategy: &strategy},
		Status:     v1.VirtualMachineStatus{RunStrategy: strategy, StateChangeRequests: requests, DesiredGeneration: 3},
	}
}

func toStart() v1.VirtualMachineStateChangeRequest {
	return v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest}
}

func toStartPaused() v1.VirtualMachineStateChangeRequest {
	return v1.VirtualMachineStateChangeRequest{Action: v1.StartRequest, Data: map[string]string{"paused": "true"}}
}

func toStop(uid types.UID) v1.VirtualMachineStateChangeRequest {
	return v1.VirtualMachineStateChangeRequest{Action: v1.StopRequest, UID: &uid}
}

// run returns a VMI that went through phases.
func run(phases ...v1.VirtualMachineInstancePhase) *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "vm", Namespace: "ns", UID: thisUID}}
	for _, p := range phases {
		vmi.Status.SetPhase(p, metav1.NewTime(now))
	}
	return vmi
}

func deleting(vmi *v1.VirtualMachineInstance) *v1.VirtualMachineInstance {
	vmi.DeletionTimestamp = ptr.To(metav1.NewTime(now))
	return vmi
}

// said returns a plan in words.
func said(p plan) string {
	words := []string{string(p.action)}
	if p.action == wait {
		words[0] = "wait"
	}
	if p.paused {
		words = append(words, "paused")
	}
	for _, r := range p.requests {
		words = append(words, "+"+string(r.Action))
	}
	if p.startFailure != nil {
		words = append(words, fmt.Sprintf("#%d", p.startFailure.ConsecutiveFailCount))
	}
	if p.after > 0 {
		words = append(words, p.after.String())
	}
	return strings.Join(words, " ")
}

// TestDecideByRunStrategy: each run strategy does what KubeVirt's table of strategies says.
func TestDecideByRunStrategy(t *testing.T) {
	strategies := []v1.VirtualMachineRunStrategy{v1.RunStrategyAlways, v1.RunStrategyRerunOnFailure, v1.RunStrategyOnce,
		v1.RunStrategyManual, v1.RunStrategyHalted}
	requests := func(r ...v1.VirtualMachineStateChangeRequest) []v1.VirtualMachineStateChangeRequest { return r }
	running := func() *v1.VirtualMachineInstance { return run(v1.Scheduled, v1.Running) }
	ended := func(p v1.VirtualMachineInstancePhase) *v1.VirtualMachineInstance { return run(v1.Running, p) }
	for _, c := range []struct {
		when     string
		vmi      *v1.VirtualMachineInstance
		requests []v1.VirtualMachineStateChangeRequest
		want     [5]string // by strategy, in the order above
	}{
		{"no VMI", nil, nil, [5]string{"start", "wait", "start", "wait", "wait"}},
		{"no VMI, start", nil, requests(toStart()),
			[5]string{"start +Start", "start +Start", "start +Start", "start +Start", "enable +Start"}},
		{"no VMI, start paused", nil, requests(toStartPaused()),
			[5]string{"start paused +Start", "start paused +Start", "start paused +Start", "start paused +Start",
				"enable +Start"}},
		{"no VMI, stop", nil, requests(toStop(thisUID)), [5]string{"start", "wait", "start", "wait", "wait"}},
		{"no VMI, restart", nil, requests(toStop(thisUID), toStart()),
			[5]string{"start +Start", "start +Start", "start +Start", "start +Start", "enable +Start"}},
		{"starting", run(v1.Scheduling), nil, [5]string{"wait", "wait", "wait", "wait", "stop"}},
		{"starting, start", run(v1.Scheduling), requests(toStart()), [5]string{"wait", "wait", "wait", "wait", "stop"}},
		{"running", running(), nil, [5]string{"wait", "wait", "wait", "wait", "stop"}},
		{"running, start", running(), requests(toStart()), [5]string{"wait", "wait", "wait", "wait", "stop"}},
		{"running, stop", running(), requests(toStop(thisUID)),
			[5]string{"stop +Stop", "stop +Stop", "wait +Stop", "stop +Stop", "stop +Stop"}},
		{"running, stop another", running(), requests(toStop(otherUID)), [5]string{"wait", "wait", "wait", "wait", "stop"}},
		{"running, stop nobody", running(), requests(v1.VirtualMachineStateChangeRequest{Action: v1.StopRequest}),
			[5]string{"wait", "wait", "wait", "wait", "stop"}},
		{"running, restart", running(), requests(toStop(thisUID), toStart()),
			[5]string{"stop +Stop +Start", "stop +Stop +Start", "wait +Stop +Start", "stop +Stop +Start", "stop +Stop +Start"}},
		{"running, restart of another", running(), requests(toStop(otherUID), toStart()),
			[5]string{"wait", "wait", "wait", "wait", "stop"}},
		{"running, unknown request", running(), requests(v1.VirtualMachineStateChangeRequest{Action: "Dance"}),
			[5]string{"wait", "wait", "wait", "wait", "stop"}},
		{"succeeded", ended(v1.Succeeded), nil, [5]string{"stop", "stop", "wait", "wait", "stop"}},
		{"succeeded, start", ended(v1.Succeeded), requests(toStart()),
			[5]string{"stop +Start", "stop +Start", "wait +Start", "stop +Start", "stop +Start"}},
		{"failed", ended(v1.Failed), nil, [5]string{"stop", "wait +Start", "wait", "wait", "stop"}},
		{"failed, start", ended(v1.Failed), requests(toStart()),
			[5]string{"stop +Start", "stop +Start", "wait +Start", "stop +Start", "stop +Start"}},
		{"failed, stop", ended(v1.Failed), requests(toStop(thisUID)),
			[5]string{"stop +Stop", "stop +Stop", "wait +Stop", "stop +Stop", "stop +Stop"}},
		{"never ran", run(v1.Scheduling, v1.Failed), nil, [5]string{"wait #1", "wait +Start #1", "wait #1", "wait", "stop"}},
		{"never ran, deleted", deleting(run(v1.Scheduling, v1.Failed)), nil,
			[5]string{"wait", "wait", "wait", "wait", "wait"}},
		{"running, being deleted", deleting(running()), nil, [5]string{"wait", "wait", "wait", "wait", "wait"}},
		{"running, being deleted, start", deleting(running()), requests(toStart()),
			[5]string{"wait +Start", "wait +Start", "wait +Start", "wait +Start", "wait +Start"}},
		{"failed, being deleted", deleting(ended(v1.Failed)), nil, [5]string{"wait", "wait", "wait", "wait", "wait"}},
		{"failed, being deleted, start", deleting(ended(v1.Failed)), requests(toStart()),
			[5]string{"wait +Start", "wait +Start", "wait +Start", "wait +Start", "wait +Start"}},
	} {
		for i, strategy := range strategies {
			vm := machine(strategy, c.requests...)
			p := decide(vm, c.vmi, now, 0)
			if got := said(p); got != c.want[i] {
				t.Errorf("%s, %s: %s, want %s", strategy, c.when, got, c.want[i])
			}
			if len(vm.Status.StateChangeRequests) != len(c.requests) {
				t.Errorf("%s, %s: the VM was changed", strategy, c.when)
			}
			if p.action == start && c.vmi != nil {
				t.Errorf("%s, %s: a second one is started", strategy, c.when)
			}
		}
	}
}

// TestRerunOnFailureStartsAfterOtherStrategy: RerunOnFailure starts a VM that had another strategy.
func TestRerunOnFailureStartsAfterOtherStrategy(t *testing.T) {
	for before, want := range map[v1.VirtualMachineRunStrategy]string{"": "start", v1.RunStrategyHalted: "start",
		v1.RunStrategyRerunOnFailure: "wait"} {
		vm := machine(v1.RunStrategyRerunOnFailure)
		vm.Status.RunStrategy = before
		p := decide(vm, nil, now, 0)
		if got := said(p); got != want {
			t.Errorf("after %q: %s, want %s", before, got, want)
		}
		// As long as there was no VMI, nothing is remembered but that it is not Halted.
		if got := observe(vm, nil, p, nil, metav1.NewTime(now)).RunStrategy; got != before && got != "" ||
			got == v1.RunStrategyHalted {
			t.Errorf("after %q: %q is remembered", before, got)
		}
		if got := observe(vm, run(), p, nil, metav1.NewTime(now)).RunStrategy; got != v1.RunStrategyRerunOnFailure {
			t.Errorf("after %q: %q is remembered of one that was started", before, got)
		}
	}
}

// TestRequestBeforeTheHaltStartsNothing: what a VM was asked before it was halted does not start it.
func TestRequestBeforeTheHaltStartsNothing(t *testing.T) {
	for _, c := range []struct {
		when     string
		before   v1.VirtualMachineRunStrategy
		vmi      *v1.VirtualMachineInstance
		requests []v1.VirtualMachineStateChangeRequest
		want     string
	}{
		{"a restart is left over", v1.RunStrategyAlways, nil,
			[]v1.VirtualMachineStateChangeRequest{toStop(thisUID), toStart()}, "wait"},
		{"a restart's guest goes down", v1.RunStrategyAlways, deleting(run(v1.Running)),
			[]v1.VirtualMachineStateChangeRequest{toStop(thisUID), toStart()}, "wait"},
		{"a restart has not begun", v1.RunStrategyAlways, run(v1.Running),
			[]v1.VirtualMachineStateChangeRequest{toStop(thisUID), toStart()}, "stop"},
		{"in back-off", v1.RunStrategyRerunOnFailure, nil, []v1.VirtualMachineStateChangeRequest{toStart()}, "wait"},
		{"a start was refused", v1.RunStrategyManual, nil, []v1.VirtualMachineStateChangeRequest{toStart()}, "wait"},
		{"a first start was refused", "", nil, []v1.VirtualMachineStateChangeRequest{toStartPaused()}, "wait"},
		{"halted for long", v1.RunStrategyHalted, nil, []v1.VirtualMachineStateChangeRequest{toStartPaused()},
			"enable +Start"},
	} {
		vm := machine(v1.RunStrategyHalted, c.requests...)
		vm.Status.RunStrategy = c.before
		p := decide(vm, c.vmi, now, 0)
		if got := said(p); got != c.want {
			t.Errorf("%s: %s, want %s", c.when, got, c.want)
		}
		if got := observe(vm, c.vmi, p, nil, metav1.NewTime(now)).RunStrategy; got != v1.RunStrategyHalted {
			t.Errorf("%s: %q is remembered", c.when, got)
		}
	}
	unseen := machine(v1.RunStrategyHalted, toStartPaused())
	unseen.Status.RunStrategy, unseen.Status.DesiredGeneration = "", 0
	if got := said(decide(unseen, nil, now, 0)); got != "enable +Start" {
		t.Errorf("asked before anybody looked at it: %s", got)
	}
}

func TestDecideRunning(t *testing.T) {
	for running, want := range map[bool]string{true: "start", false: "wait"} {
		vm := machine("")
		vm.Spec = v1.VirtualMachineSpec{Running: &running}
		if got := said(decide(vm, nil, now, 0)); got != want {
			t.Errorf("running: %t: %s, want %s", running, got, want)
		}
	}
}

func TestDecideDeleted(t *testing.T) {
	for _, c := range []struct {
		when      string
		finalizer string
		vmi       *v1.VirtualMachineInstance
		want      string
	}{
		{"in the background", "", run(v1.Running), "stop"},
		{"in the foreground", metav1.FinalizerDeleteDependents, run(v1.Running), "stop"},
		{"orphaning", metav1.FinalizerOrphanDependents, run(v1.Running), "release"},
		{"stopping", "", deleting(run(v1.Running)), "wait"},
		{"ended", "", run(v1.Running, v1.Succeeded), "stop"},
		{"never ran", "", run(v1.Failed), "stop #1"},
		{"stopped", "", nil, "release"},
	} {
		for _, strategy := range []v1.VirtualMachineRunStrategy{v1.RunStrategyAlways, v1.RunStrategyRerunOnFailure,
			v1.RunStrategyOnce} {
			vm := machine(strategy)
			vm.DeletionTimestamp, vm.Finalizers = ptr.To(metav1.NewTime(now)), []string{v1.VMFinalizer, c.finalizer}
			if got := said(decide(vm, c.vmi, now, 0)); got != c.want {
				t.Errorf("%s, %s: %s, want %s", strategy, c.when, got, c.want)
			}
		}
	}
}

// TestBackOff: a VM whose guests fail before they run waits longer after each failure. Each failure is counted
// once. A guest that runs, and a halt of the VM, end the counting.
func TestBackOff(t *testing.T) {
	vm, clock := machine(v1.RunStrategyAlways), now
	for i, want := range []time.Duration{10, 40, 90, 160, 250, 300, 300} {
		failed := run(v1.Scheduling, v1.Failed)
		failed.UID = types.UID(fmt.Sprint("failed-", i))
		p := decide(vm, failed, clock, 0)
		if p.action != wait || p.startFailure == nil || p.startFailure.ConsecutiveFailCount != i+1 {
			t.Fatalf("failure %d: %s, want it counted before anything else", i+1, said(p))
		}
		vm.Status.StartFailure = p.startFailure
		if p := decide(vm, failed, clock, 0.9); p.action != stop ||
			!p.startFailure.RetryAfterTimestamp.Equal(vm.Status.StartFailure.RetryAfterTimestamp) {
			t.Fatalf("failure %d again: %s, want it not counted twice", i+1, said(p))
		}
		if p := decide(vm, nil, clock, 0); p.action != wait || p.after != want*time.Second {
			t.Errorf("failure %d: %s, want to wait for %d s", i+1, said(p), want)
		}
		clock = clock.Add(want * time.Second)
		if p := decide(vm, nil, clock, 0); p.action != start {
			t.Errorf("failure %d: %s, want a start after %d s", i+1, said(p), want)
		}
		if p := decide(vm, run(v1.Scheduling), clock, 0); p.startFailure == nil {
			t.Errorf("failure %d is forgotten before the guest runs", i+1)
		}
	}
	if p := decide(vm, nil, clock.Add(-24*time.Hour), 0); p.action != start {
		t.Errorf("the clock was set back by a day: %s, want a start", said(p))
	}
	if p := decide(vm, run(v1.Running), clock, 0); p.startFailure != nil {
		t.Error("it is remembered of a guest that runs")
	}
	if p := decide(vm, run(v1.Running, v1.Failed), clock, 0); p.startFailure != nil {
		t.Error("a guest that ran is counted")
	}
	vm.Spec.RunStrategy = ptr.To(v1.RunStrategyHalted)
	if p := decide(vm, nil, clock, 0); p.startFailure != nil {
		t.Error("it is remembered of a halted VM")
	}
}

func TestBackOffDelayIsBounded(t *testing.T) {
	for _, c := range []struct {
		count  int
		jitter float64
		want   time.Duration
	}{{1, 0, 10 * time.Second}, {1, 1, 15 * time.Second}, {2, 0.5, 50 * time.Second}, {5, 1, 300 * time.Second},
		{0, 0, 10 * time.Second}, {1 << 40, 1, 300 * time.Second}} {
		if got := delay(c.count, c.jitter); got != c.want {
			t.Errorf("delay(%d, %g) is %s, want %s", c.count, c.jitter, got, c.want)
		}
	}
}
