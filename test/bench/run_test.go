package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

func newRun(t *testing.T, rounds int) *run {
	return &run{bench: &bench{rounds: rounds, started: time.Now()}, Context: t.Context(),
		rows: []row{{ID: "row", Beside: named("beside"), Parts: named("first", "second")}}}
}

// TestTurnEndsWhatItStarted: in any case, the last first, and before what goes on after the turn.
func TestTurnEndsWhatItStarted(t *testing.T) {
	broken, stuck := errors.New("broken"), errors.New("stuck")
	var ended []string
	end := func(name string, err error) func() error {
		return func() error { ended = append(ended, name); return err }
	}
	r := newRun(t, 1)
	err := r.try(func(r *run) {
		r.after(end("outer", nil))
		r.turn(func(r *run) { r.after(end("inner", nil)) })
		r.after(end("stuck", stuck))
		doing("work", func() { check(broken, "do it") })
		t.Error("the turn went on after an error")
	})
	if !errors.Is(err, broken) || !errors.Is(err, stuck) || !strings.HasPrefix(err.Error(), "work: do it: broken") {
		t.Errorf("the turn fails with %v", err)
	}
	if want := []string{"inner", "stuck", "outer"}; !slices.Equal(ended, want) {
		t.Errorf("ended %q, want %q", ended, want)
	}
	if err := r.try(func(*run) { must(1, nil) }); err != nil {
		t.Errorf("a turn without an error fails with %v", err)
	}
}

// TestOtherPanicsAreNoFailures: a fault of the bench's ends the bench.
func TestOtherPanicsAreNoFailures(t *testing.T) {
	defer func() {
		if recover() != "fault" {
			t.Error("the panic was lost")
		}
	}()
	_ = newRun(t, 1).try(func(*run) { panic("fault") })
}

func TestFirstRoundIsNotCounted(t *testing.T) {
	r, sample := newRun(t, 2), 0.0
	r.eachRound(func(r *run) {
		sample++
		r.add("row", sample, 10*sample)
		r.addParts("row", sample, -sample)
		r.addPart("row", "found", sample)
	})
	row := r.row("row")
	all := append([]series{row.Ours, row.Beside[0]}, row.Parts...)
	want := [][]float64{{2, 3}, {20, 30}, {2, 3}, {-2, -3}, {2, 3}}
	if !slices.EqualFunc(all, want, func(s series, samples []float64) bool { return slices.Equal(s.Samples, samples) }) {
		t.Errorf("samples %+v", all)
	}
	err := caught(func() { r.eachRound(func(*run) { fail("no") }) })
	if err == nil || !strings.Contains(err.Error(), "round 0: no") {
		t.Errorf("a round fails with %v", err)
	}
}

func TestTurnsAreABBA(t *testing.T) {
	order := ""
	turn := func(name string, figures ...float64) subject {
		return func(r *run) []float64 {
			order += name
			r.after(func() error { order += "."; return nil })
			return []float64{figures[0], float64(len(order))}
		}
	}
	a, b := newRun(t, 1).abba(turn("A", 1), turn("B", 5))
	if order != "A.B.B.A." || !slices.Equal(a, []float64{1, 4}) || !slices.Equal(b, []float64{5, 4}) {
		t.Errorf("order %s, means %v and %v", order, a, b)
	}
}

func TestAwaitAsksUntilYes(t *testing.T) {
	asked := 0
	r := newRun(t, 1)
	r.await("it is so", time.Millisecond, time.Hour, func() bool { asked++; return asked == 3 })
	err := caught(func() { r.await("it is so", time.Hour, time.Nanosecond, func() bool { return false }) })
	if asked != 3 || err == nil || !strings.Contains(err.Error(), "wait until it is so") {
		t.Errorf("asked %d times, %v", asked, err)
	}
}
