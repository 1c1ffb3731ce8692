package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"
)

// run is the measurement of a group, or a turn of it. It fails as a test does: check ends it, and what it
// has put off with after is done in any case.
type run struct {
	*bench
	context.Context
	rows    []row
	warming bool // nothing is counted
	ends    []func() error
}

// failure is what check panics with.
type failure struct{ err error }

// check ends the run or turn if there is an error. What was being done, a verb phrase, goes before the error.
func check(err error, doing ...string) {
	if err == nil {
		return
	}
	for _, what := range doing {
		err = fmt.Errorf("%s: %w", what, err)
	}
	panic(failure{err})
}

// fail ends the run or turn with an error.
func fail(format string, args ...any) { check(fmt.Errorf(format, args...)) }

// must returns the value, and ends the run or turn if there is an error.
func must[T any](value T, err error) T {
	check(err)
	return value
}

// caught returns the error with which check ended do.
func caught(do func()) (err error) {
	defer func() {
		switch reason := recover().(type) {
		case nil:
		case failure:
			err = reason.err
		default:
			panic(reason)
		}
	}()
	do()
	return nil
}

// doing does something, and puts a verb phrase before the error with which check ends that.
func doing(what string, do func()) { check(caught(do), what) }

// try does a turn of the run, and then what the turn has put off, the last first. It returns why that failed.
func (r *run) try(turn func(*run)) (err error) {
	own := *r
	own.ends = nil
	defer func() {
		for _, end := range slices.Backward(own.ends) {
			err = errors.Join(err, end())
		}
	}()
	return caught(func() { turn(&own) })
}

// turn does a turn of the run, and then what the turn has put off.
func (r *run) turn(turn func(*run)) { check(r.try(turn)) }

// after puts off what ends something.
func (r *run) after(end func() error) { r.ends = append(r.ends, end) }

// eachRound measures once without counting, which warms caches and unpacks images, and then in each round.
func (r *run) eachRound(measure func(*run)) {
	for round := range r.rounds + 1 {
		r.say("round %d", round)
		err := r.try(func(r *run) {
			r.warming = round == 0
			measure(r)
		})
		check(err, fmt.Sprintf("round %d", round))
	}
}

// subject is what is measured in turns with others. It returns its figures.
type subject func(*run) []float64

// abba measures two subjects in the order A B B A, and returns the means of their figures. Linux starts one
// process after the other on one CPU after the other, and CPUs are not equally fast: on a virtual machine with
// two CPUs, one was slower by a fifth. In the order A B, every A would run on the slow CPU.
func (r *run) abba(a, b subject) (ofA, ofB []float64) {
	measure := func(s subject) (figures []float64) {
		r.turn(func(r *run) { figures = s(r) })
		return figures
	}
	mean := func(one, other []float64) []float64 {
		for i := range one {
			one[i] = (one[i] + other[i]) / 2
		}
		return one
	}
	first, second, third, last := measure(a), measure(b), measure(b), measure(a)
	return mean(first, last), mean(second, third)
}

// row returns a row of the group.
func (r *run) row(id string) *row {
	i := slices.IndexFunc(r.rows, func(row row) bool { return row.ID == id })
	return &r.rows[i]
}

// add adds a sample of ours to a row, and one of each that is beside it.
func (r *run) add(id string, ours float64, beside ...float64) {
	row, said := r.row(id), []string{fmt.Sprintf("%.4g", ours)}
	for _, sample := range beside {
		said = append(said, fmt.Sprintf("%.4g", sample))
	}
	r.say("%s: %s %s", id, strings.Join(said, ", "), row.Unit)
	if r.warming {
		return
	}
	row.Ours.add(ours)
	for i, sample := range beside {
		row.Beside[i].add(sample)
	}
}

// addParts adds a sample to each part of a row, in their order.
func (r *run) addParts(id string, samples ...float64) {
	for i, sample := range samples {
		r.addPart(id, r.row(id).Parts[i].Name, sample)
	}
}

// addPart adds a sample to a part of a row. A part that the row does not have yet is its last.
func (r *run) addPart(id, name string, sample float64) {
	if r.warming {
		return
	}
	row := r.row(id)
	i := slices.IndexFunc(row.Parts, func(s series) bool { return s.Name == name })
	if i < 0 {
		i, row.Parts = len(row.Parts), append(row.Parts, series{Name: name})
	}
	row.Parts[i].add(sample)
}

// await asks every so often until the answer is yes, and for no longer than patience.
func (r *run) await(what string, every, patience time.Duration, done func() bool) {
	ctx, cancel := context.WithTimeout(r, patience)
	defer cancel()
	for !done() {
		select {
		case <-time.After(every): // also if the answer took long: who asks without a pause loads what is asked
		case <-ctx.Done():
			check(ctx.Err(), "wait until "+what)
		}
	}
}

// pause waits, unless the run is interrupted.
func (r *run) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-r.Done():
		check(r.Err())
	}
}

// start starts a program, which is killed at the end of the run or turn.
func (r *run) start(cmd *exec.Cmd) {
	check(cmd.Start(), "start "+cmd.Path)
	r.after(func() error {
		if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("end %s: %w", cmd.Path, err)
		}
		_ = cmd.Wait() // its error says only that it was killed
		return nil
	})
}

// folder makes a folder in another one, or for "" among the machine's temporary files. Its name is short: paths of
// sockets may have 107 bytes. Others, libvirt's user among them, may read what is in it.
func (r *run) folder(in string) string {
	folder := must(os.MkdirTemp(in, "kubeqemu-"))
	r.after(func() error { return os.RemoveAll(folder) })
	check(os.Chmod(folder, 0o755))
	return folder
}

// lockThread keeps the run or turn on its thread: a QEMU ends with the thread that started it.
func (r *run) lockThread() {
	runtime.LockOSThread()
	r.after(func() error { runtime.UnlockOSThread(); return nil })
}
