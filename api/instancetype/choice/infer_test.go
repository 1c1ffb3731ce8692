package choice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// objects are what there is: spec, labels and annotations by kind, namespace and name.
type objects map[string]struct {
	spec                map[string]any
	labels, annotations map[string]string
}

type spec = map[string]any

// reader reads objects, and counts.
type reader struct {
	objects
	refuse map[string]error // by kind, or by kind, namespace and name
	asked  []string
}

func (r *reader) get(_ context.Context, key types.NamespacedName, into Object) error {
	kind := into.GetObjectKind().GroupVersionKind().Kind
	if kind == "" {
		kind = claimKind
	}
	name := fmt.Sprintf("%s %s/%s", kind, key.Namespace, key.Name)
	r.asked = append(r.asked, name)
	for _, err := range []error{r.refuse[kind], r.refuse[name]} {
		if err != nil {
			return err
		}
	}
	found, ok := r.objects[name]
	if !ok {
		return apierrors.NewNotFound(schema.GroupResource{Resource: strings.ToLower(kind) + "s"}, key.Name)
	}
	into.SetLabels(found.labels)
	into.SetAnnotations(found.annotations)
	if o, ok := into.(*unstructured.Unstructured); ok {
		o.Object["spec"] = found.spec
	}
	return nil
}

func named(name string) map[string]string {
	return map[string]string{"instancetype.kubevirt.io/default-instancetype": name, "instancetype.kubevirt.io/default-instancetype-kind": "VirtualMachineInstancetype"}
}

func from(kind, namespace, name string) spec {
	at := spec{"name": name}
	if namespace != "" {
		at["namespace"] = namespace
	}
	if kind == dataSourceKind {
		at["kind"] = kind
		return spec{"sourceRef": at}
	}
	return spec{"source": spec{kind: at}}
}

// TestInfer: which object names the instancetype of a VM with a DataVolume.
func TestInfer(t *testing.T) {
	const label = "label instancetype.kubevirt.io/default-instancetype of "
	none := &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "cdi.kubevirt.io", Kind: dataVolumeKind}}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "x"}, "x", errors.New("no"))
	for name, c := range map[string]struct {
		objects objects
		refuse  map[string]error
		want    string // the instancetype, or the error
		asked   int
	}{
		"the DataVolume": {objects{"DataVolume ns/root": {labels: named("small")}, "PersistentVolumeClaim ns/root": {labels: named("large")}}, nil, "small", 1},
		"its claim":      {objects{"DataVolume ns/root": {}, "PersistentVolumeClaim ns/root": {labels: named("small")}}, nil, "small", 2},
		"no CDI":         {objects{"PersistentVolumeClaim ns/root": {labels: named("small")}}, map[string]error{dataVolumeKind: none}, "small", 2},
		"no CDI, and no claim": {nil, map[string]error{dataVolumeKind: none},
			label + `DataVolume "root", PersistentVolumeClaim "root" is not found`, 2},
		"the DataVolume may not be read": {objects{"PersistentVolumeClaim ns/root": {labels: named("small")}}, map[string]error{dataVolumeKind: forbidden}, "small", 2},
		"the claim may not be read":      {nil, map[string]error{claimKind: forbidden}, "forbidden", 2},
		"the API server does not answer": {nil, map[string]error{dataVolumeKind: errors.New("timeout")}, "timeout", 1},
		"a cloned claim": {objects{"DataVolume ns/root": {spec: from("pvc", "golden", "debian")}, "PersistentVolumeClaim golden/debian": {labels: named("small")}},
			nil, "small", 3},
		"a claim whose reader CDI has not checked": {objects{"DataVolume ns/root": {spec: from("pvc", "golden", "debian"), annotations: map[string]string{"cdi.kubevirt.io/storage.prePopulated": "root"}},
			"PersistentVolumeClaim golden/debian": {labels: named("small")}, "PersistentVolumeClaim ns/root": {}},
			nil, label + `DataVolume "root", PersistentVolumeClaim "root" is not found`, 2},
		"a snapshot": {objects{"DataVolume ns/root": {spec: from("snapshot", "golden", "debian")}, "VolumeSnapshot golden/debian": {labels: named("small")}}, nil, "small", 3},
		"a DataSource": {objects{"DataVolume ns/root": {spec: from(dataSourceKind, "golden", "debian")}, "DataSource golden/debian": {labels: named("small")}},
			nil, "small", 3},
		"a DataSource of the namespace": {objects{"DataVolume ns/root": {spec: from(dataSourceKind, "", "debian")}, "DataSource ns/debian": {labels: named("small")}}, nil, "small", 3},
		"its DataSource's claim": {objects{"DataVolume ns/root": {spec: from(dataSourceKind, "golden", "debian")}, "DataSource golden/debian": {spec: from("pvc", "golden", "d12")},
			"PersistentVolumeClaim golden/d12": {labels: named("small")}}, nil, "small", 4},
		"a DataSource of a DataSource": {objects{"DataVolume ns/root": {spec: from(dataSourceKind, "golden", "debian")},
			"DataSource golden/debian": {spec: from("dataSource", "", "d12")}, "DataSource golden/d12": {labels: named("small")}}, nil, "small", 4},
		"a DataSource that leads to another namespace": {objects{"DataVolume ns/root": {spec: from(dataSourceKind, "", "mine")},
			"DataSource ns/mine": {spec: from("pvc", "secret", "disk")}, "PersistentVolumeClaim secret/disk": {labels: named("large")}}, nil,
			label + `DataVolume "root", PersistentVolumeClaim "root", DataSource "mine" is not found`, 3},
		"a DataSource that leads to itself": {objects{"DataVolume ns/root": {spec: from(dataSourceKind, "", "loop")}, "DataSource ns/loop": {spec: from("dataSource", "ns", "loop")}},
			nil, "is not found", maxPlaces},
		"no label anywhere": {objects{"DataVolume ns/root": {spec: from(dataSourceKind, "golden", "debian")}, "DataSource golden/debian": {spec: from("pvc", "golden", "internal")}},
			nil, label + `DataVolume "root", PersistentVolumeClaim "root", DataSource "golden/debian" is not found`, 4},
		"no DataSource": {objects{"DataVolume ns/root": {spec: from(dataSourceKind, "golden", "debian")}},
			nil, label + `DataVolume "root", PersistentVolumeClaim "root", DataSource "golden/debian" is not found`, 3},
		"a DataSource that may not be read": {objects{"DataVolume ns/root": {spec: from(dataSourceKind, "golden", "debian")}}, map[string]error{dataSourceKind: forbidden},
			label + `DataVolume "root", PersistentVolumeClaim "root", DataSource "golden/debian" is not found`, 3},
		"another source": {objects{"DataVolume ns/root": {spec: spec{"source": spec{"http": spec{"url": "https://example.com"}}}}}, nil, "is not found", 2},
		"nonsense":       {objects{"DataVolume ns/root": {spec: spec{"source": "x", "sourceRef": spec{"kind": int64(7)}}}}, nil, "is not found", 2},
	} {
		vm := &v1.VirtualMachine{}
		vm.Namespace = "ns"
		vm.Spec.Template.Spec.Volumes = []v1.Volume{{Name: "disk", DataVolume: &v1.DataVolumeSource{Name: "root"}}}
		vm.Spec.Instancetype = &v1.InstancetypeMatcher{InferFromVolume: "disk"}
		r := &reader{objects: c.objects, refuse: c.refuse}
		got, kind, err := instancetypeMatcher(vm).infer(t.Context(), r.get, vm)
		if err != nil {
			got = err.Error()
		} else if kind != "VirtualMachineInstancetype" {
			t.Errorf("%s: kind %q", name, kind)
		}
		if !strings.HasSuffix(got, c.want) && !(err != nil && strings.Contains(got, c.want)) || len(r.asked) != c.asked {
			t.Errorf("%s: %s after %q, want %s after %d", name, got, r.asked, c.want, c.asked)
		}
		if strings.Contains(got, "internal") || strings.Contains(got, "secret") {
			t.Errorf("%s: it tells of what another namespace leads to: %s", name, got)
		}
		vm.Spec.Instancetype.InferFromVolumeFailurePolicy = ptr.To(v1.IgnoreInferFromVolumeFailure)
		// A disk that is not there at all may come, and name something.
		ignorable := errors.Is(err, ErrMissing) && name != "no CDI, and no claim"
		if _, _, ignored := instancetypeMatcher(vm).infer(t.Context(), r.get, vm); (ignored == nil) != (err == nil || ignorable) {
			t.Errorf("%s: with the policy Ignore: %v", name, ignored)
		}
	}
}

// TestInferFromVolumesThatNameNothing: volumes that name nothing.
func TestInferFromVolumesThatNameNothing(t *testing.T) {
	for name, volume := range map[string]v1.Volume{
		"another volume":   {Name: "other", PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "root"}},
		"a container disk": {Name: "disk", ContainerDisk: &v1.ContainerDiskSource{Image: "x"}},
		"an ephemeral":     {Name: "disk", Ephemeral: &v1.EphemeralVolumeSource{PersistentVolumeClaim: &v1.EphemeralClaim{ClaimName: "root"}}},
	} {
		vm := &v1.VirtualMachine{}
		vm.Spec.Template.Spec.Volumes = []v1.Volume{volume}
		vm.Spec.Preference = &v1.PreferenceMatcher{InferFromVolume: "disk"}
		r := &reader{}
		if _, _, err := preferenceMatcher(vm).infer(t.Context(), r.get, vm); !errors.Is(err, ErrMissing) || len(r.asked) > 0 {
			t.Errorf("%s: %v, asked %q", name, err, r.asked)
		}
	}
}

// TestInferBeforeTheDataVolumeIsMade: before a DataVolume is made, its template says where the DataVolume will
// lead.
func TestInferBeforeTheDataVolumeIsMade(t *testing.T) {
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "x"}, "x", errors.New("no"))
	const source = `{"storage":{},"sourceRef":{"kind":"DataSource","namespace":"golden","name":"debian"}}`
	golden := objects{"DataSource golden/debian": {labels: named("small")}}
	for name, c := range map[string]struct {
		spec    string
		labels  map[string]string
		objects objects
		refuse  map[string]error
		want    string
	}{
		"its labels":                     {source, named("large"), golden, nil, "large"},
		"its DataSource":                 {source, nil, golden, nil, "small"},
		"a DataVolume that is there":     {source, named("large"), objects{"DataVolume ns/root": {labels: named("medium")}}, nil, "medium"},
		"a DataVolume nobody may read":   {source, nil, golden, map[string]error{"DataVolume ns/root": refused}, "small"},
		"a DataSource nobody may read":   {source, nil, golden, map[string]error{dataSourceKind: refused}, "is not found"},
		"an API server that is away":     {source, nil, golden, map[string]error{dataVolumeKind: errors.New("timeout")}, "timeout"},
		"a claim":                        {`{"source":{"pvc":{"namespace":"golden","name":"d13"}}}`, nil, objects{"PersistentVolumeClaim golden/d13": {labels: named("small")}}, nil, "small"},
		"a spec that cannot be read":     {`[]`, nil, golden, nil, "is not found"},
		"a template of another name too": {"", nil, objects{"PersistentVolumeClaim ns/root": {labels: named("small")}}, nil, "small"},
	} {
		vm := &v1.VirtualMachine{}
		vm.Namespace = "ns"
		vm.Spec.Template.Spec.Volumes = []v1.Volume{{Name: "disk", DataVolume: &v1.DataVolumeSource{Name: "root"}}}
		vm.Spec.Instancetype = &v1.InstancetypeMatcher{InferFromVolume: "disk"}
		template := v1.DataVolumeTemplate{ObjectMeta: v1.DataVolumeTemplateMeta{Name: "root", Labels: c.labels}}
		if template.Spec.Raw = []byte(c.spec); c.spec == "" {
			template.ObjectMeta.Name = "other"
		}
		vm.Spec.DataVolumeTemplates = []v1.DataVolumeTemplate{template}
		r := &reader{objects: c.objects, refuse: c.refuse}
		got, _, err := instancetypeMatcher(vm).infer(t.Context(), r.get, vm)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: %s after %q, want %s", name, got, r.asked, c.want)
		}
	}
}

// TestInferredStays: a VM keeps what was inferred from its volume, whatever the labels say now: a migration may have copied the disk to
// another claim, and the DataVolume that said it is gone.
func TestInferredStays(t *testing.T) {
	for name, c := range map[string]struct {
		inferred string // the volume that the kept instancetype was inferred from
		kept     bool
	}{"from this volume": {"root", true}, "from another one": {"data", false}, "by its name": {"", false}} {
		vm := &v1.VirtualMachine{}
		vm.Namespace = "ns"
		vm.Spec.Instancetype = &v1.InstancetypeMatcher{InferFromVolume: "root"}
		vm.Spec.Template.Spec.Volumes = []v1.Volume{{Name: "root", DataVolume: &v1.DataVolumeSource{Name: "root"}}}
		vm.Status.InstancetypeRef = &v1.InstancetypeStatusRef{Name: "small", Kind: "VirtualMachineInstancetype", InferFromVolume: c.inferred, ControllerRevisionRef: &v1.ControllerRevisionRef{Name: "kept"}}
		r := &reader{}
		_, err := Find(t.Context(), r.get, vm)
		asked := strings.Join(r.asked, ", ")
		if (asked == "ControllerRevision ns/kept" || asked == "PersistentVolumeClaim ns/kept") != c.kept {
			t.Errorf("%s: asked for %s (%v)", name, asked, err)
		}
	}
}

// TestInferToStore: what a VM is stored with whose volumes name its instancetype and its preference.
func TestInferToStore(t *testing.T) {
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "x"}, "x", errors.New("no"))
	labelled := objects{"PersistentVolumeClaim ns/root": {labels: map[string]string{"instancetype.kubevirt.io/default-instancetype": "small",
		"instancetype.kubevirt.io/default-instancetype-kind": "virtualmachineinstancetype", "instancetype.kubevirt.io/default-preference": "linux"}}}
	plain := objects{"PersistentVolumeClaim ns/root": {}}
	const both, ignoring = `{"instancetype": {"inferFromVolume": "disk"}, "preference": {"inferFromVolume": "disk"}`,
		`{"instancetype": {"inferFromVolume": "disk", "inferFromVolumeFailurePolicy": "Ignore"}, "preference": {"inferFromVolume": "disk", "inferFromVolumeFailurePolicy": "Ignore"}`
	const names = `{"instancetype":{"name":"small","kind":"virtualmachineinstancetype"},"preference":{"name":"linux"}}`
	const memory = `, "template": {"spec": {"domain": {"memory": {"guest": "1Gi"}}}}}`
	for name, c := range map[string]struct {
		spec, old    string
		by           string // the volume that led to the stored names
		objects      objects
		refuse       map[string]error
		want         string // the instancetype and the preference, or the error
		forgetMemory bool
	}{
		"labels":                                  {spec: both + memory, objects: labelled, want: names},
		"labels, and memory if none":              {spec: ignoring + memory, objects: labelled, want: names, forgetMemory: true},
		"no labels":                               {spec: both + memory, objects: plain, want: "default-instancetype of PersistentVolumeClaim \"root\" is not found"},
		"no labels, and memory if none":           {spec: ignoring + memory, objects: plain, want: `{}`},
		"no claim":                                {spec: both + memory, want: `PersistentVolumeClaim "root" not found`},
		"no claim, and memory if none":            {spec: ignoring + memory, want: `PersistentVolumeClaim "root" not found`},
		"no volume":                               {spec: `{"preference": {"inferFromVolume": "other", "inferFromVolumeFailurePolicy": "Ignore"}}`, want: `volume "other" is not found in the template`},
		"a claim that may not be read":            {spec: both + memory, objects: labelled, refuse: map[string]error{claimKind: refused}, want: `{"instancetype":{"inferFromVolume":"disk"},"preference":{"inferFromVolume":"disk"}}`},
		"names":                                   {spec: `{"instancetype": {"name": "x"}` + memory, want: `{"instancetype":{"name":"x"}}`},
		"applied again":                           {by: "disk", spec: `{"instancetype": {"name": "small", "inferFromVolume": "disk", "inferFromVolumeFailurePolicy": "Ignore"}` + memory, old: names, want: `{"instancetype":{"name":"small"}}`, forgetMemory: true},
		"another volume":                          {by: "former", spec: `{"instancetype": {"name": "small", "inferFromVolume": "disk"}` + memory, old: names, objects: labelled, want: `volume "former" has named it`},
		"another volume, and memory if none":      {by: "former", spec: `{"instancetype": {"name": "small", "inferFromVolume": "disk", "inferFromVolumeFailurePolicy": "Ignore"}` + memory, old: names, objects: plain, want: `volume "former" has named it`},
		"another volume of a preference":          {by: "former", spec: `{"preference": {"name": "linux", "inferFromVolume": "disk"}` + memory, old: names, objects: labelled, want: `volume "former" has named it`},
		"another volume, and the name is cleared": {by: "former", spec: both + memory, old: names, objects: labelled, want: names},
		"a volume beside a name that none led to": {spec: `{"instancetype": {"name": "small", "inferFromVolume": "disk"}` + memory, old: names, want: `{"instancetype":{"name":"small","inferFromVolume":"disk"}}`},
		"a volume beside another's name":          {spec: `{"instancetype": {"name": "large", "inferFromVolume": "disk"}` + memory, old: names, want: `{"instancetype":{"name":"large","inferFromVolume":"disk"}}`},
		"the API server does not answer":          {spec: both + memory, refuse: map[string]error{claimKind: errors.New("timeout")}, want: "timeout"},
	} {
		vm, r := &v1.VirtualMachine{}, &reader{objects: c.objects, refuse: c.refuse}
		var old *v1.VirtualMachine
		if c.old != "" {
			old = &v1.VirtualMachine{}
			decodeSpec(t, c.old, old)
		}
		decodeSpec(t, c.spec, vm)
		if c.by != "" {
			old.Annotations = map[string]string{"kubeqemu.io/instancetype-inferred": c.by + "/small", "kubeqemu.io/preference-inferred": c.by + "/linux"}
			vm.Annotations = maps.Clone(old.Annotations)
		}
		vm.Namespace = "ns"
		vm.Spec.Template.Spec.Volumes = []v1.Volume{{Name: "disk", PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "root"}}}
		before := vm.DeepCopy()
		named, err := Infer(t.Context(), r.get, vm, old)
		if err != nil {
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %s", name, err, c.want)
			}
			continue
		}
		got, _ := json.Marshal(struct {
			Instancetype *v1.InstancetypeMatcher `json:"instancetype,omitempty"`
			Preference   *v1.PreferenceMatcher   `json:"preference,omitempty"`
		}{named.Spec.Instancetype, named.Spec.Preference})
		if forgotten := named.Spec.Template.Spec.Domain.Memory == nil && before.Spec.Template.Spec.Domain.Memory != nil; string(got) != c.want || forgotten != c.forgetMemory {
			t.Errorf("%s: %s, memory forgotten: %v, want %s", name, got, forgotten, c.want)
		}
		if m := named.Spec.Instancetype; m != nil && m.InferFromVolume == "" && vm.Spec.Instancetype.InferFromVolume != "" && named.Annotations["kubeqemu.io/instancetype-inferred"] != "disk/small" {
			t.Errorf("%s: annotations %v", name, named.Annotations)
		}
		if !equality.Semantic.DeepEqual(before, vm) {
			t.Errorf("%s: the VM itself has changed", name)
		}
	}
}

func decodeSpec(t *testing.T, text string, vm *v1.VirtualMachine) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &vm.Spec); err != nil {
		t.Fatal(err)
	}
}

// TestSettled: whether a VM's status has revisions of what the VM names.
func TestSettled(t *testing.T) {
	kept := func(name, kind, volume string) *v1.InstancetypeStatusRef {
		return &v1.InstancetypeStatusRef{Name: name, Kind: kind, InferFromVolume: volume, ControllerRevisionRef: &v1.ControllerRevisionRef{Name: "kept"}}
	}
	const kind = "VirtualMachineInstancetype"
	for name, c := range map[string]struct {
		matcher *v1.InstancetypeMatcher
		ref     *v1.InstancetypeStatusRef
		want    bool
	}{
		"nothing":              {nil, nil, true},
		"named no more":        {nil, kept("small", kind, ""), false},
		"new":                  {&v1.InstancetypeMatcher{Name: "small"}, nil, false},
		"kept":                 {&v1.InstancetypeMatcher{Name: "small", Kind: "virtualmachineinstancetypes"}, kept("small", kind, ""), true},
		"not kept":             {&v1.InstancetypeMatcher{Name: "small", Kind: kind}, &v1.InstancetypeStatusRef{Name: "small", Kind: kind}, false},
		"another name":         {&v1.InstancetypeMatcher{Name: "large", Kind: kind}, kept("small", kind, ""), false},
		"another kind":         {&v1.InstancetypeMatcher{Name: "small"}, kept("small", kind, ""), false},
		"another revision":     {&v1.InstancetypeMatcher{Name: "small", Kind: kind, RevisionName: "other"}, kept("small", kind, ""), false},
		"this revision":        {&v1.InstancetypeMatcher{Name: "small", Kind: kind, RevisionName: "kept"}, kept("small", kind, ""), true},
		"inferred":             {&v1.InstancetypeMatcher{InferFromVolume: "disk"}, kept("small", kind, "disk"), true},
		"inferred from others": {&v1.InstancetypeMatcher{InferFromVolume: "disk"}, kept("small", kind, "other"), false},
		"inferred before":      {&v1.InstancetypeMatcher{Name: "small", Kind: kind}, kept("small", kind, "disk"), false},
	} {
		vm := &v1.VirtualMachine{}
		vm.Spec.Instancetype, vm.Status.InstancetypeRef = c.matcher, c.ref
		if got := Settled(vm); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
