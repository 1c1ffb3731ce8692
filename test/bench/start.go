package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// starters are what races from "start" to running guest CPUs.
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
		Ours: series{Name: "virt-launcher"}, Beside: []series{{Name: "bare QEMU, same arguments"}}, Limit: 1.25, OfRatio: true}
	// A short name: libvirt makes sockets deep below it, whose paths may have 107 bytes.
	folder, err := os.MkdirTemp("", "kubeqemu-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	s := &starters{b: b, folder: folder, parts: startParts()}
	// Others than root read the disk.
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

// round times each once: virt-launcher, bare QEMU, libvirt warm, libvirt cold.
func (s *starters) round(ctx context.Context, number int) ([]time.Duration, error) {
	folder := filepath.Join(s.folder, fmt.Sprint(number))
	if err := os.Mkdir(folder, 0o755); err != nil {
		return nil, err
	}
	l, err := launch(ctx, s.b, folder)
	if err != nil {
		return nil, err
	}
	ours, err := l.start(ctx)
	if err := errors.Join(err, l.end()); err != nil {
		return nil, err
	}
	bare, err := timeBare(ctx, s.b.qemu, l.machine)
	if err != nil {
		return nil, err
	}
	for i, d := range []time.Duration{ours.preparing, bare.overlay, bare.greeted, bare.running - bare.greeted} {
		add(&s.parts[i], inMilliseconds(d))
	}
	times := []time.Duration{ours.running, bare.running}
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
