// Package owner tells which object controls another.
package owner

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Reference returns the object's reference to its controller, or nil where the
// object has no controller or a controller of another kind. The version in the
// reference does not matter: an older client may have written an older version.
func Reference(object metav1.Object, kind schema.GroupKind) *metav1.OwnerReference {
	reference := metav1.GetControllerOfNoCopy(object)
	if reference == nil || reference.Kind != kind.Kind {
		return nil
	}
	if version, err := schema.ParseGroupVersion(reference.APIVersion); err != nil || version.Group != kind.Group {
		return nil
	}
	return reference.DeepCopy()
}

// Controls says whether the object's controller is owner, whose kind is kind. The UID
// alone would not do: a user who may write the object may name an owner of any kind with that
// UID.
func Controls(kind schema.GroupKind, owner, object metav1.Object) bool {
	reference := Reference(object, kind)
	return reference != nil && reference.UID == owner.GetUID() && reference.Name == owner.GetName()
}
