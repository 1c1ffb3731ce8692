package datavolume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/api/validation"
)

// cluster has DataSources, by "namespace/name", and lets the VM's account use the namespace "open".
type cluster struct {
	client.Reader
	client.Writer
	sources map[string]map[string]any // their specs
	gets    int
	asked   []string
}

func (c *cluster) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	c.gets++
	spec, ok := c.sources[key.String()]
	if !ok {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "datasources"}, key.Name)
	}
	into.(*unstructured.Unstructured).Object["spec"] = spec
	into.SetLabels(map[string]string{"instancetype.kubevirt.io/default-preference": key.Name})
	return nil
}

func (c *cluster) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	review := object.(*authorizationv1.SubjectAccessReview)
	of := review.Spec.ResourceAttributes
	c.asked = append(c.asked, review.Spec.User+" "+of.Verb+" "+of.Resource+"/"+of.Subresource+" "+of.Namespace+"/"+of.Name)
	if want := []string{"system:serviceaccounts", "system:serviceaccounts:home", "system:authenticated"}; !slices.Equal(review.Spec.Groups, want) {
		return fmt.Errorf("asked for the groups %v, want %v", review.Spec.Groups, want)
	}
	review.Status.Allowed = of.Namespace == "open" && of.Resource == "datavolumes" && of.Subresource == "source"
	return nil
}

func decoded(t testing.TB, text string) map[string]any {
	t.Helper()
	var object map[string]any
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		t.Fatal(err)
	}
	return object
}

func machine(spec string) (*v1.VirtualMachine, *v1.DataVolumeTemplate) {
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "home", Name: "vm", UID: "uid"}}
	vm.Spec.Template.Spec.Volumes = []v1.Volume{{Name: "disk", DataVolume: &v1.DataVolumeSource{Name: "disk"}}}
	vm.Spec.DataVolumeTemplates = []v1.DataVolumeTemplate{{ObjectMeta: v1.DataVolumeTemplateMeta{Name: "disk"}}}
	vm.Spec.DataVolumeTemplates[0].Spec.Raw = []byte(spec)
	return vm, &vm.Spec.DataVolumeTemplates[0]
}

// TestWhatATemplateMayClone: what a template clones, whether it may, and what the DataVolume says then.
func TestWhatATemplateMayClone(t *testing.T) {
	sources := map[string]map[string]any{}
	for name, spec := range map[string]string{
		"home/mine":       `{"source":{"pvc":{"namespace":"secret","name":"disk"}}}`,
		"home/open":       `{"source":{"pvc":{"namespace":"open","name":"disk"}}}`,
		"home/local":      `{"source":{"snapshot":{"name":"disk"}}}`,
		"open/golden":     `{"source":{"pvc":{"namespace":"open","name":"disk"}}}`,
		"open/chain":      `{"source":{"dataSource":{"namespace":"open","name":"golden"}}}`,
		"open/abroad":     `{"source":{"dataSource":{"namespace":"secret","name":"golden"}}}`,
		"open/loop":       `{"source":{"dataSource":{"name":"loop"}}}`,
		"open/empty":      `{"source":{}}`,
		"open/odd":        `{"source":{"pvc":[7]}}`,
		"secret/empty":    `{}`,
		"secret/mine":     `{"source":{"pvc":{"name":"disk"}}}`,
		"secret/snapshot": `{"source":{"snapshot":{"namespace":"other","name":"disk"}}}`,
		"secret/home":     `{"source":{"pvc":{"namespace":"home","name":"disk"}}}`,
	} {
		sources[name] = decoded(t, spec)
	}
	from := func(source string) string { return `{"storage":{},"source":` + source + `}` }
	ref := func(name string) string {
		namespace, name, _ := strings.Cut(name, "/")
		return `{"storage":{},"sourceRef":{"kind":"DataSource","namespace":"` + namespace + `","name":"` + name + `"}}`
	}
	const denied = "service account default of namespace home may not clone from namespace secret"
	// Of a namespace that is closed to the account, each refusal reads alike but for the name.
	closed := func(name string) string {
		return "not authorized: DataSource secret/" + name + " does not exist, or leads to no source that service account default of namespace home may clone: " +
			"the account needs the right to create datavolumes/source.cdi.kubevirt.io in the source's namespace"
	}
	for spec, want := range map[string]struct {
		made  string // the source, or a part of the error
		label string
		gets  int
	}{
		from(`{"blank":{}}`):                                     {made: `{"blank":{}}`},
		from(`{"pvc":{"name":"disk"}}`):                          {made: `{"pvc":{"name":"disk","namespace":"home"}}`},
		from(`{"pvc":{"namespace":"open","name":"disk","x":1}}`): {made: `{"pvc":{"name":"disk","namespace":"open"}}`},
		from(`{"pvc":{"namespace":"secret","name":"disk"}}`):     {made: denied + ": the account needs the right to create datavolumes/source.cdi.kubevirt.io there, or to create pods"},
		from(`{"snapshot":{"namespace":"secret","name":"x"}}`):   {made: "or to create pods and create persistentvolumeclaims"},
		ref("home/mine"):                                         {denied, "", 1},
		ref("home/open"):                                         {`{"pvc":{"name":"disk","namespace":"open"}}`, "", 1},
		ref("home/local"):                                        {`{"snapshot":{"name":"disk","namespace":"home"}}`, "local", 1},
		ref("open/golden"):                                       {`{"pvc":{"name":"disk","namespace":"open"}}`, "golden", 1},
		ref("open/chain"):                                        {`{"pvc":{"name":"disk","namespace":"open"}}`, "chain", 2},
		ref("open/abroad"):                                       {"leads to a DataSource of another namespace", "", 1},
		ref("open/loop"):                                         {"is the last of more than 4", "", maxDataSources},
		ref("open/empty"):                                        {"names no claim", "", 1},
		ref("open/odd"):                                          {"names no claim", "", 1},
		ref("open/none"):                                         {"does not exist", "", 1},
		ref("secret/none"):                                       {closed("none"), "", 1},
		ref("secret/empty"):                                      {closed("empty"), "", 1},
		ref("secret/mine"):                                       {closed("mine"), "", 1},
		ref("secret/snapshot"):                                   {closed("snapshot"), "", 1},
		ref("secret/home"):                                       {`{"pvc":{"name":"disk","namespace":"home"}}`, "", 1},
	} {
		vm, template := machine(spec)
		c := &cluster{sources: sources}
		source, err := (&Cloner{Live: c, Client: c}).Source(t.Context(), vm, template)
		got, label := "", ""
		if err != nil {
			got = err.Error()
			if errors.Is(err, ErrUnauthorized) == errors.Is(err, ErrUnresolved) {
				t.Errorf("%s: %v is of neither sort", spec, err)
			}
		} else {
			made, err := Make(vm, template, source, "")
			if err != nil {
				t.Fatal(err)
			}
			fields := made.Object["spec"].(map[string]any)
			text, err := json.Marshal(fields["source"])
			if err != nil || fields["sourceRef"] != nil {
				t.Errorf("%s: %v (%v)", spec, fields, err)
			}
			got, label = string(text), made.GetLabels()["instancetype.kubevirt.io/default-preference"]
		}
		if !strings.Contains(got, want.made) || label != want.label || c.gets != want.gets {
			t.Errorf("%s: %s, label %q after %d reads, want %+v", spec, got, label, c.gets, want)
		}
		for _, asked := range c.asked {
			if !strings.HasPrefix(asked, "system:serviceaccount:home:default create ") {
				t.Errorf("%s: asked for %s", spec, asked)
			}
		}
	}
	vm, template := machine(from(`{"pvc":{"namespace":"secret","name":"disk"}}`))
	vm.Spec.Template.Spec.ServiceAccountName = "cloner"
	c := &cluster{}
	if _, err := (&Cloner{Live: c, Client: c}).Source(t.Context(), vm, template); err == nil || !strings.Contains(err.Error(), "service account cloner") || !strings.HasPrefix(c.asked[0], "system:serviceaccount:home:cloner ") {
		t.Errorf("another account: %v, asked for %q", err, c.asked)
	}
}

// TestTemplateCannotForgeOwnAnnotations: no template writes over what virt-controller says of a DataVolume.
func TestTemplateCannotForgeOwnAnnotations(t *testing.T) {
	vm, template := machine(`{"storage":{},"source":{"blank":{}}}`)
	vm.Spec.Template.Spec.ServiceAccountName = "runner"
	vm.Spec.Template.Spec.PriorityClassName = "high"
	template.ObjectMeta.Annotations = map[string]string{accountAnnotation: "admin", adoptionAnnotation: "false", "note": "this"}
	template.ObjectMeta.Labels = map[string]string{v1.CreatedByLabel: "another", "app": "web"}
	made, err := Make(vm, template, &Source{kind: "pvc", namespace: "open", name: "disk", labels: map[string]string{"app": "golden", "kind": "x"}}, "fast")
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{accountAnnotation: "runner", adoptionAnnotation: "false", "note": "this"}; !maps.Equal(made.GetAnnotations(), want) {
		t.Errorf("annotations %v, want %v", made.GetAnnotations(), want)
	}
	if want := map[string]string{"app": "web", "kind": "x"}; !maps.Equal(made.GetLabels(), want) {
		t.Errorf("labels %v, want %v", made.GetLabels(), want)
	}
	spec := made.Object["spec"].(map[string]any)
	if class := spec["priorityClassName"]; class != "high" {
		t.Errorf("priority class %v", class)
	}
	if class, _, _ := unstructured.NestedString(spec, "storage", "storageClassName"); class != "fast" {
		t.Errorf("storage class %q", class)
	}
	template.Spec.Raw = []byte(`{"pvc":{"storageClassName":"own"},"source":{"blank":{}}}`)
	if made, err = Make(vm, template, nil, "fast"); err != nil {
		t.Fatal(err)
	}
	if class, _, _ := unstructured.NestedString(made.Object, "spec", "pvc", "storageClassName"); class != "own" {
		t.Errorf("storage class %q", class)
	}
}

// TestInferredNameAndKindAreOfOneSource: a name and its kind are of one DataSource, the first that has the name.
func TestInferredNameAndKindAreOfOneSource(t *testing.T) {
	const prefix = "instancetype.kubevirt.io/default-"
	labels := map[string]string{}
	inherit(labels, map[string]string{prefix + "instancetype": "small", prefix + "preference-kind": "VirtualMachinePreference", "other": "x"})
	inherit(labels, map[string]string{prefix + "instancetype": "large", prefix + "instancetype-kind": "VirtualMachineInstancetype", prefix + "preference": "linux"})
	if want := map[string]string{prefix + "instancetype": "small", prefix + "preference": "linux"}; !maps.Equal(labels, want) {
		t.Errorf("labels %v, want %v", labels, want)
	}
}

// FuzzSource: whatever a template and a DataSource say, the DataVolume that is made clones from the
// VM's namespace, or from where its account may.
func FuzzSource(f *testing.F) {
	for _, s := range [][2]string{
		{`{"storage":{},"source":{"pvc":{"namespace":"secret","name":"a"}}}`, `{}`},
		{`{"storage":{},"sourceRef":{"kind":"DataSource","namespace":"open","name":"a"}}`, `{"source":{"pvc":{"namespace":"secret","name":"a"}}}`},
		{`{"storage":{},"sourceRef":{"kind":"DataSource","name":"a"}}`, `{"source":{"snapshot":{"namespace":"open","name":"a"},"pvc":null}}`},
		{`{"storage":{},"source":{"pvc":{"name":"a"}},"sourceRef":null}`, `{"source":{"dataSource":{"name":"a"}}}`},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, spec, of string) {
		vm, template := machine(spec)
		vm.Spec.RunStrategy = new(v1.VirtualMachineRunStrategy)
		*vm.Spec.RunStrategy = v1.RunStrategyAlways
		var dataSource map[string]any
		if len(validation.ValidateVirtualMachineSpec(vm)) > 0 || json.Unmarshal([]byte(of), &dataSource) != nil {
			return
		}
		c := &cluster{sources: map[string]map[string]any{"home/a": dataSource, "open/a": dataSource, "secret/a": dataSource}}
		source, err := (&Cloner{Live: c, Client: c}).Source(t.Context(), vm, template)
		if err != nil {
			return
		}
		made, err := Make(vm, template, source, "")
		if err != nil {
			t.Fatal(err)
		}
		fields := made.Object["spec"].(map[string]any)
		if fields["sourceRef"] != nil {
			t.Errorf("%s, %s: a sourceRef is left", spec, of)
		}
		from, _ := fields["source"].(map[string]any)
		for _, kind := range []string{"pvc", "snapshot"} {
			if at, ok := from[kind].(map[string]any); ok && at["namespace"] != "home" && at["namespace"] != "open" {
				t.Errorf("%s, %s: clones %v", spec, of, at)
			}
		}
	})
}
