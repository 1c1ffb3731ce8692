package choice

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// inferLabel begins the labels that name an instancetype or a preference, KubeVirt's.
const inferLabel = "instancetype.kubevirt.io/default-"

// place is an object whose labels may name an instancetype or a preference.
type place struct {
	kind            string
	namespace, name string
	// foreign: an object of another namespace than the VM's leads here.
	foreign bool
}

// Kinds of places. The cluster may lack all but the first.
const (
	claimKind      = "PersistentVolumeClaim"
	dataVolumeKind = "DataVolume"
	dataSourceKind = "DataSource"
	snapshotKind   = "VolumeSnapshot"
)

// object returns an empty object of the place's kind.
func (p place) object() Object {
	group := v1.DataVolumeGroupVersionKind.GroupVersion()
	switch p.kind {
	case claimKind:
		return &corev1.PersistentVolumeClaim{}
	case snapshotKind:
		group = schema.GroupVersion{Group: "snapshot.storage.k8s.io", Version: "v1"}
	}
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(group.WithKind(p.kind))
	return o
}

// maxPlaces bounds how many objects are asked for one name: DataSources may lead to each other.
const maxPlaces = 8

// infer reads labels of a volume's claim, or of its DataVolume, their claim and the DataVolume's
// source, in this order. If it returns neither a name nor an error, none of them names anything,
// and the matcher's policy permits that.
func (m *matcher) infer(ctx context.Context, get Get, vm *v1.VirtualMachine) (name, kind string, err error) {
	defer func() {
		if errors.Is(err, ErrMissing) && m.policy != nil && *m.policy == v1.IgnoreInferFromVolumeFailure {
			name, kind, err = "", "", nil
		}
	}()
	next := m.begin(vm)
	if len(next) == 0 {
		return "", "", fmt.Errorf("infer %s: a volume %q with a persistentVolumeClaim or a dataVolume is %w", m.what, m.volume, ErrMissing)
	}
	label := inferLabel + m.what
	var asked []place
	var gone error
	for len(next) > 0 && len(asked) < maxPlaces {
		at := next[0]
		object := at.object()
		asked, next = append(asked, at), next[1:]
		err := get(ctx, types.NamespacedName{Namespace: at.namespace, Name: at.name}, object)
		if (apierrors.IsNotFound(err) || meta.IsNoMatchError(err) || apierrors.IsForbidden(err)) && planned(vm, at, object) {
			err = nil
		}
		switch {
		case err == nil:
		case apierrors.IsNotFound(err), meta.IsNoMatchError(err), apierrors.IsForbidden(err) && (at.kind != claimKind || at.namespace != vm.Namespace):
			gone = missing(err, at.kind, at.name)
			continue
		default:
			return "", "", fmt.Errorf("infer %s from volume %q: %w", m.what, m.volume, missing(err, at.kind, at.name))
		}
		labels := object.GetLabels()
		if name := labels[label]; name != "" {
			return name, labels[label+"-kind"], nil
		}
		if o, ok := object.(*unstructured.Unstructured); ok {
			next = append(next, at.sources(o, vm.Namespace)...)
		}
	}
	if len(asked) == 1 && gone != nil {
		return "", "", fmt.Errorf("infer %s from volume %q: %w", m.what, m.volume, gone)
	}
	return "", "", fmt.Errorf("infer %s from volume %q: label %s of %s is %w", m.what, m.volume, label, said(asked, vm.Namespace), ErrMissing)
}

// planned makes the object from the VM's template of the DataVolume at a place, and says whether
// there is one.
func planned(vm *v1.VirtualMachine, at place, object Object) bool {
	volume, ok := object.(*unstructured.Unstructured)
	template := vm.DataVolumeTemplate(at.name)
	if !ok || at.kind != dataVolumeKind || at.namespace != vm.Namespace || template == nil {
		return false
	}
	fields, err := template.Fields()
	if err != nil {
		return false
	}
	volume.Object["spec"] = fields
	volume.SetLabels(template.ObjectMeta.Labels)
	volume.SetAnnotations(template.ObjectMeta.Annotations)
	return true
}

// begin returns the objects that the matcher's volume names.
func (m *matcher) begin(vm *v1.VirtualMachine) []place {
	for _, volume := range vm.Spec.Template.Spec.Volumes {
		source := volume.Claim()
		if volume.Name != m.volume || source == nil || source.Overlay {
			continue
		}
		claim := place{kind: claimKind, namespace: vm.Namespace, name: source.Name}
		if volume.DataVolume == nil {
			return []place{claim}
		}
		return []place{{kind: dataVolumeKind, namespace: vm.Namespace, name: source.Name}, claim}
	}
	return nil
}

// unchecked are the annotations of DataVolumes whose author CDI does not check: CDI copies nothing
// into their claims.
func unchecked() []string {
	return []string{"cdi.kubevirt.io/storage.prePopulated", "cdi.kubevirt.io/storage.checkStaticVolume"}
}

// sources returns the objects that a DataVolume or a DataSource takes its data from. A
// DataVolume may lead to another namespace: CDI has checked that its author may read there, unless
// the DataVolume has an annotation of unchecked. CDI does not check that of a DataSource, so a
// DataSource leads to its own namespace only.
func (p place) sources(object *unstructured.Unstructured, home string) []place {
	var out []place
	abroad := p.kind == dataVolumeKind
	for _, key := range unchecked() {
		if _, there := object.GetAnnotations()[key]; there {
			abroad = false
		}
	}
	add := func(kind string, path ...string) {
		at, _, _ := unstructured.NestedMap(object.Object, append([]string{"spec"}, path...)...)
		name, _ := at["name"].(string)
		namespace, _ := at["namespace"].(string)
		if namespace == "" {
			namespace = p.namespace
		}
		if name != "" && (namespace == p.namespace || abroad) {
			out = append(out, place{kind: kind, namespace: namespace, name: name, foreign: p.foreign || p.namespace != home})
		}
	}
	switch p.kind {
	case dataVolumeKind:
		if kind, _, _ := unstructured.NestedString(object.Object, "spec", "sourceRef", "kind"); kind == dataSourceKind {
			add(dataSourceKind, "sourceRef")
		}
	case dataSourceKind:
		add(dataSourceKind, "source", "dataSource")
	default:
		return nil
	}
	add(claimKind, "source", "pvc")
	add(snapshotKind, "source", "snapshot")
	return out
}

// said names places, but none to which an object of another namespace leads: the VM's owner may
// not be permitted to read that object.
func said(places []place, home string) string {
	var names []string
	for _, p := range places {
		name := p.name
		if p.namespace != home {
			name = p.namespace + "/" + name
		}
		if !p.foreign {
			names = append(names, fmt.Sprintf("%s %q", p.kind, name))
		}
	}
	return strings.Join(names, ", ")
}
