package pool

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeqemu/kubeqemu/api/pool/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// burst bounds each list of a plan, as KubeVirt's burstReplicas.
const burst = 250

// plan is the next step of a pool towards its spec.
type plan struct {
	// create are indices of new VirtualMachines.
	create []int
	delete []*v1.VirtualMachine
	// renew are those that get the present template.
	renew []*v1.VirtualMachine
	// restart are those whose guests are to be restarted.
	restart []*v1.VirtualMachine
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

// decide plans for a pool, given all VirtualMachines of its namespace. It is pure, and depends
// on nothing else.
func decide(pool *v1beta1.VirtualMachinePool, vms []*v1.VirtualMachine, revision string) plan {
	mine := owned(pool, vms)
	alive := slices.DeleteFunc(slices.Clone(mine), func(vm *v1.VirtualMachine) bool { return vm.DeletionTimestamp != nil })
	var p plan
	if deletes, order := pool.Spec.DeletesSurplus(); deletes {
		surplus := min(max(len(alive)-pool.WantedReplicas(), 0), burst)
		slices.SortFunc(alive, by(pool, order))
		p.delete, alive = alive[:surplus], alive[surplus:]
	}
	// A VirtualMachine that is being deleted counts, and keeps its name, until it is gone.
	p.create = free(pool, vms, min(max(pool.WantedReplicas()-len(mine), 0), burst))
	if !pool.Spec.Updates() {
		return p
	}
	var current []*v1.VirtualMachine
	for _, vm := range alive {
		switch _, named := indexOf(pool, vm.Name); {
		case !named:
		case vm.Labels[v1beta1.RevisionLabel] == revision:
			current = append(current, vm)
		case len(p.renew) < burst:
			p.renew = append(p.renew, vm)
		}
	}
	if restarts, order := pool.Spec.Restarts(); restarts {
		slices.SortFunc(current, by(pool, order))
		p.restart = restart(current, pool.MayBeUnavailable()-unavailable(alive))
	}
	return p
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
func restart(vms []*v1.VirtualMachine, room int) []*v1.VirtualMachine {
	var chosen []*v1.VirtualMachine
	for _, vm := range vms {
		switch {
		case !outdated(vm) || len(vm.Status.StateChangeRequests) > 0:
		case !available(vm):
			chosen = append(chosen, vm)
		case room > 0:
			chosen = append(chosen, vm)
			room--
		}
	}
	return chosen[:min(len(chosen), burst)]
}

// outdated says whether a guest runs by an older template, and may be restarted. With Once a
// guest never starts again. With Halted a Start would undo the strategy.
func outdated(vm *v1.VirtualMachine) bool {
	c := vm.Status.Condition(v1.ConditionRestartRequired)
	strategy := vm.Strategy()
	return c != nil && c.Status == metav1.ConditionTrue && strategy != v1.RunStrategyOnce && strategy != v1.RunStrategyHalted
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
