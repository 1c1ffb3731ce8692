package vmi

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// overwritten keeps which version of a VMI the last status was written over. A cache
// that still has that version has not seen the write: to decide by it would be to
// write the same once more, and the API server would refuse that.
type overwritten struct {
	mu       sync.Mutex
	versions map[types.NamespacedName]string
}

// note keeps that the status of a VMI was written over a version. A write that
// changed nothing made no version, and no event that would end the wait for one.
func (o *overwritten) note(name types.NamespacedName, before, after *v1.VirtualMachineInstance) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if before.ResourceVersion == after.ResourceVersion {
		return
	}
	if o.versions == nil {
		o.versions = map[types.NamespacedName]string{}
	}
	o.versions[name] = before.ResourceVersion
}

// has says whether the status was written over what was read. The event of that
// write is still to come.
func (o *overwritten) has(name types.NamespacedName, read *v1.VirtualMachineInstance) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return read.ResourceVersion != "" && o.versions[name] == read.ResourceVersion
}

func (o *overwritten) forget(name types.NamespacedName) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.versions, name)
}
