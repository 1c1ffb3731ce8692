package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// starters are the programs that are timed from "start" to running guest CPUs.
type starters struct {
	b      *bench
	folder string
	warm   *libvirt // nil where libvirt is not installed
	cold   *libvirt
	parts  []series
}

// startParts say where the time goes.
func startParts() []series {
	return []series{{Name: "virt-launcher: until it reports that it prepares"}, {Name: "making the overlay, alone"},
		{Name: "bare QEMU: until its greeting"}, {Name: "bare QEMU: from there to running"}}
}

// startRows: told to start → guest CPUs running, interleaved.
func startRows(ctx context.Context, b *bench) ([]row, error) {
	r := row{ID: "start", What: "told to start → guest CPUs running", Unit: milliseconds,
		Ours: series{Name: "virt-launcher"}, Beside: []series{{Name: "bare QEMU, same arguments"}}, Limit: 1.08, OfRatio: true}
	// The name is short: libvirt makes sockets deep below it, whose paths may have 107 bytes.
	folder, err := os.MkdirTemp("", "kubeqemu-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	s := &starters{b: b, folder: folder, parts: startParts()}
	// libvirt's user reads the disk too, and is not root.
	if err := os.Chmod(folder, 0o755); err != nil {
		return nil, err
	}
	missing := s.prepareLibvirt(ctx)
	defer s.close()
	if missing != nil {
		b.say("NO LIBVIRT TO COMPARE WITH: %v", missing)
		r.Notes = append(r.Notes, "libvirt was not measured: "+missing.Error())
	} else {
		r.Beside = append(r.Beside, series{Name: "libvirt, warm"}, series{Name: "libvirt, nothing cached"})
	}
	// The first round warms the page cache and is not counted.
	for round := range b.rounds + 1 {
		times, err := s.round(ctx, round)
		if err != nil {
			return []row{r}, fmt.Errorf("round %d: %w", round, err)
		}
		b.say("start, round %d: %v", round, times)
		if round == 0 {
			s.parts = startParts()
			continue
		}
		r.Ours.Samples = append(r.Ours.Samples, inMilliseconds(times[0]))
		for i := range r.Beside {
			r.Beside[i].Samples = append(r.Beside[i].Samples, inMilliseconds(times[i+1]))
		}
	}
	r.Parts = s.parts
	return []row{r}, nil
}

func inMilliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (s *starters) prepareLibvirt(ctx context.Context) error {
	warm, err := newLibvirt(filepath.Join(s.folder, "warm"))
	if err != nil {
		return err
	}
	cold, err := newLibvirt(filepath.Join(s.folder, "cold"))
	if err != nil {
		return err
	}
	if err := warm.forget(); err != nil {
		return err
	}
	s.warm, s.cold = warm, cold
	return warm.start(ctx)
}

func (s *starters) close() {
	if s.warm != nil && s.warm.log != nil {
		s.warm.end()
	}
}

// round times virt-launcher and bare QEMU, in the order A B B A: where one CPU is slower than
// the other, Linux would else start all of A on the same CPU. It times libvirt once,
// warm and cold.
func (s *starters) round(ctx context.Context, number int) ([]time.Duration, error) {
	folder := filepath.Join(s.folder, fmt.Sprint(number))
	if err := os.Mkdir(folder, 0o755); err != nil {
		return nil, err
	}
	first, l, err := s.ours(ctx, filepath.Join(folder, "a"))
	if err != nil {
		return nil, err
	}
	var bare [2]bareTimes
	for i := range bare {
		if bare[i], err = timeBare(ctx, s.b.qemu, l.machine); err != nil {
			return nil, err
		}
	}
	second, l, err := s.ours(ctx, filepath.Join(folder, "b"))
	if err != nil {
		return nil, err
	}
	mean := func(a, b time.Duration) time.Duration { return (a + b) / 2 }
	for i, d := range []time.Duration{mean(first.preparing, second.preparing), mean(bare[0].overlay, bare[1].overlay),
		mean(bare[0].greeted, bare[1].greeted), mean(bare[0].running-bare[0].greeted, bare[1].running-bare[1].greeted)} {
		add(&s.parts[i], inMilliseconds(d))
	}
	times := []time.Duration{mean(first.running, second.running), mean(bare[0].running, bare[1].running)}
	if s.warm == nil {
		return times, nil
	}
	file := filepath.Join(folder, "domain.xml")
	if err := writeDomain(ctx, l.machine, file); err != nil {
		return nil, err
	}
	warm, err := s.warm.create(file)
	if err == nil {
		err = s.warm.destroy()
	}
	if err != nil {
		return nil, err
	}
	cold, err := s.cold.timeCold(ctx, file)
	return append(times, warm, cold), err
}

// ours times virt-launcher in a folder of its own, and ends it.
func (s *starters) ours(ctx context.Context, folder string) (started, *launched, error) {
	if err := os.Mkdir(folder, 0o755); err != nil {
		return started{}, nil, err
	}
	l, err := launch(ctx, s.b, folder)
	if err != nil {
		return started{}, nil, err
	}
	times, err := l.start(ctx)
	return times, l, errors.Join(err, l.end())
}
