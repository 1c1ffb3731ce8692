package accelerator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/kubeqemu/kubeqemu/internal/kvmcheck"
)

// Judge finds out whether KVM works, and tells the Chooser the result.
type Judge struct {
	Check   func(context.Context) kvmcheck.Result
	Kept    kvmcheck.Kept
	Clock   clock.WithTicker
	Log     logr.Logger
	Chooser *Chooser
	// Ready makes the KVM device that pods get. It runs only when KVM works.
	Ready func() error
	// Changed is called after each change of the choice.
	Changed func(context.Context) error
}

const (
	// certain is how many checks must find KVM broken before that verdict is kept and the
	// checks end. The first such verdict counts already.
	certain = 3
	// recheckFirst and recheckMost are the first and the longest wait between checks. Each
	// wait is twice the one before.
	recheckFirst, recheckMost = 15 * time.Second, 4 * time.Minute
)

// Start implements manager.Runnable. It ends once a check finds that KVM works, or three
// checks (certain) find KVM broken.
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
			return nil // the end of ctx killed the check
		}
		j.Log.Info("looked for KVM", "verdict", result.Verdict, "reason", result.Reason)
		if result.Verdict == kvmcheck.Broken {
			broken++
		}
		if result.Verdict == kvmcheck.Works || broken == certain {
			// After a failure to keep the verdict, the next virt-handler checks again.
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
