package schema

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"math/rand"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	runtimeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	poolv1beta1 "github.com/kubeqemu/kubeqemu/api/pool/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/config/crd"
)

// served are the kinds of which there are older versions, with an empty object.
var served = []struct {
	group, plural string
	make          func() metav1.Object
}{
	{"kubevirt.io", "virtualmachines", func() metav1.Object { return &v1.VirtualMachine{} }},
	{"kubevirt.io", "virtualmachineinstances", func() metav1.Object { return &v1.VirtualMachineInstance{} }},
	{"kubevirt.io", "virtualmachineinstancereplicasets", func() metav1.Object { return &v1.VirtualMachineInstanceReplicaSet{} }},
	{"kubevirt.io", "kubevirts", func() metav1.Object { return &v1.KubeVirt{} }},
	{"pool.kubevirt.io", "virtualmachinepools", func() metav1.Object { return &poolv1beta1.VirtualMachinePool{} }},
}

// TestServedKinds: the list is complete, and every older version is one for which virt-api asks.
func TestServedKinds(t *testing.T) {
	files, err := fs.Glob(crd.Files, "*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	older := 0
	for _, file := range files {
		text, err := fs.ReadFile(crd.Files, file)
		if err != nil {
			t.Fatal(err)
		}
		k, err := newKind(text)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if len(k.crd.Spec.Versions) > 1 {
			older++
		}
		// It would be checked in another way (metadata in it).
		if strings.Contains(string(text), "x-kubernetes-embedded-resource") {
			t.Errorf("%s has an embedded resource", file)
		}
	}
	if older != len(served) {
		t.Errorf("%d kinds have older versions, want %d", older, len(served))
	}
}

// TestRoundTrip: objects with any values go through each older version and back, by the API
// server's conversion, and nothing is lost: neither there nor to virt-schema.
func TestRoundTrip(t *testing.T) {
	for _, kind := range served {
		t.Run(kind.plural, func(t *testing.T) {
			t.Parallel()
			k, err := NewChecker(crd.Files).kind(kind.group, kind.plural)
			if err != nil {
				t.Fatal(err)
			}
			k.crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.NoneConverter} // as the API server defaults it
			converters, err := conversion.NewCRConverterFactory(nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			converter, _, err := converters.NewConverter(k.crd)
			if err != nil {
				t.Fatal(err)
			}
			fields := 0
			for seed := range roundTrips {
				object := kind.make()
				fill(object, int64(seed))
				fields += roundTrip(t, k, converter, object)
				if t.Failed() {
					t.Fatalf("the seed is %d", seed)
				}
			}
			if fields < 50*roundTrips {
				t.Errorf("%d objects had %d fields: the test checks little", roundTrips, fields)
			}
		})
	}
}

// roundTrip takes an object there and back, and returns how many fields it has.
func roundTrip(t *testing.T, k *kind, converter runtime.ObjectConvertor, object metav1.Object) int {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := read(text)
	if err != nil {
		t.Fatal(err)
	}
	stored := &unstructured.Unstructured{Object: whole}
	stored.SetGroupVersionKind(runtimeschema.GroupVersionKind{Group: k.crd.Spec.Group, Version: k.version.Name, Kind: k.crd.Spec.Names.Kind})
	for _, version := range k.crd.Spec.Versions[1:] {
		through, err := converter.ConvertToVersion(stored, runtimeschema.GroupVersion{Group: k.crd.Spec.Group, Version: version.Name})
		if err != nil {
			t.Fatal(err)
		}
		changed := through.(*unstructured.Unstructured)
		if changed.GetAPIVersion() != k.crd.Spec.Group+"/"+version.Name {
			t.Errorf("it is of %s", changed.GetAPIVersion())
		}
		back, err := converter.ConvertToVersion(changed.DeepCopy(), stored.GroupVersionKind().GroupVersion())
		if err != nil {
			t.Fatal(err)
		}
		if !equality.Semantic.DeepEqual(stored, back) {
			t.Errorf("there and back (-before +after):\n%s", cmp.Diff(stored, back))
		}
		if unknown := k.convert(changed.Object); len(unknown) > 0 {
			t.Errorf("fields are unknown to the schema: %q", unknown)
		}
		if before := withoutVersion(stored); !within(before, changed.Object) {
			t.Errorf("virt-schema changes it (-before +after):\n%s", cmp.Diff(before, withoutVersion(changed)))
		}
	}
	return strings.Count(string(text), ":")
}

// withoutVersion returns an object's fields but its version.
func withoutVersion(object *unstructured.Unstructured) map[string]any {
	fields := maps.Clone(object.Object)
	delete(fields, "apiVersion")
	return fields
}

// within says whether all that a value holds is in the other one.
func within(a, b any) bool {
	switch a := a.(type) {
	case nil:
		return true // the API server drops it
	case map[string]any:
		b, ok := b.(map[string]any)
		for name, value := range a {
			if ok = ok && within(value, b[name]); !ok {
				return false
			}
		}
		return ok
	case []any:
		b, ok := b.([]any)
		if ok = ok && len(a) == len(b); !ok {
			return false
		}
		for i := range a {
			if !within(a[i], b[i]) {
				return false
			}
		}
		return true
	}
	return fmt.Sprint(a) == fmt.Sprint(b)
}

// fill gives an object any values that its Go type can hold.
func fill(object any, seed int64) {
	randfill.New().RandSource(rand.NewSource(seed)).NilChance(0.5).NumElements(1, 2).MaxDepth(14).Funcs(
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewQuantity(c.Int63(), resource.BinarySI)
		},
		func(t *metav1.Time, c randfill.Continue) { *t = metav1.Unix(c.Int63n(1<<32), 0) },
		func(t *metav1.MicroTime, c randfill.Continue) {
			*t = metav1.NewMicroTime(metav1.Unix(c.Int63n(1<<32), 0).Time)
		},
		func(d *metav1.Duration, c randfill.Continue) {
			d.Duration = metav1.Unix(c.Int63n(1<<20), 0).Sub(metav1.Unix(0, 0).Time)
		},
		func(i *intstr.IntOrString, c randfill.Continue) {
			if *i = intstr.FromInt32(c.Int31()); c.Bool() {
				*i = intstr.FromString(c.String(0))
			}
		},
		func(m *metav1.ObjectMeta, c randfill.Continue) {
			*m = metav1.ObjectMeta{Name: c.String(5), Labels: map[string]string{c.String(3): c.String(3)}, Annotations: map[string]string{c.String(3): c.String(3)}}
		},
		func(m *metav1.TypeMeta, _ randfill.Continue) { *m = metav1.TypeMeta{} },
		func(f *metav1.FieldsV1, _ randfill.Continue) { f.SetRawBytes([]byte("{}")) },
		func(r *runtime.RawExtension, _ randfill.Continue) { r.Raw = []byte("{}") },
	).Fill(object)
}
