package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// manyVMs is how many idle VMs are measured after the first one.
const manyVMs = 10

// idleRows: all that is not guest RAM around one and ten idle VMs on the cluster, beside the
// memory that is booked.
func idleRows(ctx context.Context, b *bench) ([]row, error) {
	one := idleRow("around-one", "not guest RAM, one idle VM on the cluster, private")
	ten := idleRow("around-ten", fmt.Sprintf("the same, each of %d idle VMs", manyVMs))
	rows := []row{one, ten}
	kube, err := b.kube()
	if err != nil {
		return rows, err
	}
	defer remove(ctx, "vmi")
	for i := range manyVMs {
		vmi := guestVMI(fmt.Sprintf("idle-%d", i), tinyImage)
		vmi.Namespace = benchNamespace
		if err := apply(ctx, vmi); err != nil {
			return rows, err
		}
		if i == 0 {
			if err := measureIdle(ctx, kube, &rows[0], 1); err != nil {
				return rows, err
			}
			b.say("one idle VM: %.1f MiB private", rows[0].Ours.summary().Median)
		}
	}
	if err := measureIdle(ctx, kube, &rows[1], manyVMs); err != nil {
		return rows, err
	}
	b.say("%d idle VMs: %.1f MiB private each", manyVMs, rows[1].Ours.summary().Median)
	busy, err := plane(ctx, b, "control-plane-ten", fmt.Sprintf("control plane with %d idle VMs, PSS", manyVMs))
	return append(rows, busy), err
}

func idleRow(id, what string) row {
	return row{ID: id, What: what, Unit: mebibytes, Ours: series{Name: "QEMU and virt-launcher"},
		Beside: []series{{Name: "booked", Reference: true}},
		Parts: []series{{Name: "QEMU, private"}, {Name: "of that, code translated by TCG"}, {Name: "virt-launcher, private"}, {Name: "RSS of both"}, {Name: "virt-launcher, RSS"}, {Name: "page tables of both, besides"},
			{Name: "guest RAM in use, besides"}, {Name: "Kubernetes' shim and pause, private, besides"}}}
}

// vmProcesses are the processes of one VM.
type vmProcesses struct{ qemu, launcher, shim, pause process }

func measureIdle(ctx context.Context, kube client.Client, r *row, count int) error {
	found, err := idleVMs(ctx, kube, count)
	if err != nil {
		return err
	}
	for _, vm := range found {
		if err := vm.measure(r); err != nil {
			return err
		}
	}
	var pods corev1.PodList
	if err := kube.List(ctx, &pods, client.InNamespace(benchNamespace)); err != nil {
		return err
	}
	for _, pod := range pods.Items {
		request := pod.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory]
		add(&r.Beside[0], mib(request.Value()-guestMemory))
	}
	r.Limit = r.Beside[0].summary().Median
	return nil
}

func (vm vmProcesses) measure(r *row) error {
	q, err := memoryOf(vm.qemu.PID, guestMemory)
	if err != nil {
		return err
	}
	var others [3]memory
	for i, p := range []process{vm.launcher, vm.shim, vm.pause} {
		if others[i], err = memoryOf(p.PID, 0); err != nil {
			return err
		}
	}
	l := others[0]
	add(&r.Ours, mib(q.private()+l.private()))
	for i, bytes := range []int64{q.private(), q.TranslatedCode, l.private(), q.RSS + l.RSS, l.RSS, q.PageTables + l.PageTables, q.GuestRAMAllocated, others[1].private() + others[2].private()} {
		add(&r.Parts[i], mib(bytes))
	}
	return nil
}

// idleVMs waits until all VMIs run and their QEMUs have nothing to do.
func idleVMs(ctx context.Context, kube client.Client, count int) ([]vmProcesses, error) {
	var vmis v1.VirtualMachineInstanceList
	// Emulated guests that boot leave little of the CPUs to the next start.
	err := poll(ctx, time.Duration(count)*patience/2+patience, func() (bool, error) {
		if err := kube.List(ctx, &vmis, client.InNamespace(benchNamespace)); err != nil {
			return false, err
		}
		running := 0
		for _, vmi := range vmis.Items {
			if vmi.Status.Phase == v1.Running {
				running++
			}
		}
		return running == count, nil
	})
	if err != nil {
		return nil, fmt.Errorf("wait until %d VMIs are Running: %w", count, err)
	}
	// Emulated guests boot all at once, which takes long. A guest that does not run yet looks
	// idle too.
	if err := booted(ctx, count); err != nil {
		return nil, err
	}
	all, err := processes()
	if err != nil {
		return nil, err
	}
	var found []vmProcesses
	for _, vmi := range vmis.Items {
		vm, err := processesOfVM(all, &vmi)
		if err != nil {
			return nil, err
		}
		found = append(found, vm)
	}
	deadline := time.Now().Add(2 * time.Minute)
	for {
		quiet, err := quietFor(ctx, found, 3*time.Second)
		switch {
		case err != nil:
			return nil, err
		case quiet:
			// virt-launcher gives back the memory that it has freed.
			return found, pause(ctx, 5*time.Second)
		case time.Now().After(deadline):
			return nil, errors.New("wait until the guests are idle: they are not")
		}
	}
}

// guestIsUp is what the tiny guest writes to its serial port.
const guestIsUp = "tiny: up"

func booted(ctx context.Context, count int) error {
	err := poll(ctx, time.Duration(count)*patience, func() (bool, error) {
		logs, err := command(ctx, nil, "kubectl", "-n", benchNamespace, "logs", "--selector=kubevirt.io=virt-launcher", "--tail=-1", "--max-log-requests=20")
		return strings.Count(logs, guestIsUp) == count, err
	})
	if err != nil {
		return fmt.Errorf("wait until %d guests have booted: %w", count, err)
	}
	return nil
}

// processesOfVM finds a VM's QEMU by its -uuid, and the others from there.
func processesOfVM(all []process, vmi *v1.VirtualMachineInstance) (vmProcesses, error) {
	var vm vmProcesses
	find := func(match func(process) bool) (process, error) {
		i := slices.IndexFunc(all, match)
		if i < 0 {
			return process{}, fmt.Errorf("find the processes of VMI %s: one is missing", vmi.Name)
		}
		return all[i], nil
	}
	if vmi.Spec.Domain.Firmware == nil {
		return vm, fmt.Errorf("find the QEMU of VMI %s: it has no firmware.uuid", vmi.Name)
	}
	uuid := vmi.Spec.Domain.Firmware.UUID
	var err error
	if vm.qemu, err = find(func(p process) bool { return strings.HasPrefix(p.Name, "qemu") && slices.Contains(p.Args, uuid) }); err != nil {
		return vm, err
	}
	if vm.launcher, err = find(func(p process) bool { return p.PID == vm.qemu.Parent }); err != nil {
		return vm, err
	}
	if vm.shim, err = find(func(p process) bool { return p.PID == vm.launcher.Parent }); err != nil {
		return vm, err
	}
	vm.pause, err = find(func(p process) bool { return p.Parent == vm.shim.PID && p.Name == "pause" })
	return vm, err
}

// quietFor says whether each QEMU used less than a fifth of a CPU for a while.
func quietFor(ctx context.Context, vms []vmProcesses, d time.Duration) (bool, error) {
	before, err := cpuTimes(vms)
	if err == nil {
		err = pause(ctx, d)
	}
	if err != nil {
		return false, err
	}
	after, err := cpuTimes(vms)
	for i := range after {
		if after[i]-before[i] > d/5 {
			return false, err
		}
	}
	return true, err
}

// cpuTimes of the QEMUs, user and system.
func cpuTimes(vms []vmProcesses) ([]time.Duration, error) {
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every architecture here
	var times []time.Duration
	for _, vm := range vms {
		data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(vm.qemu.PID), "stat"))
		if err != nil {
			return nil, fmt.Errorf("read QEMU's CPU time: %w", err)
		}
		_, text, _ := strings.Cut(string(data), ") ")
		fields := strings.Fields(text)
		if len(fields) < 13 {
			return nil, fmt.Errorf("read QEMU's CPU time: %q", data)
		}
		user, err := strconv.Atoi(fields[11])
		if err != nil {
			return nil, err
		}
		system, err := strconv.Atoi(fields[12])
		if err != nil {
			return nil, err
		}
		times = append(times, time.Duration(user+system)*tick)
	}
	return times, nil
}
