package main

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/test/simulation"
)

func TestCountWrites(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	written := []simulation.Write{
		{User: "admin", What: "create virtualmachineinstances", Name: "a-b", At: at(100)},
		{User: "admin", What: "create virtualmachineinstances", Name: "a", At: at(120)},
		{User: "virt-controller", What: "create pods", Name: "virt-launcher-a-1x", At: at(150)},
		{User: "virt-controller", What: "create pods", Name: "virt-launcher-a-b-2x", At: at(110)},
		{User: "kubelet", What: "patch pods/status", Name: "virt-launcher-a-1x"},
		{User: "virt-handler", What: "patch virtualmachineinstances/status", Name: "a"},
		{User: "virt-handler", What: "create events", Name: "a.1"},
	}
	r := &run{bench: &bench{}, rows: []row{writesRow("writes", "writes")}}
	r.addWrites("writes", written, 2)
	if got := r.row("writes").Ours.Samples; !slices.Equal(got, []float64{1.5}) {
		t.Errorf("counted %v", got)
	}
	want := []series{
		{Name: "virt-controller: create pods", Samples: []float64{1}},
		{Name: "virt-handler: patch virtualmachineinstances/status", Samples: []float64{0.5}},
		{Name: "virt-handler: create events, besides", Samples: []float64{0.5}},
	}
	if got := r.row("writes").Parts; !reflect.DeepEqual(got, want) {
		t.Errorf("parts %+v", got)
	}
	if times, err := podTimes(written, 2); err != nil || !slices.Equal(times, []float64{10, 30}) {
		t.Errorf("times %v, %v", times, err)
	}
	if _, err := podTimes(written[:3], 2); err == nil {
		t.Error("a VMI without a pod was not missed")
	}
}

func TestBudgetOfNoIdleWrites(t *testing.T) {
	for sample, want := range map[float64]verdict{0: held, 1: notHeld} {
		r := idleWritesRow("idle", 1)
		r.Ours.add(sample)
		if r.verdict() != want || r.budget() != "none" {
			t.Errorf("%g: %s, budget %q", sample, r.verdict(), r.budget())
		}
	}
}
