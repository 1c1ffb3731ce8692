package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/apiserver/serving"
)

// olderVersion is the older version of kubevirt.io.
const olderVersion = "v1alpha3"

// olderVersions are served beside the versions that are stored.
func (s *testServer) olderVersions(t *testing.T) {
	t.Run("same answers", s.sameAnswers)
	t.Run("same objects", s.sameObjects)
	t.Run("changes", s.olderChanges)
	t.Run("large numbers", s.largeNumbers)
	t.Run("applied in both", s.appliedInBoth)
	t.Run("status", s.olderStatus)
	t.Run("scale", s.olderScale)
	t.Run("costly", s.olderCostly)
	t.Run("columns", s.olderColumns)
	t.Run("webhook missing", s.webhookMissing)
}

// kinds of which there are older versions: the version that is stored, the older one, and a spec
// that is right.
var olderKinds = map[string]struct{ stored, older, spec string }{
	"VirtualMachineInstance":           {"kubevirt.io/v1", "kubevirt.io/v1alpha3", spec},
	"VirtualMachine":                   {"kubevirt.io/v1", "kubevirt.io/v1alpha3", `{"runStrategy":"Halted","template":{"spec":` + spec + `}}`},
	"VirtualMachineInstanceReplicaSet": {"kubevirt.io/v1", "kubevirt.io/v1alpha3", `{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":` + spec + `}}`},
	"VirtualMachinePool": {"pool.kubevirt.io/v1beta1", "pool.kubevirt.io/v1alpha1", `{"selector":{"matchLabels":{"a":"b"}},"virtualMachineTemplate":{"metadata":{"labels":{"a":"b"}},
		"spec":{"runStrategy":"Halted","template":{"metadata":{"labels":{"a":"b"}},"spec":` + spec + `}}}}`},
	"KubeVirt": {"kubevirt.io/v1", "kubevirt.io/v1alpha3", `{"configuration":{"cpuModel":"Nehalem"}}`},
}

const spec = `{"domain":{"memory":{"guest":"128Mi"},"devices":{"disks":[{"name":"root","disk":{"bus":"virtio"}}]}},"volumes":[{"name":"root","containerDisk":{"image":"image:v1"}}]}`

// object makes an object of a version.
func object(t *testing.T, version, kind, name, spec string) *unstructured.Unstructured {
	t.Helper()
	made := &unstructured.Unstructured{}
	text := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"namespace":"default","name":%q},"spec":%s}`, version, kind, name, spec)
	if err := json.Unmarshal([]byte(text), made); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return made
}

// warned collects what the API server warns of.
type warned struct {
	mu   sync.Mutex
	text []string
}

func (w *warned) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, text)
}

// take returns the warnings since it was last called.
func (w *warned) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := w.text
	w.text = nil
	slices.Sort(text)
	return text
}

// warnedClient is the administrator's, and what it is warned of.
func (s *testServer) warnedClient(t *testing.T) (client.Client, *warned) {
	t.Helper()
	config, warnings := rest.CopyConfig(s.config), &warned{}
	config.WarningHandler = warnings
	c, err := client.New(config, client.Options{Scheme: s.scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c, warnings
}

var byWebhook = regexp.MustCompile(`admission webhook "[^"]+" denied the request: `)

// said is what a client reads of an error, but for the version, and for who refuses.
func said(err error) string {
	var status *apierrors.StatusError
	if !errors.As(err, &status) {
		return fmt.Sprint(err)
	}
	message := byWebhook.ReplaceAllString(status.ErrStatus.Message, "")
	message = strings.NewReplacer(`version "v1alpha3"`, `version "v1"`, `version "v1alpha1"`, `version "v1beta1"`).Replace(message)
	var lines []string
	if details := status.ErrStatus.Details; details != nil && len(details.Causes) > 0 {
		// Several rules are broken in any order.
		for _, cause := range details.Causes {
			lines = append(lines, fmt.Sprint(cause.Field, ": ", cause.Message))
		}
		slices.Sort(lines)
		message, _, _ = strings.Cut(message, " is invalid: ")
		message += fmt.Sprint(details.Group, details.Kind, details.Name)
	}
	return strings.Join(append([]string{fmt.Sprint(status.ErrStatus.Code, status.ErrStatus.Reason), message}, lines...), "\n")
}

// byScale says that the API server itself refuses in each version what the subresource scale would
// not bear, before it asks a webhook. Then an older version has these errors alone.
func byScale(stored, older string) bool {
	lines, all := strings.Split(older, "\n"), strings.Split(stored, "\n")
	return len(lines) > 2 && !slices.ContainsFunc(lines[2:], func(line string) bool {
		return !strings.HasPrefix(line, ".spec.replicas: ") || !slices.Contains(all, line)
	})
}

// sameAnswers: what is wrong with an object is said in the same words in both versions.
func (s *testServer) sameAnswers(t *testing.T) {
	change := func(was, is string) func(string) string {
		return func(spec string) string {
			if !strings.Contains(spec, was) {
				t.Fatalf("%s is not in %s", was, spec)
			}
			return strings.Replace(spec, was, is, 1)
		}
	}
	const guest, disk, devices, volumes = `{"guest":"128Mi"}`, `{"name":"root","disk":{"bus":"virtio"}}`, `"devices":{`, `"volumes":[`
	domain := map[string]func(string) string{
		"nothing":                          func(spec string) string { return spec },
		"no spec":                          func(string) string { return `null` },
		"a spec of another type":           func(string) string { return `"none"` },
		"an empty spec":                    func(string) string { return `{}` },
		"an unknown field":                 change(devices, `"devices":{"colour":"red",`),
		"unknown fields, also in a list":   change(disk, `{"name":"root","disk":{"bus":"virtio","colour":"red"},"size":7,"more":{"a":1}}`),
		"an unknown field, and an error":   change(guest, `{"guest":[],"colour":"red"}`),
		"a string for a number":            change(devices, `"cpu":{"cores":"many"},"devices":{`),
		"a fraction for a number":          change(devices, `"cpu":{"cores":1.5},"devices":{`),
		"a negative number":                change(devices, `"cpu":{"cores":-1},"devices":{`),
		"a number beyond 32 bits":          change(devices, `"cpu":{"cores":4294967296},"devices":{`),
		"a list for an object":             change(guest, `[1,2]`),
		"an object for a list":             change(`[`+disk+`]`, `{"a":1}`),
		"an item of another type":          change(disk, disk+`,"b"`),
		"null":                             change(guest, `null`),
		"null in a list":                   change(disk, disk+`,null`),
		"a missing name":                   change(`"name":"root","disk"`, `"disk"`),
		"a name twice":                     change(disk, disk+`,`+disk),
		"volumes of one name":              change(volumes, `"volumes":[{"name":"root","emptyDisk":{"capacity":"1Gi"}},`),
		"no value of an enumeration":       change(`"virtio"`, `"ide"`),
		"no quantity":                      change(`"128Mi"`, `"lots"`),
		"a quantity with an exponent":      change(`"128Mi"`, `"1e9"`),
		"a number as a quantity":           change(`"128Mi"`, `134217728`),
		"a field that is not supported":    change(devices, `"devices":{"tpm":{},`),
		"fields that are not supported":    change(devices, `"features":{"hyperv":{}},"devices":{"tpm":{},"gpus":[{"name":"a","deviceName":"b"}],`),
		"two disks in one":                 change(`"disk":{"bus":"virtio"}`, `"disk":{"bus":"virtio"},"cdrom":{"bus":"sata"}`),
		"two volumes in one":               change(`"containerDisk":{"image":"image:v1"}`, `"containerDisk":{"image":"image:v1"},"emptyDisk":{"capacity":"1Gi"}`),
		"too little memory":                change(`"128Mi"`, `"1"`),
		"a disk without volume":            change(disk, disk+`,{"name":"none","disk":{}}`),
		"too long a string":                change(volumes, `"hostname":"`+strings.Repeat("x", 300)+`","volumes":[`),
		"a name that is none":              change(volumes, `"hostname":"A B","volumes":[`),
		"errors of the schema and of ours": change(disk, `{"name":"none","disk":{"bus":"ide"}}`),
		"too many items":                   change(`[`+disk+`]`, `[`+strings.TrimSuffix(strings.Repeat(disk+",", 300), ",")+`]`),
		"a selector of another type":       change(volumes, `"nodeSelector":{"a":7},"volumes":[`),
	}
	own := map[string]map[string]func(string) string{
		"VirtualMachineInstance": domain, "VirtualMachine": domain, "VirtualMachineInstanceReplicaSet": domain, "VirtualMachinePool": domain,
		"KubeVirt": {
			"nothing":          domain["nothing"],
			"a wrong type":     change(`"Nehalem"`, `7`),
			"an unknown field": change(`"cpuModel"`, `"colour":"red","cpuModel"`),
			"a rule of ours":   change(`"Nehalem"`, `"a,b"`),
		},
	}
	more := map[string]map[string]func(string) string{
		"VirtualMachine": {
			"two run strategies":     change(`"runStrategy":"Halted"`, `"runStrategy":"Halted","running":true`),
			"no run strategy":        change(`"runStrategy":"Halted",`, ``),
			"another run strategy":   change(`"Halted"`, `"Sometimes"`),
			"dataVolumeTemplates":    change(`"runStrategy"`, `"dataVolumeTemplates":[{"metadata":{"name":"a"}}],"runStrategy"`),
			"an instancetype":        change(`"runStrategy"`, `"instancetype":{"name":"small"},"runStrategy"`),
			"labels of another type": change(`"template":{`, `"template":{"metadata":{"labels":{"a":1}},`),
		},
		"VirtualMachineInstanceReplicaSet": {
			"negative replicas":        change(`"selector"`, `"replicas":-1,"selector"`),
			"replicas of another type": change(`"selector"`, `"replicas":"two","selector"`),
			"replicas beyond 32 bits":  change(`"selector"`, `"replicas":4294967296,"selector"`),
			"another selector":         change(`{"matchLabels":{"a":"b"}}`, `{"matchLabels":{"a":"c"}}`),
			"no selector":              change(`"selector":{"matchLabels":{"a":"b"}},`, ``),
		},
		"VirtualMachinePool": {"negative replicas": change(`"selector"`, `"replicas":-1,"selector"`), "no selector": change(`"selector":{"matchLabels":{"a":"b"}},`, ``)},
	}
	c, warnings := s.warnedClient(t)
	refused, warnedOf := 0, 0
	for kind, k := range olderKinds {
		namespace := "default"
		if kind == "KubeVirt" {
			namespace = v1.KubeVirtNamespace
		}
		for _, cases := range []map[string]func(string) string{own[kind], more[kind]} {
			for what, change := range cases {
				validations := []client.FieldValidation{metav1.FieldValidationStrict}
				if strings.Contains(what, "unknown") { // otherwise both are the same
					validations = append(validations, metav1.FieldValidationWarn)
				}
				for _, validation := range validations {
					var answers, warningsOf []string
					for _, version := range []string{k.stored, k.older} {
						o := object(t, version, kind, "same", change(k.spec))
						o.SetNamespace(namespace)
						if kind == "KubeVirt" {
							o.SetName("kubevirt")
							_ = c.Delete(t.Context(), o.DeepCopy()) // one of another name would be a mistake too
						}
						answers = append(answers, said(c.Create(t.Context(), o, client.DryRunAll, validation)))
						warningsOf = append(warningsOf, strings.Join(warnings.take(), "\n"))
					}
					if answers[0] != "<nil>" {
						refused++
					}
					if warningsOf[0] != "" {
						warnedOf++
					}
					if diff := cmp.Diff(answers[0], answers[1]); diff != "" && !byScale(answers[0], answers[1]) {
						t.Errorf("%s, %s, %s (-stored +older):\n%s", kind, what, validation, diff)
					}
					if diff := cmp.Diff(warningsOf[0], warningsOf[1]); diff != "" {
						t.Errorf("%s, %s, %s: warnings (-stored +older):\n%s", kind, what, validation, diff)
					}
				}
			}
		}
	}
	s.configure(t, v1.KubeVirtConfiguration{})
	if refused < 120 || warnedOf < 10 {
		t.Errorf("%d objects were refused, and %d brought warnings: the test checks little", refused, warnedOf)
	}
	t.Logf("%d objects were refused, %d brought warnings", refused, warnedOf)
}

// sameObjects: what is created in one version is the same as what is created in the other, reads
// the same in both, and goes through both unchanged.
func (s *testServer) sameObjects(t *testing.T) {
	c, warnings := s.warnedClient(t)
	samples, err := os.ReadDir("../../config/samples")
	if err != nil {
		t.Fatal(err)
	}
	specs := map[string][]string{}
	for kind, k := range olderKinds {
		if kind != "KubeVirt" {
			specs[kind] = []string{k.spec}
		}
	}
	for _, sample := range samples {
		text, err := os.ReadFile("../../config/samples/" + sample.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range strings.Split(string(text), "\n---\n") {
			var o unstructured.Unstructured
			if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
				t.Fatal(err)
			}
			if _, ok := specs[o.GetKind()]; ok {
				spec, err := json.Marshal(o.Object["spec"])
				if err != nil {
					t.Fatal(err)
				}
				specs[o.GetKind()] = append(specs[o.GetKind()], string(spec))
			}
		}
	}
	for kind, all := range specs {
		k := olderKinds[kind]
		for i, spec := range all {
			var read []map[string]any
			for _, version := range []string{k.stored, k.older} {
				made := object(t, version, kind, fmt.Sprintf("same-%d-%s", i, strings.ReplaceAll(version[len(version)-4:], "/", "")), spec)
				_ = unstructured.SetNestedField(made.Object, "red", "spec", "colour")
				if err := c.Create(t.Context(), made); err != nil {
					t.Errorf("%s in %s: %v", spec, version, err)
					continue
				}
				if got := warnings.take(); !slices.Equal(got, []string{`unknown field "spec.colour"`}) {
					t.Errorf("%s: warnings %q", version, got)
				}
				for _, as := range []string{k.stored, k.older} {
					got := &unstructured.Unstructured{}
					got.SetAPIVersion(as)
					got.SetKind(kind)
					if err := c.Get(t.Context(), client.ObjectKeyFromObject(made), got); err != nil {
						t.Fatal(err)
					}
					// The schema's defaults are stored with the first change in the stored version.
					if err := c.Update(t.Context(), got); err != nil {
						t.Error(err)
					}
					before := got.GetResourceVersion()
					// Written back as it was read, in either version, it is no change.
					if err := c.Update(t.Context(), got, client.FieldValidation(metav1.FieldValidationStrict)); err != nil || got.GetResourceVersion() != before {
						t.Errorf("%s %s, written as %s and back as %s: %v, resourceVersion %s, was %s", kind, spec, version, as, err, got.GetResourceVersion(), before)
					}
					unstructured.RemoveNestedField(got.Object, "spec", "domain", "firmware", "uuid")
					delete(got.Object, "metadata")
					delete(got.Object, "apiVersion")
					read = append(read, got.Object)
				}
			}
			for _, other := range read[min(1, len(read)):] {
				if diff := cmp.Diff(read[0], other); diff != "" {
					t.Errorf("%s %s (-stored +older):\n%s", kind, spec, diff)
				}
			}
			if len(read) != 4 {
				t.Errorf("%s %s was read %d times", kind, spec, len(read))
			}
		}
	}
	s.clear(t)
}

// olderChanges: changes are checked too, and of what was wrong before only what changes.
func (s *testServer) olderChanges(t *testing.T) {
	vm := object(t, "kubevirt.io/v1", "VirtualMachine", "changed", olderKinds["VirtualMachine"].spec)
	// As an older release may have stored it: the rules of today refuse its template.
	s.configure(t, v1.KubeVirtConfiguration{})
	_ = unstructured.SetNestedField(vm.Object, "1", "spec", "template", "spec", "domain", "memory", "guest")
	if err := s.as(controllerAccount).Create(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	for body, says := range map[string]string{
		`{"spec":{"runStrategy":"Manual"}}`:                                                     "",
		`{"spec":{"runStrategy":"Sometimes"}}`:                                                  "spec.runStrategy: Unsupported value",
		`{"spec":{"runStrategy":7}}`:                                                            "spec.runStrategy: Invalid value",
		`{"spec":{"template":{"spec":{"domain":{"memory":{"guest":"2"}}}}}}`:                    "spec.template.spec.domain.memory.guest",
		`{"spec":{"template":{"spec":{"domain":{"devices":{"disks":"none"}}}}}}`:                "spec.template.spec.domain.devices.disks: Invalid value",
		`{"spec":{"template":{"spec":{"domain":{"memory":{"guest":"128Mi"}},"hostname":"b"}}}}`: "",
		`{"metadata":{"labels":{"a":"b"}}}`:                                                     "",
		`{"spec":null}`:                                                                         "spec: Required value",
	} {
		for _, version := range []string{"kubevirt.io/v1", "kubevirt.io/v1alpha3"} {
			changed := vm.DeepCopy()
			changed.SetAPIVersion(version)
			err := s.admin.Patch(t.Context(), changed, client.RawPatch(types.MergePatchType, []byte(body)), client.DryRunAll)
			if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %s: %v, want %q", version, body, err, says)
			}
		}
	}
	s.clear(t)
}

// CEL takes the largest whole number of 64 bits, and the next one, for equal.
const largest, next = "9223372036854775807", "9223372036854775808"

// tolerations have a number that is whole in their Go type.
func tolerations(seconds string) string {
	return `[{"key":"a","operator":"Exists","effect":"NoExecute","tolerationSeconds":` + seconds + `}]`
}

// tolerating is a VM's spec with such tolerations.
func tolerating(seconds string) string {
	return strings.Replace(olderKinds["VirtualMachine"].spec, `"volumes":[`, `"tolerations":`+tolerations(seconds)+`,"volumes":[`, 1)
}

// largeNumbers: CEL takes the largest whole number and the next one, which no component can read, for
// equal. The API server and the webhook do not.
func (s *testServer) largeNumbers(t *testing.T) {
	vm := object(t, "kubevirt.io/v1alpha3", "VirtualMachine", "large", tolerating(largest))
	if err := s.admin.Create(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	for _, patch := range []client.Patch{
		client.RawPatch(types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/template/spec/tolerations/0/tolerationSeconds","value":`+next+`}]`)),
		client.RawPatch(types.MergePatchType, []byte(`{"spec":{"template":{"spec":{"tolerations":`+tolerations(next)+`}}}}`)),
	} {
		if err := s.admin.Patch(t.Context(), vm.DeepCopy(), patch); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.template.spec.tolerations[0].tolerationSeconds") {
			t.Errorf("%s: %v", patch.Type(), err)
		}
	}
	all := &v1.VirtualMachineList{}
	if err := s.admin.List(t.Context(), all); err != nil || len(all.Items) == 0 {
		t.Errorf("%d VMs can be read: %v", len(all.Items), err)
	}
	s.clear(t)
}

// appliedInBoth: server-side apply in both versions in turn, by two managers. Each keeps its own.
func (s *testServer) appliedInBoth(t *testing.T) {
	apply := func(version, manager, spec string) (*unstructured.Unstructured, error) {
		o := object(t, version, "VirtualMachine", "applied", spec)
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		return o, s.admin.Patch(t.Context(), o, client.RawPatch(types.ApplyPatchType, text), client.FieldOwner(manager), client.FieldValidation(metav1.FieldValidationStrict))
	}
	whole := olderKinds["VirtualMachine"].spec
	if _, err := apply("kubevirt.io/v1alpha3", "first", whole); err != nil {
		t.Fatal(err)
	}
	if _, err := apply("kubevirt.io/v1", "second", `{"template":{"spec":{"hostname":"b"}}}`); err != nil {
		t.Fatal(err)
	}
	got, err := apply("kubevirt.io/v1alpha3", "first", whole)
	if err != nil {
		t.Fatal(err)
	}
	if name, _, _ := unstructured.NestedString(got.Object, "spec", "template", "spec", "hostname"); name != "b" {
		t.Errorf("the second manager's hostname is %q", name)
	}
	if _, err := apply("kubevirt.io/v1alpha3", "third", `{"runStrategy":"Always"}`); !apierrors.IsConflict(err) {
		t.Errorf("a field that another manager has: %v", err)
	}
	if _, err := apply("kubevirt.io/v1alpha3", "third", `{"colour":"red"}`); err == nil || !strings.Contains(err.Error(), "spec.colour") {
		t.Errorf("an unknown field: %v", err)
	}
	s.clear(t)
}

// olderStatus: the status is written in the stored version only, and stays as it is otherwise.
func (s *testServer) olderStatus(t *testing.T) {
	vm := object(t, "kubevirt.io/v1", "VirtualMachine", "status", olderKinds["VirtualMachine"].spec)
	if err := s.admin.Create(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	status := client.RawPatch(types.MergePatchType, []byte(`{"status":{"printableStatus":"Stopped"}}`))
	older := vm.DeepCopy()
	older.SetAPIVersion("kubevirt.io/v1alpha3")
	for _, body := range []string{`{"status":{"printableStatus":"Stopped"}}`, `{"status":{"conditions":7}}`, `{"status":"none"}`} {
		err := s.admin.Status().Patch(t.Context(), older.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(body)))
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "the status is not written in this version") {
			t.Errorf("%s: %v", body, err)
		}
	}
	if err := s.admin.Status().Patch(t.Context(), vm, status); err != nil {
		t.Fatal(err)
	}
	observed := func(generation string) client.Patch {
		return client.RawPatch(types.MergePatchType, []byte(`{"status":{"observedGeneration":`+generation+`}}`))
	}
	if err := s.admin.Status().Patch(t.Context(), vm, observed(largest)); err != nil {
		t.Fatal(err)
	}
	if err := s.admin.Status().Patch(t.Context(), older.DeepCopy(), observed(next)); !apierrors.IsForbidden(err) {
		t.Errorf("the status, which CEL takes for unchanged: %v", err)
	}
	if err := s.admin.Patch(t.Context(), older, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"runStrategy":"Manual"},"status":{"conditions":7}}`))); err != nil {
		t.Error(err)
	}
	if got, _, _ := unstructured.NestedString(older.Object, "status", "printableStatus"); got != "Stopped" {
		t.Errorf("after a change, the status is %v", older.Object["status"])
	}
	s.clear(t)
}

// olderScale: the subresource scale is the same.
func (s *testServer) olderScale(t *testing.T) {
	k := olderKinds["VirtualMachineInstanceReplicaSet"]
	rs := object(t, k.older, "VirtualMachineInstanceReplicaSet", "scaled", k.spec)
	if err := s.admin.Create(t.Context(), rs); err != nil {
		t.Fatal(err)
	}
	for replicas, fine := range map[string]bool{"3": true, "-1": false, `"two"`: false, "null": true} {
		scale := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "autoscaling/v1", "kind": "Scale"}}
		body := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":`+replicas+`}}`))
		err := s.admin.SubResource("scale").Patch(t.Context(), rs.DeepCopy(), body, client.WithSubResourceBody(scale))
		if (err == nil) != fine {
			t.Errorf("%s replicas: %v", replicas, err)
		}
	}
	s.clear(t)
}

// olderCostly: what would take long, or much memory, is refused soon, and others are answered.
func (s *testServer) olderCostly(t *testing.T) {
	many := func(count int, item string) string { return strings.TrimSuffix(strings.Repeat(item+",", count), ",") }
	numbered := func(count int, item string) string {
		var items []string
		for i := range count {
			items = append(items, strings.ReplaceAll(item, "#", fmt.Sprint(i)))
		}
		return strings.Join(items, ",")
	}
	disks := func(items string) string {
		return `{"domain":{"memory":{"guest":"128Mi"},"devices":{"disks":[` + items + `]}},"volumes":[{"name":"root","containerDisk":{"image":"image:v1"}}]}`
	}
	for what, spec := range map[string]string{
		"deep":                strings.Repeat(`{"a":`, 200) + `1` + strings.Repeat(`}`, 200),
		"a costly number":     `{"domain":{"memory":{"guest":"1e-999999999"}}}`,
		"many values":         disks(many(60_000, `{}`)),
		"many errors":         disks(many(4_500, `"b"`)),
		"many unknown fields": `{` + numbered(2_400, `"a#":1`) + `,"domain":7}`,
		"long unknown fields": `{"` + strings.Repeat("x", 1_000_000) + `":1,"domain":7}`,
		"long values":         `{"hostname":"` + strings.Repeat("x", 1_000_000) + `","domain":{"memory":{"guest":"` + strings.Repeat("9", 60) + `"}}}`,
		"many of one name":    disks(many(900, `{"name":"root"}`)),
		"many names":          disks(numbered(900, `{"name":"a#"}`)),
		"values in values":    `{"domain":{"devices":{"disks":{"a":"` + strings.Repeat("y", 1_000_000) + `"}}}}`,
	} {
		err := s.admin.Create(t.Context(), object(t, "kubevirt.io/v1alpha3", "VirtualMachineInstance", "costly", spec), client.DryRunAll)
		if err == nil || len(err.Error()) > 100_000 || strings.Contains(err.Error(), "failed calling webhook") && what != "many values" {
			t.Errorf("%s: %.2000v", what, err)
		}
		if err := s.admin.Create(t.Context(), object(t, "kubevirt.io/v1alpha3", "VirtualMachineInstance", "fine", olderKinds["VirtualMachineInstance"].spec), client.DryRunAll); err != nil {
			t.Errorf("after %s: %v", what, err)
		}
	}
}

// olderColumns: kubectl shows the same columns.
func (s *testServer) olderColumns(t *testing.T) {
	columns := func(version, plural string) string {
		crd := &unstructured.Unstructured{}
		crd.SetAPIVersion("apiextensions.k8s.io/v1")
		crd.SetKind("CustomResourceDefinition")
		if err := s.admin.Get(t.Context(), types.NamespacedName{Name: plural}, crd); err != nil {
			t.Fatal(err)
		}
		versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
		for _, v := range versions {
			if v := v.(map[string]any); v["name"] == version && v["served"] == true {
				text, err := json.Marshal([]any{v["additionalPrinterColumns"], v["subresources"]})
				if err != nil {
					t.Fatal(err)
				}
				return string(text)
			}
		}
		t.Fatalf("%s is not served in %s", plural, version)
		return ""
	}
	for plural, versions := range map[string][2]string{
		"virtualmachines.kubevirt.io": {"v1", "v1alpha3"}, "virtualmachineinstances.kubevirt.io": {"v1", "v1alpha3"},
		"virtualmachineinstancereplicasets.kubevirt.io": {"v1", "v1alpha3"}, "kubevirts.kubevirt.io": {"v1", "v1alpha3"},
		"virtualmachinepools.pool.kubevirt.io": {"v1beta1", "v1alpha1"},
	} {
		if stored, older := columns(versions[0], plural), columns(versions[1], plural); stored != older || !strings.Contains(stored, "jsonPath") {
			t.Errorf("%s: %s, in the older version %s", plural, stored, older)
		}
	}
}

// webhookMissing: without the webhook, objects of older versions are not written. What is there is
// read, labelled and deleted.
func (s *testServer) webhookMissing(t *testing.T) {
	vm := object(t, "kubevirt.io/v1alpha3", "VirtualMachine", "there", tolerating(largest))
	if err := s.admin.Create(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	config := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	key := types.NamespacedName{Name: serving.WebhooksName}
	if err := s.admin.Get(t.Context(), key, config); err != nil {
		t.Fatal(err)
	}
	installed := config.DeepCopy()
	restore := func() {
		config := installed.DeepCopy()
		config.ResourceVersion, config.UID = "", ""
		current := &admissionregistrationv1.ValidatingWebhookConfiguration{}
		err := s.admin.Get(t.Context(), key, current)
		if apierrors.IsNotFound(err) {
			err = s.admin.Create(t.Context(), config)
		} else if err == nil {
			config.ResourceVersion = current.ResourceVersion
			err = s.admin.Update(t.Context(), config)
		}
		if err != nil {
			t.Fatal(err)
		}
		s.poll("objects of older versions are written again", func() error {
			return s.admin.Create(t.Context(), object(t, "kubevirt.io/v1alpha3", "VirtualMachine", "again", olderKinds["VirtualMachine"].spec), client.DryRunAll)
		})
	}
	defer restore()
	i := slices.IndexFunc(config.Webhooks, func(w admissionregistrationv1.ValidatingWebhook) bool { return w.Name == "older-versions.kubevirt.io" })
	if i < 0 {
		t.Fatal("there is no such webhook")
	}
	for what, take := range map[string]func(*admissionregistrationv1.ValidatingWebhookConfiguration) error{
		"the webhook is gone": func(c *admissionregistrationv1.ValidatingWebhookConfiguration) error {
			c.Webhooks = slices.Delete(c.Webhooks, i, i+1)
			return s.admin.Update(t.Context(), c)
		},
		"the webhook may fail": func(c *admissionregistrationv1.ValidatingWebhookConfiguration) error {
			ignore := admissionregistrationv1.Ignore
			c.Webhooks[i].FailurePolicy = &ignore
			return s.admin.Update(t.Context(), c)
		},
		"the webhook is for other kinds": func(c *admissionregistrationv1.ValidatingWebhookConfiguration) error {
			c.Webhooks[i].Rules = c.Webhooks[i].Rules[1:]
			c.Webhooks[i].Rules[0].APIGroups = []string{"kubevirt.io"}
			return s.admin.Update(t.Context(), c)
		},
		"the webhook is for some namespaces": func(c *admissionregistrationv1.ValidatingWebhookConfiguration) error {
			c.Webhooks[i].NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"checked": "yes"}}
			return s.admin.Update(t.Context(), c)
		},
		"the webhook is for some objects": func(c *admissionregistrationv1.ValidatingWebhookConfiguration) error {
			c.Webhooks[i].ObjectSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "checked", Operator: metav1.LabelSelectorOpExists}}}
			return s.admin.Update(t.Context(), c)
		},
		"the configuration is gone": func(c *admissionregistrationv1.ValidatingWebhookConfiguration) error {
			return s.admin.Delete(t.Context(), c)
		},
	} {
		restore()
		current := &admissionregistrationv1.ValidatingWebhookConfiguration{}
		if err := s.admin.Get(t.Context(), key, current); err != nil {
			t.Fatal(err)
		}
		if err := take(current); err != nil {
			t.Fatal(err)
		}
		s.poll(what+": junk is refused by the policy", func() error {
			err := s.admin.Create(t.Context(), object(t, "kubevirt.io/v1alpha3", "VirtualMachine", "junk", `"junk"`), client.DryRunAll)
			if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "kubevirt-older-versions") {
				return fmt.Errorf("%v", err)
			}
			return nil
		})
		if what == "the webhook is for other kinds" {
			continue
		}
		for kind, k := range olderKinds {
			if err := s.admin.Create(t.Context(), object(t, k.older, kind, "junk", k.spec), client.DryRunAll); err == nil || !strings.Contains(err.Error(), "kubevirt-older-versions") {
				t.Errorf("%s: %s: %v", what, kind, err)
			}
		}
		if err := s.admin.Patch(t.Context(), vm.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"runStrategy":7}}`))); err == nil {
			t.Errorf("%s: what is there was changed", what)
		}
		large := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"template":{"spec":{"tolerations":`+tolerations(next)+`}}}}`))
		if err := s.admin.Patch(t.Context(), vm.DeepCopy(), large, client.DryRunAll); err == nil || !strings.Contains(err.Error(), "kubevirt-older-versions") {
			t.Errorf("%s: a change that CEL takes for none: %v", what, err)
		}
		if err := s.admin.Patch(t.Context(), vm.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"`+fmt.Sprint(len(what))+`"}}}`))); err != nil && what != "the configuration is gone" {
			t.Errorf("%s: a label: %v", what, err)
		}
		stored := object(t, "kubevirt.io/v1", "VirtualMachine", "stored", olderKinds["VirtualMachine"].spec)
		if err := s.as(controllerAccount).Create(t.Context(), stored, client.DryRunAll); err != nil {
			t.Errorf("%s: an object of the stored version: %v", what, err)
		}
	}
	if err := s.admin.Delete(t.Context(), vm); err != nil {
		t.Error(err)
	}
}
