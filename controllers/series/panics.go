package series

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// maxPanicked bounds the guests whose panics are counted. A VM that starts again after a panic has the same name, so a count must outlive its VMI. A
// tenant can make VMs of ever new names.
const maxPanicked = 1024

// panics counts how often the kernels of guests have panicked.
type panics struct {
	counter *prometheus.CounterVec
	mu      sync.Mutex
	last    []types.NamespacedName // the guests that are counted, in the order of their last panics
}

func newPanics() *panics {
	return &panics{counter: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubevirt_vmi_guest_os_panic_total",
		Help: "How often the guest's kernel has told that it panicked."}, []string{"namespace", "name"})}
}

// hasPanicked says whether a VMI has ended because its guest's kernel panicked.
func hasPanicked(vmi *v1.VirtualMachineInstance) bool {
	ready := vmi.Status.Condition(v1.ConditionReady)
	return vmi.IsFinal() && ready != nil && ready.Reason == string(control.ReasonGuestPanic)
}

// note counts a panic. Where there are too many guests, the one whose last panic was longest ago is forgotten.
func (p *panics) note(vmi *v1.VirtualMachineInstance) {
	p.mu.Lock()
	defer p.mu.Unlock()
	of := types.NamespacedName{Namespace: vmi.Namespace, Name: vmi.Name}
	for i, known := range p.last {
		if known == of {
			p.last = append(p.last[:i], p.last[i+1:]...)
			break
		}
	}
	if p.last = append(p.last, of); len(p.last) > maxPanicked {
		p.counter.DeleteLabelValues(p.last[0].Namespace, p.last[0].Name)
		p.last = p.last[1:]
	}
	p.counter.WithLabelValues(of.Namespace, of.Name).Inc()
}
