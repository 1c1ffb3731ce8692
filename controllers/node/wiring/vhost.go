package wiring

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/netsetup"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// vhostHandovers is how often one launcher of a VMI gets files of vhost-net. A start is
// repeated after a failure. A hostile launcher could keep the files, say that its start failed,
// and ask again: each file holds kernel memory that counts as nobody's (vhost_net_open in
// drivers/vhost/net.c). Its next start then has QEMU move the packets.
const vhostHandovers = 3

// vhostCounts counts, for each VMI, how often its newest launcher got files of vhost-net. The files of an earlier
// launcher end with its pod.
type vhostCounts struct {
	mu sync.Mutex
	by map[types.NamespacedName]vhostCount
}

type vhostCount struct {
	to    string // the launcher's pod, whose name tells the VMI's UID; another pod begins anew
	times int
}

// left reports whether a launcher of a VMI may get files once more.
func (h *vhostCounts) left(vmi *v1.VirtualMachineInstance, pod string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.by[client.ObjectKeyFromObject(vmi)]
	return before.to != pod || before.times < vhostHandovers
}

// note notes that a launcher of a VMI gets files.
func (h *vhostCounts) note(vmi *v1.VirtualMachineInstance, pod string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.by == nil {
		h.by = map[types.NamespacedName]vhostCount{}
	}
	name := client.ObjectKeyFromObject(vmi)
	now := h.by[name]
	if now.to != pod {
		now = vhostCount{to: pod}
	}
	now.times++
	h.by[name] = now
}

// forget forgets a VMI that is gone.
func (h *vhostCounts) forget(name types.NamespacedName) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.by, name)
}

// HasVhostNet reports whether the node's kernel can move the packets of a guest of a launcher.
func (w *Wirer) HasVhostNet(vmi *v1.VirtualMachineInstance, launcher *sessions.Session, by qemuargs.Accelerator) bool {
	return w.vhostCounts.left(vmi, launcher.Pod.Name) && w.OffersVhostNet(by)
}

// OffersVhostNet reports whether the node's kernel can move guests' packets. Opening the device loads the kernel's
// module, so a node that emulates is not asked.
func (w *Wirer) OffersVhostNet(by qemuargs.Accelerator) bool {
	if by != qemuargs.KVM || w.OpenVhostNet == nil {
		return false
	}
	files, err := w.OpenVhostNet(1)
	netsetup.CloseAll(files)
	return err == nil
}
