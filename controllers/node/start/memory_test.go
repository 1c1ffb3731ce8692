package start

import (
	"errors"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/elevate"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
)

// kernel notes what it is asked for.
type kernel struct {
	asked []string
	err   error
}

func (k *kernel) LockMemory(l elevate.Launcher, bytes uint64) error {
	k.asked = append(k.asked, fmt.Sprintf("lock %d %s %v: %d MiB", l.PID, l.Pod.Name, l.Pods, bytes>>20))
	return k.err
}

// TestQEMUMayLockTheBookedMemory: QEMU may lock what the pod books, if the VMI says so.
func TestQEMUMayLockTheBookedMemory(t *testing.T) {
	launcher := &sessions.Session{PID: 42, Pod: types.NamespacedName{Namespace: "default", Name: "launcher"}}
	vmi := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{ActivePods: map[types.UID]string{"p": "here"}}}
	vmi.Spec.Domain.CPU = &v1.CPU{Sockets: 1, Cores: 1, Threads: 1}
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("1Gi")),
		ReservedOverhead: &v1.ReservedOverhead{AddedOverhead: ptr.To(resource.MustParse("1Gi"))}}
	k := &kernel{}
	s := &Starter{Memory: k}
	if err := s.lockMemory(vmi, launcher); err != nil || len(k.asked) > 0 {
		t.Errorf("a guest that locks nothing: %v, %q", err, k.asked)
	}
	vmi.Spec.Domain.Memory.ReservedOverhead.MemLock = v1.MemLockRequired
	k.err = fmt.Errorf("%w: never", elevate.ErrRefused)
	err := s.lockMemory(vmi, launcher)
	if want := fmt.Sprintf("[lock 42 launcher [p]: %d MiB]", 2048+64+2+3+16+160); fmt.Sprint(k.asked) != want {
		t.Errorf("asked for %v, want %s", k.asked, want)
	}
	if errs := lockRefused(&v1.VirtualMachineInstance{}, err); len(errs) != 1 ||
		errs[0].Field != "spec.domain.memory.reservedOverhead.memLock" {
		t.Errorf("%v is for the user %v", err, errs)
	}
	card := &v1.VirtualMachineInstance{}
	card.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default"}, {Name: "card", SRIOV: &v1.InterfaceSRIOV{}}}
	if errs := lockRefused(card, err); len(errs) != 1 || errs[0].Field != "spec.domain.devices.interfaces[1].sriov" {
		t.Errorf("%v is for the user of a card %v", err, errs)
	}
	if errs := lockRefused(&v1.VirtualMachineInstance{}, errors.New("not yet")); errs != nil {
		t.Errorf("an error that may pass: %v", errs)
	}
}
