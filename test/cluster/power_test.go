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
	if err := alreadyUp(t.Context(), dir, off.NodeCount, off.Families, off, io.Discard); err == nil || !strings.Contains(err.Error(), "cluster power-on --name demo") {
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

// TestCutNode: the power of one node is cut, and all else goes on.
func TestCutNode(t *testing.T) {
	dir := t.TempDir()
	var processes []Process
	for _, name := range []string{"etcd", "node-1", "node-2"} {
		_, p := startSleep(t, dir)
		p.Name = name
		processes = append(processes, p)
	}
	state := State{Name: "demo", NodeCount: 2, Ready: true, Processes: processes, Services: []Process{{Name: "node-1-kubelet"}, {Name: "node-2-kubelet"}}}
	file := filepath.Join(dir, "state.json")
	if err := state.save(file); err != nil {
		t.Fatal(err)
	}
	for _, number := range []int{0, 3} {
		if err := CutNode(t.Context(), dir, number, io.Discard); err == nil {
			t.Errorf("cut the power of node %d of 2", number)
		}
	}
	if err := PowerOnNode(t.Context(), dir, 2, true, io.Discard); err == nil {
		t.Error("powered on a node whose power was not cut")
	}
	if err := CutNode(t.Context(), dir, 2, io.Discard); err != nil {
		t.Fatal(err)
	}
	if !processes[0].Alive() || !processes[1].Alive() || processes[2].Alive() {
		t.Errorf("alive are etcd: %v, node 1: %v, node 2: %v", processes[0].Alive(), processes[1].Alive(), processes[2].Alive())
	}
	now, err := loadState(file)
	if err != nil || len(now.Processes) != 2 || len(now.Services) != 1 || now.Services[0].Name != "node-1-kubelet" || !now.Ready || len(now.NodesOff) != 1 {
		t.Errorf("state is %+v (%v)", now, err)
	}
	if err := CutNode(t.Context(), dir, 2, io.Discard); err != nil {
		t.Errorf("cut what an earlier cut may have left: %v", err)
	}
}
