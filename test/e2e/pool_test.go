package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/kubeqemu/kubeqemu/api/pool/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// machines is a VirtualMachinePool on the cluster.
type machines struct {
	t               *testing.T
	namespace, name string
}

// createPool makes a pool of so many tiny guests.
func createPool(t *testing.T, namespace string, n int32) machines {
	t.Helper()
	p := machines{t, namespace, "web"}
	labels := map[string]string{"app": p.name}
	order := v1beta1.SortDescending
	text, err := json.Marshal(&v1beta1.VirtualMachinePool{
		TypeMeta:   metav1.TypeMeta{APIVersion: "pool.kubevirt.io/v1beta1", Kind: "VirtualMachinePool"},
		ObjectMeta: metav1.ObjectMeta{Name: p.name},
		Spec: v1beta1.VirtualMachinePoolSpec{
			Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: labels},
			ScaleInStrategy: &v1beta1.VirtualMachinePoolScaleInStrategy{Proactive: &v1beta1.VirtualMachinePoolProactiveScaleInStrategy{
				SelectionPolicy: &v1beta1.VirtualMachinePoolSelectionPolicy{SortPolicy: &order}}},
			VirtualMachineTemplate: v1beta1.VirtualMachineTemplateSpec{
				ObjectMeta: v1.TemplateMeta{Labels: labels},
				Spec: v1.VirtualMachineSpec{RunStrategy: ptr.To(v1.RunStrategyAlways),
					Template: v1.VirtualMachineInstanceTemplateSpec{ObjectMeta: v1.TemplateMeta{Labels: labels}, Spec: tiny("", bootsKernel).Spec}},
			}},
	})
	if err != nil {
		t.Fatal(err)
	}
	apply(t, namespace, string(text))
	// Before the namespace's own end, which deletes the VMs: they would come back.
	t.Cleanup(func() {
		if _, err := output("", "kubectl", "-n", namespace, "delete", "vmpool", "--all"); err != nil {
			t.Error(err)
		}
	})
	return p
}

// shows waits until kubectl shows DESIRED, CURRENT and READY, and these VMs.
func (p machines) shows(want, names string) {
	p.t.Helper()
	if err := poll(func() error {
		columns := strings.Fields(strings.Split(kubectl(p.t, "-n", p.namespace, "get", "vmpool", p.name), "\n")[1])
		have := strings.Join(columns[1:len(columns)-1], " ")
		vms := kubectl(p.t, "-n", p.namespace, "get", "vm", "-l", "app="+p.name, "-o", "jsonpath={.items[*].metadata.name}")
		if have != want || vms != names {
			return fmt.Errorf("kubectl get vmpool shows %q and VMs %q, want %q and %q", have, vms, want, names)
		}
		return nil
	}); err != nil {
		p.t.Fatal(err)
	}
}

// TestPoolScalesAndUpdatesVMs scales VMs up and down, and restarts a guest for another template.
func TestPoolScalesAndUpdatesVMs(t *testing.T) {
	t.Parallel()
	p := createPool(t, namespace(t), 0)
	p.shows("0 0 0", "")
	scale := func(n int) { kubectl(t, "-n", p.namespace, "scale", "vmpool", p.name, fmt.Sprintf("--replicas=%d", n)) }
	scale(2)
	p.shows("2 2 2", "web-0 web-1")
	scale(1)
	p.shows("1 1 1", "web-0")

	first := vm{vmi{t: t, namespace: p.namespace, name: "web-0"}}
	before := first.runs("")
	kubectl(t, "-n", p.namespace, "patch", "vmpool", p.name, "--type=merge", "--patch",
		`{"spec":{"virtualMachineTemplate":{"spec":{"template":{"spec":{"domain":{"memory":{"guest":"144Mi"}}}}}}}}`)
	first.runs(before)
	if memory := first.get().Spec.Domain.Memory.Guest.String(); memory != "144Mi" {
		t.Errorf("the guest that was restarted has %s", memory)
	}
	p.shows("1 1 1", "web-0")

	kubectl(t, "-n", p.namespace, "delete", "vmpool", p.name)
	if err := poll(func() error {
		if left := kubectl(t, "-n", p.namespace, "get", "vm,vmi", "-l", "app="+p.name, "-o", "name"); left != "" {
			return fmt.Errorf("left of the pool: %s", left)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
