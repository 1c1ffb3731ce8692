package resolve

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// version90 is the first QEMU that shares a disk's queues out among threads.
var version90 = version{9, 0}

// ioThreads gives the disks on bus virtio, and the SCSI controller, their threads, as KubeVirt does.
func ioThreads(vmi *v1.VirtualMachineInstance, host Host, m *qemuargs.Machine) *field.Error {
	domain := &vmi.Spec.Domain
	policy := ptr.Deref(domain.IOThreadsPolicy, "")
	dedicated := func(d v1.Disk) bool { return ptr.Deref(d.DedicatedIOThread, false) }
	if policy == v1.IOThreadsPolicySupplementalPool {
		return pool(int(ptr.Deref(domain.IOThreads.SupplementalPoolThreadCount, 0)), domain, host, m)
	}
	if policy == "" && !slices.ContainsFunc(domain.Devices.Disks, dedicated) {
		return nil
	}
	shared, own := 0, 0
	for i, d := range domain.Devices.Disks {
		switch {
		case dedicated(d):
			own++
		case m.Disks[i].IsVirtio():
			shared++
		}
	}
	if m.SCSI != nil {
		shared = max(shared, 1)
	}
	shared = min(shared, max(threadLimit(domain)-own, 1))
	if shared+own > v1.MaxIOThreads {
		return field.Invalid(field.NewPath("spec", "domain", "devices", "disks"), "", fmt.Sprintf("%d disks have a thread of their own (dedicatedIOThread); a machine has %d threads for disks at most", own, v1.MaxIOThreads))
	}
	threads := addThreads(m, shared+own)
	turn, next := 0, shared
	for i, d := range domain.Devices.Disks {
		switch {
		case dedicated(d):
			m.Disks[i].IOThread, next = threads[next], next+1
		case m.Disks[i].IsVirtio():
			m.Disks[i].IOThread, turn = threads[turn], (turn+1)%shared
		}
	}
	if m.SCSI != nil {
		m.SCSI.IOThread = threads[0]
	}
	spareRoom(domain, m)
	return nil
}

// spareRoom leaves native I/O to disks that ask for it, if there are several threads: each takes 1024 of the node's
// fs.aio-max-nr, which all pods share.
func spareRoom(domain *v1.DomainSpec, m *qemuargs.Machine) {
	if len(m.IOThreads) < 2 {
		return
	}
	for i, d := range domain.Devices.Disks {
		if m.Disks[i].AIO == qemuargs.Native && d.IO == "" {
			m.Disks[i].AIO = ""
		}
	}
}

// threadLimit returns how many threads there are in all before disks must share: with the policy auto two for each CPU
// that the pod requests, or else may use; otherwise one.
func threadLimit(domain *v1.DomainSpec) int {
	if ptr.Deref(domain.IOThreadsPolicy, "") != v1.IOThreadsPolicyAuto {
		return 1
	}
	cpus := int64(1)
	if request, ok := domain.Resources.Requests[corev1.ResourceCPU]; ok {
		cpus = request.Value()
	} else if limit, ok := domain.Resources.Limits[corev1.ResourceCPU]; ok {
		cpus = limit.Value()
	}
	return int(2 * min(max(cpus, 1), v1.MaxIOThreads/2))
}

// pool makes all threads serve each disk on bus virtio.
func pool(count int, domain *v1.DomainSpec, host Host, m *qemuargs.Machine) *field.Error {
	qemu, err := release(host.QEMUVersion)
	if err != nil {
		return nil // the machine's type says so
	}
	if qemu.before(version90) {
		return field.Forbidden(field.NewPath("spec", "domain", "ioThreadsPolicy"), fmt.Sprintf("supplementalPool needs QEMU 9.0, and this node has QEMU %s; use shared or auto", host.QEMUVersion))
	}
	threads := addThreads(m, count)
	for i := range m.Disks {
		if d := &m.Disks[i]; d.IsVirtio() {
			d.IOThreadPool = threads
		}
	}
	spareRoom(domain, m)
	return nil
}

// addThreads names the machine's threads as libvirt does.
func addThreads(m *qemuargs.Machine, count int) (ids []string) {
	for n := 1; n <= count; n++ {
		id := fmt.Sprintf("iothread%d", n)
		ids = append(ids, id)
		m.IOThreads = append(m.IOThreads, qemuargs.IOThread{ID: id})
	}
	return ids
}
