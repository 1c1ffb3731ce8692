// Package follow has chosen labels and annotations of a VirtualMachine's template follow into the
// running VirtualMachineInstance, and from there into the launcher pod. It is pure.
package follow

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// Annotation of an object lists the object's keys that follow another object. Only these keys are
// removed from the object when the other object loses them: every other key is somebody else's.
const Annotation = "kubeqemu.io/following"

// Keys are the keys of annotations and labels that follow. The zero value has none.
type Keys struct{ annotations, labels []string }

// Parse reads lists of keys, with commas between them, that follow beside the descheduler's. A
// key that ends in * stands for all keys that begin so.
func Parse(annotations, labels string) (Keys, error) {
	more, err := parse(annotations)
	if err != nil {
		return Keys{}, fmt.Errorf("read the keys of annotations that follow: %w", err)
	}
	k := Keys{annotations: append(v1.DeschedulerAnnotations(), more...)}
	if k.labels, err = parse(labels); err != nil {
		return Keys{}, fmt.Errorf("read the keys of labels that follow: %w", err)
	}
	return k, nil
}

func parse(list string) ([]string, error) {
	var keys []string
	for key := range strings.SplitSeq(list, ",") {
		if key = strings.TrimSpace(key); key == "" {
			continue
		}
		prefix, isPattern := strings.CutSuffix(key, "*")
		name := key
		if isPattern {
			name = prefix + "x"
		}
		switch {
		case isPattern && !strings.Contains(prefix, "/"):
			return nil, fmt.Errorf("%q names no domain, as example.com/* does", key)
		case len(validation.IsQualifiedName(name)) > 0:
			return nil, fmt.Errorf("%q is no key: %s", key, strings.Join(validation.IsQualifiedName(name), "; "))
		case reserved(name):
			return nil, fmt.Errorf("%q is in a domain whose keys only components write", key)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// reserved reports whether a key is one of KubeVirt's or of Kubeqemu's, on which components, NetworkPolicies and caches rely, or one that no user
// gives to a launcher pod.
func reserved(key string) bool {
	domain, _, _ := strings.Cut(key, "/")
	return v1.ReservedAnnotation(key) != "" || slices.ContainsFunc([]string{"kubevirt.io", "kubeqemu.io"}, func(d string) bool {
		return domain == d || strings.HasSuffix(domain, "."+d)
	})
}

func has(list []string, key string) bool {
	return !reserved(key) && slices.ContainsFunc(list, func(k string) bool {
		prefix, isPattern := strings.CutSuffix(k, "*")
		return k == key || isPattern && strings.HasPrefix(key, prefix)
	})
}

// Bounds of what follows: an annotation of an object may have 256 KiB, and the object that follows
// may have as much already.
const (
	maxKeys  = 64
	maxValue = 1 << 10
)

// chosen are the entries that follow: of the keys in a list, the first maxKeys, without long values.
func chosen(list []string, from map[string]string) map[string]string {
	out := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(from)) {
		if has(list, key) && len(from[key]) <= maxValue && len(out) < maxKeys {
			out[key] = from[key]
		}
	}
	return out
}

// Keeps says whether package follow reads an annotation of an object.
func (k Keys) Keeps(annotation string) bool {
	return annotation == Annotation || has(k.annotations, annotation)
}

// Metadata is what an object follows.
type Metadata struct{ Labels, Annotations map[string]string }

// Note notes in a new object, which has from's labels and annotations, which of its keys follow.
func (k Keys) Note(from Metadata, object metav1.Object) {
	annotations := object.GetAnnotations()
	delete(annotations, Annotation) // a user may have written one
	if list := k.following(from); list != "" {
		annotations[Annotation] = list
	}
}

// In Annotation these stand before keys.
const (
	anAnnotation = "annotation:"
	aLabel       = "label:"
)

// following is Annotation's value for an object that follows from.
func (k Keys) following(from Metadata) string {
	var list []string
	for key := range chosen(k.annotations, from.Annotations) {
		list = append(list, anAnnotation+key)
	}
	for key := range chosen(k.labels, from.Labels) {
		list = append(list, aLabel+key)
	}
	slices.Sort(list)
	return strings.Join(list, ",")
}

// Patch is a merge patch that has object follow from, or nil if object does. It changes nothing
// but keys that follow now, or that followed before, and Annotation.
func (k Keys) Patch(from Metadata, object metav1.Object) ([]byte, error) {
	before, after := object.GetAnnotations()[Annotation], k.following(from)
	annotations := changes(k.annotations, anAnnotation, before, from.Annotations, object.GetAnnotations())
	labels := changes(k.labels, aLabel, before, from.Labels, object.GetLabels())
	switch {
	case before == after && len(annotations)+len(labels) == 0:
		return nil, nil
	case after == "":
		annotations[Annotation] = nil
	default:
		annotations[Annotation] = after
	}
	patch, err := json.Marshal(struct {
		Metadata patched `json:"metadata"`
	}{patched{object.GetUID(), labels, annotations}})
	if err != nil {
		return nil, fmt.Errorf("encode patch: %w", err)
	}
	return patch, nil
}

type patched struct {
	// UID keeps the patch from another object of the same name.
	UID         types.UID      `json:"uid"`
	Labels      map[string]any `json:"labels,omitempty"`
	Annotations map[string]any `json:"annotations,omitempty"`
}

// changes are the values that differ, by key; nil removes a key that followed before. A user may
// write anything into Annotation: only keys of the list are removed.
func changes(list []string, kind, followed string, from, object map[string]string) map[string]any {
	out := map[string]any{}
	from = chosen(list, from)
	for key, value := range from {
		if old, there := object[key]; !there || old != value {
			out[key] = value
		}
	}
	for entry := range strings.SplitSeq(followed, ",") {
		key, ok := strings.CutPrefix(entry, kind)
		_, wanted := from[key]
		if _, there := object[key]; ok && there && !wanted && has(list, key) {
			out[key] = nil
		}
	}
	return out
}
