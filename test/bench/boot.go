package main

import (
	"time"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// userSpace is what the guest's first process writes to its console. The kernel
// ends after it.
const userSpace = "this-is-user-space"

// measureBoot measures from exec of QEMU to the guest's first process, with the arguments of a Machine
// and with as few arguments as will do.
func measureBoot(r *run) {
	m := tinyMachine(r, r.folder(""), kernelArgs+" rdinit=/bin/echo -- "+userSpace, nil)
	r.eachRound(func(r *run) {
		ours, plain := r.abba(
			func(r *run) []float64 { return bootMachine(r, m) },
			func(r *run) []float64 { return bootPlain(r, m) })
		r.add("boot", ours[0], plain[0])
	})
}

// bootMachine times a Machine's guest.
func bootMachine(r *run, m *qemuargs.Machine) []float64 {
	r.lockThread()
	makeOverlay(m)
	begin := time.Now()
	q := execBare(r, m, nil)
	q.run()
	until(q.serial, userSpace)
	return []float64{time.Since(begin).Seconds()}
}

// bootPlain times the same kernel with nothing but memory and a serial port.
func bootPlain(r *run, m *qemuargs.Machine) []float64 {
	r.lockThread()
	begin := time.Now()
	until(startPlain(r, m), userSpace)
	return []float64{time.Since(begin).Seconds()}
}
