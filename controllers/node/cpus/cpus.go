// Package cpus finds out which CPUs a node can give guests.
package cpus

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator"
	"github.com/kubeqemu/kubeqemu/controllers/node/cpuprobe"
	"github.com/kubeqemu/kubeqemu/internal/kvmcheck"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/hostcpu"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

const (
	// firstRetry is the wait after the first question that failed; it doubles up to lastRetry.
	firstRetry = 30 * time.Second
	lastRetry  = 30 * time.Minute
	// patience is how long the start of a guest waits for the first answer of the node's QEMU, which comes within a
	// second or two.
	patience = 10 * time.Second
)

// Finder asks the node's QEMU once for each accelerator that the node chooses, and keeps the answer until
// virt-handler ends: a node's processor is the same until it boots anew.
type Finder struct {
	Chooser *accelerator.Chooser
	// Ask returns what an accelerator can give.
	Ask   func(context.Context, qemuargs.Accelerator) (hostcpu.CPU, error)
	Clock clock.WithTicker
	Log   logr.Logger

	mu      sync.Mutex
	known   map[qemuargs.Accelerator]hostcpu.CPU
	tried   map[qemuargs.Accelerator]bool
	changed chan struct{}
}

// Ask asks the QEMU in a root folder, and the node's KVM.
func Ask(root string) func(context.Context, qemuargs.Accelerator) (hostcpu.CPU, error) {
	return func(ctx context.Context, a qemuargs.Accelerator) (hostcpu.CPU, error) {
		answers, err := cpuprobe.Probe{Root: root}.Run(ctx, a)
		if err != nil {
			return hostcpu.CPU{}, err
		}
		cpu, err := hostcpu.Read(answers)
		if err != nil || a != qemuargs.KVM {
			return cpu, err
		}
		offers, err := kvmcheck.Checker{}.Ask(ctx)
		if err != nil {
			return hostcpu.CPU{}, err
		}
		cpu.HyperV = offers.HyperV
		if offers.TSCHertz != 0 {
			cpu.TSC = &hostcpu.TSC{Hertz: offers.TSCHertz, Scalable: offers.TSCScalable}
		}
		return cpu, nil
	}
}

// asks says whether this node's QEMU is asked. Guests of arm64 have the node's CPU as it is: no label tells of it,
// and no guest waits.
const asks = runtime.GOARCH == v1.AMD64

// Start asks until ctx ends: at first, and whenever the node chooses another accelerator.
func (f *Finder) Start(ctx context.Context) error {
	if !asks {
		return nil
	}
	wait := firstRetry
	for {
		choice, changed := f.Chooser.Choice()
		var again <-chan time.Time
		stop := func() bool { return false }
		if _, known := f.get(choice.Accelerator); choice.Accelerator != "" && !known {
			cpu, err := f.Ask(ctx, choice.Accelerator)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				f.Log.Error(err, "ask QEMU which CPUs this node can give guests; its labels stay as they are", "accelerator", choice.String(), "again after", wait.String())
				timer := f.Clock.NewTimer(wait)
				again, stop, wait = timer.C(), timer.Stop, min(2*wait, lastRetry)
			} else {
				f.Log.Info("QEMU says which CPUs this node can give guests", "accelerator", choice.String(), "QEMU", cpu.QEMUVersion,
					"models", len(cpu.Models), "features", len(cpu.Features), "near", cpu.HostModel)
				wait = firstRetry
			}
			f.set(choice.Accelerator, cpu, err == nil)
		}
		select {
		case <-changed:
			wait = firstRetry
		case <-again:
		case <-ctx.Done():
		}
		stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}

func (f *Finder) get(a qemuargs.Accelerator) (cpu hostcpu.CPU, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	cpu, known = f.known[a]
	return cpu, known
}

func (f *Finder) set(a qemuargs.Accelerator, cpu hostcpu.CPU, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known == nil {
		f.known, f.tried = map[qemuargs.Accelerator]hostcpu.CPU{}, map[qemuargs.Accelerator]bool{}
	}
	if f.tried[a] = true; known {
		f.known[a] = cpu
	}
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// peek returns what is known, whether a question has been answered or has failed, and a channel that is closed when
// that changes.
func (f *Finder) peek(a qemuargs.Accelerator) (cpu hostcpu.CPU, known, tried bool, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	cpu, known = f.known[a]
	return cpu, known, f.tried[a], f.changed
}

// HostModel returns the flags that make QEMU's model base the node's own CPU. There are none for another QEMU than
// the node's, which may know other features, and none for a node whose QEMU did not answer.
func (f *Finder) HostModel(ctx context.Context, a qemuargs.Accelerator, qemuVersion string) []string {
	if f == nil || !asks {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		cpu, known, tried, changed := f.peek(a)
		switch {
		case known && cpu.QEMUVersion == qemuVersion:
			return cpu.Flags
		case known || tried:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// Flags returns the flags that HostModel returns, and does not wait for an answer. There are none while none is known.
func (f *Finder) Flags(a qemuargs.Accelerator, qemuVersion string) []string {
	if cpu, known := f.get(a); known && cpu.QEMUVersion == qemuVersion {
		return cpu.Flags
	}
	return nil
}

// QEMUVersion returns the version of the QEMU in a root folder, as the build of the launcher's image wrote it.
func QEMUVersion(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, layout.QEMUVersion))
	if err != nil {
		return "", fmt.Errorf("read the version of the launcher's QEMU: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// Told returns what the node's labels are to say, as text; empty while nothing is known. The channel is closed when
// that changes.
func (f *Finder) Told() (string, <-chan struct{}, error) {
	choice, _ := f.Chooser.Choice()
	cpu, known, _, changed := f.peek(choice.Accelerator)
	if !known {
		return "", changed, nil
	}
	told := cpu.Told
	told.Accelerator = string(choice.Accelerator)
	text, err := json.Marshal(told)
	if err != nil {
		return "", changed, fmt.Errorf("encode what QEMU says of CPUs: %w", err)
	}
	if len(text) > hostcpu.MaxTold {
		return "", changed, fmt.Errorf("what QEMU says of CPUs has %d bytes, more than %d", len(text), hostcpu.MaxTold)
	}
	return string(text), changed, nil
}
