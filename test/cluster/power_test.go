package cluster

import (
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestPowerCutKillsAllAtOnce(t *testing.T) {
	dir := t.TempDir()
	if err := PowerCut(t.Context(), dir, io.Discard); err == nil {
		t.Error("cut the power of a cluster that is not up")
	}
	if err := PowerOn(t.Context(), dir, true, io.Discard); err == nil {
		t.Error("powered on a cluster whose power was not cut")
	}
	_, known := startSleep(t, dir)
	_, stray := startSleep(t, dir) // of which the state file says nothing
	_, other := startSleep(t, t.TempDir())
	state := State{Name: "demo", NodeCount: 1, Ready: true, Processes: []Process{known}}
	file := filepath.Join(dir, "state.json")
	if err := state.save(file); err != nil {
		t.Fatal(err)
	}
	if err := PowerCut(t.Context(), dir, io.Discard); err != nil || known.Alive() || stray.Alive() || !other.Alive() {
		t.Errorf("alive are %v, %v, and another cluster's %v (%v)", known.Alive(), stray.Alive(), other.Alive(), err)
	}
	off, err := loadState(file)
	if err != nil || !off.Off || off.Ready || len(off.Processes) > 0 {
		t.Errorf("state is %+v (%v)", off, err)
	}
	if _, _, err := running(dir); !errors.Is(err, ErrNotUp) {
		t.Errorf("a cluster without power is used: %v", err)
	}
	if err := alreadyUp(t.Context(), dir, off, io.Discard); err == nil || !strings.Contains(err.Error(), "cluster power-on --name demo") {
		t.Errorf("up on a cluster without power: %v", err)
	}
	if err := PowerCut(t.Context(), dir, io.Discard); err == nil {
		t.Error("cut it twice")
	}
}

func TestNodeReadySince(t *testing.T) {
	var n nodeInfo
	text := `{"status":{"conditions":[{"type":"Ready","status":"True","message":"posting","lastHeartbeatTime":"2026-01-01T10:00:00Z"}]}}`
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		t.Fatal(err)
	}
	said := time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)
	for since, want := range map[time.Time]bool{{}: true, said.Add(999 * time.Millisecond): true, said.Add(time.Second): false} {
		if ready, _ := n.ready(since); ready != want {
			t.Errorf("ready since %s: %v", since, ready)
		}
	}
}
