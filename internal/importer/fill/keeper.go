package fill

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/importer/disk"
)

// keeper keeps the state of an import.
type keeper struct {
	meter  *Meter
	states disk.States

	mu sync.Mutex
	// state is what is saved next. found: another process left it, and nothing was made of it yet.
	state   disk.State
	found   bool
	started bool
}

// newKeeper reads what another process left.
func newKeeper(c Config, meter *Meter) (*keeper, error) {
	path := c.Disk + disk.StateSuffix
	if c.Task.Target.Block {
		path = filepath.Join(c.Work, "disk"+disk.StateSuffix)
	}
	k := &keeper{meter: meter, states: disk.States{Path: path}}
	text, err := json.Marshal(c.Task)
	if err != nil {
		return nil, fmt.Errorf("tell the task apart: %w", err)
	}
	full := sha256.Sum256(text)
	task := hex.EncodeToString(full[:])
	state, found, err := k.states.Load()
	if err != nil {
		return nil, err
	}
	if found && state.Task == task {
		k.state, k.found = state, true
		meter.resume(state.Done, state.Total)
	}
	k.state.Task = task
	return k, nil
}

// version tells a source from what it becomes when it changes.
type version struct {
	// validator is empty if the source does not say.
	validator string
	size      int64
}

// begin returns where the import goes on. whole: the disk is as the state says.
func (k *keeper) begin(source version, resumable, whole bool) (int64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.found {
		reason := ""
		switch {
		case !resumable:
			reason = "the importer ended early, and an image that is compressed, on a server without ranges or in a container image cannot be taken up again"
		case !whole:
			reason = "the importer ended early, and the disk is no longer what it left"
		case source.validator == "":
			reason = "the importer ended early, and the server does not say by an ETag or an older time whether the file is still the same to the byte"
		case source.validator != k.state.Validator || source.size != k.state.Size:
			reason = "the importer ended early, and the file changed on the server since then"
		}
		if reason != "" {
			k.state.Next = 0
			k.meter.anew(reason)
		}
	}
	k.found, k.started = false, true
	k.state.Validator, k.state.Size = source.validator, source.size
	return k.state.Next, nil
}

// forget begins at nothing, if another process left more.
func (k *keeper) forget(reason string) error {
	k.mu.Lock()
	left := k.found && (k.state.Done > 0 || k.state.Total > 0)
	k.found, k.state.Next = false, 0
	k.mu.Unlock()
	if !left {
		return nil
	}
	return k.anew(reason)
}

// anew begins at nothing, in this process.
func (k *keeper) anew(reason string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.state.Next, k.found = 0, false
	k.meter.anew(reason)
	return k.saveLocked(k.states.SaveSynced)
}

// reached says that the disk is on the storage up to an offset.
func (k *keeper) reached(offset int64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.state.Next = offset
	return k.saveLocked(k.states.SaveSynced)
}

// save returns when the state is on the storage.
func (k *keeper) save() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.saveLocked(k.states.SaveSynced)
}

func (k *keeper) saveLocked(save func(disk.State) error) error {
	now := k.meter.current()
	k.state.Done, k.state.Total = now.Done, now.Total
	if err := save(k.state); err != nil {
		return err
	}
	k.meter.tell(now)
	return nil
}

// run saves the progress again and again. The function that it returns ends that.
func (k *keeper) run(ctx context.Context, interval time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var saver sync.WaitGroup
	saver.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				k.tick()
			}
		}
	})
	return func() { cancel(); saver.Wait() }
}

// tick saves the progress if there is any. Where it cannot be saved it is not told: the import itself
// finds out why.
func (k *keeper) tick() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.started && k.meter.current() != k.meter.Progress() {
		_ = k.saveLocked(k.states.Save)
	}
}

// finish says that all is done: no state is left.
func (k *keeper) finish() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.started = false
	if err := k.states.Remove(); err != nil {
		return err
	}
	k.meter.finish()
	return nil
}
