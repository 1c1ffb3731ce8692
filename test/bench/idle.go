package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// manyVMs is how many idle VMs are measured after the first one.
const manyVMs = 10

// measureIdle measures all that is not guest RAM around one and ten idle VMs on the cluster, beside the
// memory that is booked.
func measureIdle(r *run) {
	kube := r.kube()
	r.removeAfter("vmi")
	for i := range manyVMs {
		check(apply(r, guestVMI(benchNamespace, fmt.Sprintf("idle-%d", i), tinyImage)))
		if i == 0 {
			r.addIdle("around-one", kube, 1)
		}
	}
	r.addIdle("around-ten", kube, manyVMs)
	r.addPlane("control-plane-ten")
}

// addIdle adds a sample of each VM. What is booked is the budget.
func (r *run) addIdle(id string, kube client.Client, count int) {
	vms, pods := idleVMs(r, kube, count), r.pods(kube, benchNamespace)
	if len(pods) != len(vms) {
		fail("find what is booked: %d VMs have %d pods", len(vms), len(pods))
	}
	for i, vm := range vms {
		q, l := memoryOf(vm.qemu.PID, guestMemory), memoryOf(vm.launcher.PID, 0)
		shim, pause := memoryOf(vm.shim.PID, 0), memoryOf(vm.pause.PID, 0)
		request := pods[i].Spec.Containers[0].Resources.Requests[corev1.ResourceMemory]
		r.add(id, mib(q.private()+l.private()), mib(request.Value()-guestMemory))
		r.addParts(id, mibs(q.private(), q.TranslatedCode, l.private(), q.RSS+l.RSS, l.RSS, q.PageTables+l.PageTables,
			q.GuestRAMAllocated, shim.private()+pause.private())...)
	}
	r.row(id).Limit = r.row(id).Beside[0].summary().Median
}

// vmProcesses are the processes of one VM.
type vmProcesses struct{ qemu, launcher, shim, pause process }

// idleVMs waits until all VMIs run and their QEMUs have nothing to do.
func idleVMs(r *run, kube client.Client, count int) (vms []vmProcesses) {
	const often = 50 * time.Millisecond
	var vmis []v1.VirtualMachineInstance
	// Emulated guests that boot leave little of the CPUs to the next start.
	r.await(fmt.Sprintf("%d VMIs are Running", count), often, time.Duration(count)*patience/2+patience, func() bool {
		var running int
		vmis, running = r.vmis(kube, benchNamespace)
		return running == count
	})
	// Emulated guests boot all at once, which takes long. A guest that does not run yet looks
	// idle too.
	r.await(fmt.Sprintf("%d guests have booted", count), often, time.Duration(count)*patience, func() bool {
		logs := must(kubectl(r, "logs", "--selector=kubevirt.io=virt-launcher", "--tail=-1", "--max-log-requests=20"))
		return strings.Count(logs, "tiny: up") == count
	})
	all := processes()
	for _, vmi := range vmis {
		vms = append(vms, processesOfVM(all, &vmi))
	}
	r.await("the guests are idle", time.Millisecond, 2*time.Minute, func() bool { return quietFor(r, vms, 3*time.Second) })
	// virt-launcher gives back the memory that it has freed.
	r.pause(5 * time.Second)
	return vms
}

// processesOfVM finds a VM's QEMU by its -uuid, and the others from there.
func processesOfVM(all []process, vmi *v1.VirtualMachineInstance) (vm vmProcesses) {
	find := func(match func(process) bool) process {
		i := slices.IndexFunc(all, match)
		if i < 0 {
			fail("find the processes of VMI %s: one is missing", vmi.Name)
		}
		return all[i]
	}
	if vmi.Spec.Domain.Firmware == nil {
		fail("find the QEMU of VMI %s: it has no firmware.uuid", vmi.Name)
	}
	uuid := vmi.Spec.Domain.Firmware.UUID
	vm.qemu = find(func(p process) bool { return strings.HasPrefix(p.Name, "qemu") && slices.Contains(p.Args, uuid) })
	vm.launcher = find(func(p process) bool { return p.PID == vm.qemu.Parent })
	vm.shim = find(func(p process) bool { return p.PID == vm.launcher.Parent })
	vm.pause = find(func(p process) bool { return p.Parent == vm.shim.PID && p.Name == "pause" })
	return vm
}

// quietFor reports whether each QEMU used less than a fifth of a CPU for a while.
func quietFor(r *run, vms []vmProcesses, d time.Duration) bool {
	var before []time.Duration
	for _, vm := range vms {
		before = append(before, vm.qemu.cpuTime())
	}
	r.pause(d)
	for i, vm := range vms {
		if vm.qemu.cpuTime()-before[i] > d/5 {
			return false
		}
	}
	return true
}
