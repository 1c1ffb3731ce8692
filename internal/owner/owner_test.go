package owner

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

func TestWhoControlsAnObject(t *testing.T) {
	kind := schema.GroupKind{Group: "kubevirt.io", Kind: "VirtualMachine"}
	vm := &metav1.ObjectMeta{Name: "vm", UID: "1"}
	right := metav1.OwnerReference{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Name: "vm", UID: "1", Controller: ptr.To(true)}
	for name, tt := range map[string]struct {
		change          func(*metav1.OwnerReference)
		named, controls bool
	}{
		"its controller":        {func(*metav1.OwnerReference) {}, true, true},
		"of an older version":   {func(r *metav1.OwnerReference) { r.APIVersion = "kubevirt.io/v1alpha3" }, true, true},
		"another UID":           {func(r *metav1.OwnerReference) { r.UID = "2" }, true, false},
		"another name":          {func(r *metav1.OwnerReference) { r.Name = "other" }, true, false},
		"another kind":          {func(r *metav1.OwnerReference) { r.Kind = "VirtualMachinePool" }, false, false},
		"another group":         {func(r *metav1.OwnerReference) { r.APIVersion = "apps/v1" }, false, false},
		"no group":              {func(r *metav1.OwnerReference) { r.APIVersion = "v1" }, false, false},
		"a version that is two": {func(r *metav1.OwnerReference) { r.APIVersion = "kubevirt.io/v1/v2" }, false, false},
		"an owner only":         {func(r *metav1.OwnerReference) { r.Controller = nil }, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			reference := *right.DeepCopy()
			tt.change(&reference)
			object := &metav1.ObjectMeta{Name: "vmi", OwnerReferences: []metav1.OwnerReference{{Kind: "VirtualMachine", APIVersion: "kubevirt.io/v1", Name: "other", UID: "0"}, reference}}
			if got := Reference(object, kind); (got != nil) != tt.named || got != nil && got.UID != reference.UID {
				t.Errorf("reference %v", got)
			}
			if got := Controls(kind, vm, object); got != tt.controls {
				t.Errorf("controls: %v", got)
			}
		})
	}
	if Reference(&metav1.ObjectMeta{}, kind) != nil || Controls(kind, vm, &metav1.ObjectMeta{}) {
		t.Error("an object without owners has a controller")
	}
}
