package pool

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeqemu/kubeqemu/api/pool/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/group"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// plan is the next step of a pool towards its spec.
type plan struct {
	// create are indices of new VirtualMachines.
	create []int
	delete []*v1.VirtualMachine
	// renew are those that get the present template.
	renew []*v1.VirtualMachine
	// restart are those whose guests are to be restarted.
	restart []*v1.VirtualMachine
	// again is when to reconcile again without an event; 0 for never.
	again time.Duration
}

func (p plan) acts() bool {
	return len(p.create)+len(p.delete)+len(p.renew)+len(p.restart) > 0
}

// owned are the pool's VirtualMachines among those of its namespace.
func owned(pool *v1beta1.VirtualMachinePool, vms []*v1.VirtualMachine) []*v1.VirtualMachine {
	var mine []*v1.VirtualMachine
	for _, vm := range vms {
		if controls(pool, vm) {
			mine = append(mine, vm)
		}
	}
	return mine
}

// guests are the VirtualMachineInstances of a namespace, by name.
type guests map[string]*v1.VirtualMachineInstance

// decide plans for a pool, given all VirtualMachines and guests of its namespace. It is pure, and depends
// on nothing else.
func decide(pool *v1beta1.VirtualMachinePool, vms []*v1.VirtualMachine, running guests, revision string, now time.Time) plan {
	mine := owned(pool, vms)
	alive := slices.DeleteFunc(slices.Clone(mine), func(vm *v1.VirtualMachine) bool { return vm.DeletionTimestamp != nil })
	var p plan
	if deletes, order := pool.Spec.DeletesSurplus(); deletes {
		surplus := min(max(len(alive)-pool.WantedReplicas(), 0), group.Burst)
		slices.SortFunc(alive, by(pool, order))
		p.delete, alive = alive[:surplus], alive[surplus:]
	}
	// A VirtualMachine that is being deleted counts, and keeps its name, until it is gone.
	count, again := room(pool, mine, now)
	p.create, p.again = free(pool, vms, count), again
	if !pool.Spec.Updates() {
		return p
	}
	var current []*v1.VirtualMachine
	for _, vm := range alive {
		switch _, named := indexOf(pool, vm.Name); {
		case !named:
		case vm.Labels[v1beta1.RevisionLabel] == revision:
			current = append(current, vm)
		case len(p.renew) < group.Burst:
			p.renew = append(p.renew, vm)
		}
	}
	if restarts, order := pool.Spec.Restarts(); restarts {
		slices.SortFunc(current, by(pool, order))
		p.restart = restart(current, running, pool.MayBeUnavailable()-unavailable(alive))
	}
	return p
}

// room returns how many VirtualMachines are made now, and when there may be room for more without an event; 0 is never. Those that are to start are made
// few at a time.
func room(pool *v1beta1.VirtualMachinePool, mine []*v1.VirtualMachine, now time.Time) (count int, again time.Duration) {
	wanted := pool.WantedReplicas() - len(mine)
	template := v1.VirtualMachine{Spec: pool.Spec.VirtualMachineTemplate.Spec}
	if strategy := template.Strategy(); strategy == v1.RunStrategyHalted || strategy == v1.RunStrategyManual {
		return min(max(wanted, 0), group.Burst), 0
	}
	running := 0
	var coming []time.Time
	for _, vm := range mine {
		switch {
		case vm.DeletionTimestamp != nil:
		case starts(vm):
			coming = append(coming, vm.CreationTimestamp.Time)
		case vm.Status.Created:
			running++
		}
	}
	waited, again := group.Starting(coming, now)
	if count = group.Room(wanted, running, waited); count >= wanted {
		return count, 0
	}
	return count, again
}

// starts reports whether a VirtualMachine is to run, and its guest never ran yet or has ended.
func starts(vm *v1.VirtualMachine) bool {
	switch vm.Status.PrintableStatus {
	case v1.VirtualMachineStatusRunning, v1.VirtualMachineStatusPaused, v1.VirtualMachineStatusMigrating, v1.VirtualMachineStatusStopping, v1.VirtualMachineStatusTerminating:
		return false
	case v1.VirtualMachineStatusStopped: // after a guest's end, but with Always
		return vm.Strategy() == v1.RunStrategyAlways
	}
	return vm.Strategy() != v1.RunStrategyHalted && vm.Strategy() != v1.RunStrategyManual
}

// free are the lowest indices whose names no VirtualMachine has.
func free(pool *v1beta1.VirtualMachinePool, vms []*v1.VirtualMachine, count int) []int {
	taken := map[string]bool{}
	for _, vm := range vms {
		taken[vm.Name] = true
	}
	var indices []int
	for i := 0; len(indices) < count; i++ {
		if !taken[machineName(pool, i)] {
			indices = append(indices, i)
		}
	}
	return indices
}

// restart chooses, in their order, VirtualMachines whose guests run by an older template. room
// is how many available ones may be chosen. A VirtualMachine that is not available loses
// nothing.
func restart(vms []*v1.VirtualMachine, running guests, room int) []*v1.VirtualMachine {
	var chosen []*v1.VirtualMachine
	for _, vm := range vms {
		switch {
		case !outdated(vm, running[vm.Name]) || len(vm.Status.StateChangeRequests) > 0:
		case !available(vm):
			chosen = append(chosen, vm)
		case room > 0:
			chosen = append(chosen, vm)
			room--
		}
	}
	return chosen[:min(len(chosen), group.Burst)]
}

// outdated says whether a guest runs by an older template, and may be restarted. With Once a
// guest never starts again. With Halted a Start would undo the strategy. vmi is the VM's guest, or nil.
func outdated(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) bool {
	if strategy := vm.Strategy(); strategy == v1.RunStrategyOnce || strategy == v1.RunStrategyHalted {
		return false
	}
	c := vm.Status.Condition(v1.ConditionRestartRequired)
	return c != nil && c.Status == metav1.ConditionTrue || relabelled(vm, vmi)
}

// relabelled reports whether a guest has other labels or annotations than its VM's template. A VM by itself needs no
// restart for that. A pool restarts the guest.
func relabelled(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) bool {
	return vmi != nil && !vmi.IsFinal() && vmi.DeletionTimestamp == nil && owner.Controls(v1.VirtualMachineGroupVersionKind.GroupKind(), vm, vmi) && !vm.HasMetadata(vmi)
}

// unavailable counts VirtualMachines whose guests should run and do not. A VirtualMachine that
// its owner stopped does not count, so that it does not keep others from being updated.
func unavailable(vms []*v1.VirtualMachine) int {
	count := 0
	for _, vm := range vms {
		wanted := vm.Status.Created || vm.Strategy() == v1.RunStrategyAlways || len(vm.Status.StateChangeRequests) > 0
		if wanted && !available(vm) {
			count++
		}
	}
	return count
}

// available says whether the guest runs, and no request is about to end it.
func available(vm *v1.VirtualMachine) bool {
	return vm.Status.Ready && vm.Status.PrintableStatus != v1.VirtualMachineStatusStopping && len(vm.Status.StateChangeRequests) == 0
}

// by compares VirtualMachines by an order. Random is the order of a hash of the UID: nobody
// chose it, and yet each reconcile finds the same order.
func by(pool *v1beta1.VirtualMachinePool, order v1beta1.VirtualMachinePoolSortPolicy) func(a, b *v1.VirtualMachine) int {
	index := func(vm *v1.VirtualMachine) int { i, _ := indexOf(pool, vm.Name); return i }
	age := func(a, b *v1.VirtualMachine) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(index(a), index(b)), strings.Compare(a.Name, b.Name))
	}
	switch order {
	case v1beta1.SortAscending:
		return func(a, b *v1.VirtualMachine) int { return cmp.Or(cmp.Compare(index(a), index(b)), age(a, b)) }
	case v1beta1.SortDescending:
		return func(a, b *v1.VirtualMachine) int { return cmp.Or(cmp.Compare(index(b), index(a)), age(a, b)) }
	case v1beta1.SortOldest:
		return age
	case v1beta1.SortNewest:
		return func(a, b *v1.VirtualMachine) int { return age(b, a) }
	}
	return func(a, b *v1.VirtualMachine) int {
		return cmp.Or(strings.Compare(lot(a.UID), lot(b.UID)), strings.Compare(a.Name, b.Name))
	}
}

func lot(uid types.UID) string {
	sum := sha256.Sum256([]byte(uid))
	return string(sum[:])
}
