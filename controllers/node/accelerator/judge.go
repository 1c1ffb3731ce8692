package accelerator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator/kvmcheck"
)

// Judge finds out whether KVM works, and tells the Chooser.
type Judge struct {
	Check   func(context.Context) kvmcheck.Result
	Kept    kvmcheck.Kept
	Clock   clock.WithTicker
	Log     logr.Logger
	Chooser *Chooser
	// Ready makes what pods get of a KVM that works.
	Ready func() error
	// Changed is called after each change of the choice.
	Changed func(context.Context) error
}

const (
	// certain is how many checks in a row must find KVM broken before that is
	// kept; what the first of them finds holds, but is looked at again.
	certain = 3
	// recheckFirst and recheckMost are between checks, each twice as long as the
	// one before.
	recheckFirst, recheckMost = 15 * time.Second, 4 * time.Minute
)

// Start implements manager.Runnable. It ends once KVM works, or is broken for
// certain.
func (j *Judge) Start(ctx context.Context) error {
	key, err := kvmcheck.Key()
	if err != nil {
		return fmt.Errorf("name what the verdict on KVM is about: %w", err)
	}
	result, err := j.Kept.Load(key)
	if err == nil {
		j.Log.Info("the verdict on KVM was kept", "verdict", result.Verdict, "reason", result.Reason)
		return j.tell(ctx, result)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		j.Log.Error(err, "forget the verdict that was kept")
	}
	broken := 0
	for wait := recheckFirst; ; wait = min(2*wait, recheckMost) {
		result := j.Check(ctx)
		if ctx.Err() != nil {
			return nil // which killed the check
		}
		j.Log.Info("looked for KVM", "verdict", result.Verdict, "reason", result.Reason)
		if result.Verdict == kvmcheck.Broken {
			broken++
		}
		if result.Verdict == kvmcheck.Works || broken == certain {
			// Whoever cannot keep it checks again, the next time.
			if err := j.Kept.Save(key, result); err != nil {
				j.Log.Error(err, "keep the verdict on KVM")
			}
			return j.tell(ctx, result)
		}
		if err := j.tell(ctx, result); err != nil {
			return err
		}
		timer := j.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
	}
}

func (j *Judge) tell(ctx context.Context, result kvmcheck.Result) error {
	if result.Verdict == kvmcheck.Works {
		if err := j.Ready(); err != nil {
			return err
		}
	}
	if !j.Chooser.Judge(result) {
		return nil
	}
	return j.Changed(ctx)
}
