// Package nodetest stands in, in tests, for what surrounds virt-handler: a kubelet,
// a pod's network, and launchers that say what a test wants.
package nodetest

import (
	"context"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Kubelet says which pods hold which devices, as a test wants.
type Kubelet struct {
	mu    sync.Mutex
	held  map[string][]types.NamespacedName
	whole bool
	err   error
	asked int
}

// NewKubelet returns a kubelet that lists pods by device, and does not list the
// pod that asks.
func NewKubelet(held map[string][]types.NamespacedName) *Kubelet { return &Kubelet{held: held} }

// Devices answers package slots' question, for any resource.
func (k *Kubelet) Devices(context.Context, corev1.ResourceName) (held map[string][]types.NamespacedName, whole bool,
	err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked++
	return k.held, k.whole, k.err
}

// Says sets the answer, or the error.
func (k *Kubelet) Says(held map[string][]types.NamespacedName, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held, k.err = held, err
}

// Lists sets the answer; whole means that the pod that asks is listed as well.
func (k *Kubelet) Lists(held map[string][]types.NamespacedName, whole bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held, k.whole = held, whole
}

// Hold adds a device that a pod holds.
func (k *Kubelet) Hold(device string, pod types.NamespacedName) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held == nil {
		k.held = map[string][]types.NamespacedName{}
	}
	k.held[device] = []types.NamespacedName{pod}
}

// Asked counts the questions.
func (k *Kubelet) Asked() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.asked
}

// Pod names a pod of the namespace default.
func Pod(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: name}
}

// Holds returns the answer that pods of the namespace default hold a device.
func Holds(device string, pods ...string) map[string][]types.NamespacedName {
	held := map[string][]types.NamespacedName{}
	for _, name := range pods {
		held[device] = append(held[device], Pod(name))
	}
	return held
}

// Folder makes a slot for a device, and returns the slot's folder.
func Folder(t *testing.T, slots interface{ New(string) (string, error) }, device string) string {
	t.Helper()
	folder, err := slots.New(device)
	if err != nil {
		t.Fatal(err)
	}
	return folder
}
