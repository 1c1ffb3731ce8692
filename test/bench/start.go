package main

import (
	"path/filepath"
	"time"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

func inMilliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// measureStart times virt-launcher and bare QEMU in the order A B B A, and libvirt once, warm and cold.
func measureStart(r *run) {
	folder, row := r.folder(""), r.row("start")
	var warm, cold *libvirt
	missing := caught(func() {
		warm, cold = newLibvirt(filepath.Join(folder, "warm")), newLibvirt(filepath.Join(folder, "cold"))
		warm.forget()
		warm.start(r)
	})
	if missing != nil {
		r.say("NO LIBVIRT TO COMPARE WITH: %v", missing)
		row.Notes = append(row.Notes, "libvirt was not measured: "+missing.Error())
		row.Beside = row.Beside[:1]
	}
	r.eachRound(func(round *run) {
		var machine *qemuargs.Machine
		launcher, bare := round.abba(func(r *run) []float64 {
			// Its files are there for the others too.
			l := launch(r, round.folder(folder), idleBootSector())
			machine = l.machine
			preparing, running := l.start(r)
			return []float64{inMilliseconds(running), inMilliseconds(preparing)}
		}, func(r *run) []float64 { return timeBare(r, machine) })
		beside := []float64{bare[0]}
		if missing == nil {
			file := writeDomain(machine, folder)
			beside = append(beside, inMilliseconds(warm.create(file)))
			warm.destroy()
			beside = append(beside, inMilliseconds(cold.timeCold(round, file)))
		}
		round.add("start", launcher[0], beside...)
		round.addParts("start", launcher[1], bare[1], bare[2], bare[0]-bare[2])
	})
}

// timeBare times QEMU from exec to running, the making of the overlay before that, and QEMU from exec to its greeting.
func timeBare(r *run, m *qemuargs.Machine) []float64 {
	r.lockThread()
	begin := time.Now()
	makeOverlay(m)
	overlay := time.Since(begin)
	begin = time.Now()
	q := execBare(r, m, nil)
	greeted := time.Since(begin)
	q.run()
	return []float64{inMilliseconds(time.Since(begin)), inMilliseconds(overlay), inMilliseconds(greeted)}
}
