package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// State is the file state.json in the cluster's folder: what `up` made, so that `down` ends
// that and nothing else. It is written before each wait, so that it also lists what a
// broken-off `up` left.
type State struct {
	Name      string    `json:"name"`
	Index     int       `json:"index"`
	NodeCount int       `json:"nodeCount"`
	Families  Families  `json:"families,omitempty"`
	Bin       string    `json:"bin"`
	Created   time.Time `json:"created"`
	Ready     bool      `json:"ready"`              // up has ended well
	Off       bool      `json:"off"`                // its power was cut
	NodesOff  []string  `json:"nodesOff,omitempty"` // the names of nodes whose power was cut, by CutNode
	Processes []Process `json:"processes"`          // control plane and every node's PID 1, in the order of starting
	Services  []Process `json:"services"`           // started by a node's PID 1, and ended with it
}

// loadState returns nil without an error when there is no state file.
func loadState(file string) (*State, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read cluster state: %w", err)
	}
	s := new(State)
	if err := json.Unmarshal(data, s); err != nil {
		return nil, fmt.Errorf("read cluster state %s: %w", file, err)
	}
	return s, nil
}

// save replaces the file in one step: a reader never sees half of it.
func (s *State) save(file string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write cluster state: %w", err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		return fmt.Errorf("write cluster state: %w", err)
	}
	return nil
}

// dead lists what should run and does not.
func (s *State) dead() []Process {
	var dead []Process
	for _, p := range append(append([]Process{}, s.Processes...), s.Services...) {
		if !p.Alive() {
			dead = append(dead, p)
		}
	}
	return dead
}

// process finds a process by name; ok is false when it was never started.
func (s *State) process(name string) (p Process, ok bool) {
	for _, p := range append(append([]Process{}, s.Processes...), s.Services...) {
		if p.Name == name {
			return p, true
		}
	}
	return Process{}, false
}
