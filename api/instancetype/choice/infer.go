package choice

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// unnamedError means that what a volume leads to is there, and that no label names an instancetype or a preference.
type unnamedError struct {
	err error
	// unread: something may not be read that could have such a label.
	unread bool
}

func (e *unnamedError) Error() string { return e.err.Error() }
func (e *unnamedError) Unwrap() error { return e.err }

// infer returns what labels says. If it returns neither a name nor an error, no label names anything,
// and the matcher's policy permits that.
func (m *matcher) infer(ctx context.Context, get Get, vm *v1.VirtualMachine) (name, kind string, err error) {
	name, kind, err = m.labels(ctx, get, vm)
	if unnamed := new(unnamedError); errors.As(err, &unnamed) && ignores(m.policy) {
		return "", "", nil
	}
	return name, kind, err
}

// labels reads labels of a volume's claim, or of its DataVolume, their claim and the DataVolume's
// source, in this order.
func (m *matcher) labels(ctx context.Context, get Get, vm *v1.VirtualMachine) (name, kind string, err error) {
	next, err := m.begin(vm)
	if err != nil {
		return "", "", fmt.Errorf("infer %s: %w", m.what, err)
	}
	label := inferLabel + m.what
	var asked []place
	var gone error
	var there, unread bool
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
			there = true
		case apierrors.IsNotFound(err), meta.IsNoMatchError(err), apierrors.IsForbidden(err) && (at.kind != claimKind || at.namespace != vm.Namespace):
			gone, unread = missing(err, at.kind, at.name), unread || apierrors.IsForbidden(err)
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
	err = fmt.Errorf("infer %s from volume %q: label %s of %s is %w", m.what, m.volume, label, said(asked, vm.Namespace), ErrMissing)
	if there || unread {
		err = &unnamedError{err, unread}
	}
	return "", "", err
}

// NamedError means that a VM names a volume while another volume has named it before.
type NamedError struct {
	// Field is the path of the name, and Volume the volume that led to it.
	Field, Volume string
}

// Error returns KubeVirt's words, and the name's origin.
func (e *NamedError) Error() string {
	const words = "Name already set, should be cleared before setting inferFromVolume: volume %q has named it"
	return fmt.Sprintf(words, e.Volume)
}

// Infer returns a copy of a VM, which is to be stored. In the copy, a name takes the place of each inferFromVolume,
// as in KubeVirt: what the labels say later changes nothing. An annotation says which volume led to the name. old is
// the VM as it is stored, or nil. An inferFromVolume whose labels get may not read stays, and virt-controller reads
// them. An error that is ErrMissing or a NamedError is the user's fault.
func Infer(ctx context.Context, get Get, vm, old *v1.VirtualMachine) (*v1.VirtualMachine, error) {
	named := vm.DeepCopy()
	if m := instancetypeMatcher(vm); m != nil {
		o, err := m.stored(ctx, get, vm, instancetypeMatcher(old))
		if err != nil {
			return nil, err
		}
		m.remember(named, o)
		if !o.stays {
			named.Spec.Instancetype = nil
		}
		if o.name != "" {
			named.Spec.Instancetype = &v1.InstancetypeMatcher{Name: o.name, Kind: o.kind, RevisionName: o.revision}
		}
		if o.name != "" && ignores(m.policy) { // the memory holds only if the volume names no instancetype
			named.Spec.Template.Spec.Domain.Memory = nil
		}
	}
	if m := preferenceMatcher(vm); m != nil {
		o, err := m.stored(ctx, get, vm, preferenceMatcher(old))
		if err != nil {
			return nil, err
		}
		m.remember(named, o)
		if !o.stays {
			named.Spec.Preference = nil
		}
		if o.name != "" {
			named.Spec.Preference = &v1.PreferenceMatcher{Name: o.name, Kind: o.kind, RevisionName: o.revision}
		}
	}
	return named, nil
}

// outcome is what becomes of a matcher that is to be stored: it stays as it is, or has a name, or goes.
type outcome struct {
	stays                bool
	name, kind, revision string
}

// inferred returns the annotation that says which volume led to a VM's name, and its value.
func (m *matcher) inferred(name string) (annotation, value string) {
	return "kubeqemu.io/" + m.what + "-inferred", m.volume + "/" + name
}

// remember writes into a VM which volume led to its name.
func (m *matcher) remember(vm *v1.VirtualMachine, o outcome) {
	if annotation, value := m.inferred(o.name); o.name != "" {
		metav1.SetMetaDataAnnotation(&vm.ObjectMeta, annotation, value)
	}
}

// namedBy returns the volume that led to a stored matcher's name, or nothing.
func (m *matcher) namedBy() string {
	volume, ok := strings.CutSuffix(m.memory, "/"+m.name)
	if !ok {
		return ""
	}
	return volume
}

// stored returns what becomes of a matcher. old is the stored one, or nil. If a manifest with a volume is applied
// again, the API server merges it with the name that is stored. The name stays if this volume led to it. A matcher
// that stays although it has both is refused.
func (m *matcher) stored(ctx context.Context, get Get, vm *v1.VirtualMachine, old *matcher) (outcome, error) {
	switch {
	case m.volume == "":
		return outcome{stays: true}, nil
	case m.policy != nil && !ignores(m.policy) && *m.policy != v1.RejectInferFromVolumeFailure:
		return outcome{stays: true}, nil // it is refused
	case m.name != "" && old != nil && old.name == m.name && old.namedBy() == m.volume:
		return outcome{name: m.name, kind: m.kind, revision: m.revision}, nil
	case m.name != "" && old != nil && old.name == m.name && old.namedBy() != "":
		return outcome{}, &NamedError{Field: "spec." + m.what + ".name", Volume: old.namedBy()}
	case m.name != "", m.revision != "":
		return outcome{stays: true}, nil // it is refused
	}
	name, kind, err := m.labels(ctx, get, vm)
	unnamed := new(unnamedError)
	switch {
	case apierrors.IsForbidden(err), errors.As(err, &unnamed) && unnamed.unread:
		return outcome{stays: true}, nil
	case errors.As(err, &unnamed) && ignores(m.policy):
		return outcome{}, nil
	}
	return outcome{name: name, kind: kind}, err
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
func (m *matcher) begin(vm *v1.VirtualMachine) ([]place, error) {
	for _, volume := range vm.Spec.Template.Spec.Volumes {
		if volume.Name != m.volume {
			continue
		}
		source := volume.Claim()
		if source == nil || source.Overlay {
			return nil, &unnamedError{err: fmt.Errorf("volume %q with a persistentVolumeClaim or a dataVolume is %w", m.volume, ErrMissing)}
		}
		claim := place{kind: claimKind, namespace: vm.Namespace, name: source.Name}
		if volume.DataVolume == nil {
			return []place{claim}, nil
		}
		return []place{{kind: dataVolumeKind, namespace: vm.Namespace, name: source.Name}, claim}, nil
	}
	return nil, fmt.Errorf("volume %q is %w in the template", m.volume, ErrMissing)
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
