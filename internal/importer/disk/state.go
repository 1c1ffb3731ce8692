package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kubeqemu/kubeqemu/internal/atomicfile"
)

// StateSuffix is what the name of a state's file has after its disk's.
const StateSuffix = ".import"

// State is how far an import is, for the process that goes on with it.
type State struct {
	// Task tells an import apart from that of another source, or for another disk.
	Task string `json:"task"`
	// Validator and Size are the source's.
	Validator string `json:"validator,omitempty"`
	Size      int64  `json:"size,omitempty"`
	// Next is how far the disk is written: all before is on the storage.
	Next int64 `json:"next,omitempty"`
	// Done and Total are the progress that was told.
	Done  int64 `json:"done,omitempty"`
	Total int64 `json:"total,omitempty"`
}

// States is where a state is kept.
type States struct{ Path string }

// Load reads the state. found is false where there is none, and where what is there cannot be read: an
// import begins then.
func (s States) Load() (state State, found bool, err error) {
	const most = 64 << 10
	f, err := os.Open(s.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, false, nil
	}
	if err != nil {
		return State{}, false, fmt.Errorf("read the import's state: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return State{}, false, fmt.Errorf("read the import's state: %w", err)
	}
	if json.Unmarshal(text, &state) != nil || state.Next < 0 || state.Done < 0 || state.Total < 0 {
		return State{}, false, nil
	}
	return state, true, nil
}

// Save writes the state. The disk must be on the storage already as far as the state says.
func (s States) Save(state State) error { return s.save(state, atomicfile.Write) }

// SaveSynced writes the state, and returns when it is on the storage.
func (s States) SaveSynced(state State) error { return s.save(state, atomicfile.WriteSynced) }

func (s States) save(state State, write func(path string, data []byte) error) error {
	text, err := json.Marshal(state)
	if err == nil {
		err = write(s.Path, text)
	}
	if err != nil {
		return fmt.Errorf("write the import's state: %w", err)
	}
	return nil
}

// Remove removes the state, and what a killed process left of one that it wrote.
func (s States) Remove() error {
	left, err := filepath.Glob(filepath.Join(filepath.Dir(s.Path), ".new-*")) // of package atomicfile
	for _, path := range append(left, s.Path) {
		if e := os.Remove(path); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	if err != nil {
		return fmt.Errorf("remove the import's state: %w", err)
	}
	return nil
}
