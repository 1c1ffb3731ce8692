package admission

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeqemu/kubeqemu/api/instancetype/choice"
	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	"github.com/kubeqemu/kubeqemu/apiserver/serving"
)

// inBlue reads what ann may read in the namespace blue: an instancetype of two CPUs, a preference that requires four of them, one
// for which three cannot be spread, and a claim that names the instancetype. Nobody else may read anything.
func inBlue(user authenticationv1.UserInfo) choice.Get {
	return func(_ context.Context, key types.NamespacedName, into choice.Object) error {
		gone := apierrors.NewNotFound(schema.GroupResource{Resource: "x"}, key.Name)
		if user.Username != "ann" {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "x"}, key.Name, errors.New("no"))
		}
		if key.Namespace != "blue" {
			return gone
		}
		switch o := into.(type) {
		case *v1beta1.VirtualMachineInstancetype:
			cpus := map[string]uint32{"two": 2, "three": 3}[key.Name]
			if cpus == 0 {
				return gone
			}
			o.Spec.CPU.Guest, o.Spec.Memory.Guest = cpus, resource.MustParse("1Gi")
		case *v1beta1.VirtualMachinePreference:
			o.Spec.CPU = &v1beta1.CPUPreferences{PreferredCPUTopology: map[string]string{"spread": "spread"}[key.Name]}
			if key.Name == "four" {
				o.Spec.Requirements = &v1beta1.PreferenceRequirements{CPU: &v1beta1.CPUPreferenceRequirement{Guest: 4}}
			}
		case *corev1.PersistentVolumeClaim:
			if key.Name == "named" {
				o.Labels = map[string]string{"instancetype.kubevirt.io/default-instancetype": "two", "instancetype.kubevirt.io/default-instancetype-kind": "virtualmachineinstancetype"}
			}
		default:
			return gone
		}
		return nil
	}
}

// asking serves Choices, and returns what asks them.
func asking(keys error) func(path string, body string) (int, *admissionv1.AdmissionResponse) {
	mux := http.NewServeMux()
	RegisterChoices(mux, &Choices{Read: inBlue, Keys: func(path serving.Hidden) ([][]byte, error) { return [][]byte{[]byte(path.Purpose)}, keys }})
	return func(path, body string) (int, *admissionv1.AdmissionResponse) {
		recorder := httptest.NewRecorder()
		mux.ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
		var said admissionv1.AdmissionReview
		if json.Unmarshal(recorder.Body.Bytes(), &said) != nil || said.Response == nil {
			return recorder.Code, nil
		}
		return recorder.Code, said.Response
	}
}

func secretOf(path serving.Hidden) string { return path.SecretPath([]byte(path.Purpose)) }

// reviewOf is the question of a user about a VM in the namespace blue.
func reviewOf(user, object, old string) string {
	if old == "" {
		old = "null"
	}
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":%q,"name":"vm","namespace":"blue","operation":"CREATE","userInfo":{"username":%q},"object":%s,"oldObject":%s}}`,
		question, user, object, old)
}

// TestVMAndWhatItNames: virt-api refuses a VM that conflicts with its instancetype or its preference, with KubeVirt's
// words and causes. It refuses none for an object that is not there, or that the user may not read.
func TestVMAndWhatItNames(t *testing.T) {
	const vm = `{"spec":{%s"template":{"spec":{"domain":{%s}}}}}`
	two, pref := `"instancetype":{"name":"two","kind":"VirtualMachineInstancetype"},`, `"preference":{"name":"%s","kind":"virtualmachinepreference"},`
	ask := asking(nil)
	for name, c := range map[string]struct{ user, object, old, want string }{
		"they go together": {object: fmt.Sprintf(vm, two, "")},
		"one conflict": {object: fmt.Sprintf(vm, two, `"memory":{"guest":"1Gi"}`),
			want: "VM field(s) spec.template.spec.domain.memory.guest conflicts with selected instance type"},
		"conflicts": {object: fmt.Sprintf(vm, two, `"cpu":{"sockets":1,"cores":1,"threads":1}`),
			want: "VM field(s) spec.template.spec.domain.cpu.sockets conflicts with selected instance type, VM field(s) spec.template.spec.domain.cpu.cores conflicts with selected instance type, VM field(s) spec.template.spec.domain.cpu.threads conflicts with selected instance type"},
		"requirements": {object: fmt.Sprintf(vm, two+fmt.Sprintf(pref, "four"), ""),
			want: "failure checking preference requirements: insufficient CPU resources of 2 vCPU provided by instance type, preference requires 4 vCPU"},
		"requirements without an instancetype": {object: fmt.Sprintf(vm, fmt.Sprintf(pref, "four"), `"cpu":{"sockets":3}`),
			want: "failure checking preference requirements: insufficient CPU resources of 3 vCPU provided by VirtualMachine, preference requires 4 vCPU provided as sockets"},
		"CPUs that cannot be spread": {object: fmt.Sprintf(vm, strings.Replace(two, "two", "three", 1)+fmt.Sprintf(pref, "spread"), ""),
			want: "3 vCPUs provided by the instance type are not divisible by the Spec.PreferSpreadSocketToCoreRatio or Spec.CPU.PreferSpreadOptions.Ratio of 2 provided by the preference"},
		"an instancetype that is not there": {object: fmt.Sprintf(vm, strings.Replace(two, "two", "none", 1)+fmt.Sprintf(pref, "four"), `"memory":{"guest":"1Gi"}`)},
		"a user who may not read it":        {user: "bob", object: fmt.Sprintf(vm, two, `"memory":{"guest":"1Gi"}`)},
		"another namespace in the object":   {object: strings.Replace(fmt.Sprintf(vm, two, `"memory":{"guest":"1Gi"}`), `{"spec"`, `{"metadata":{"namespace":"green"},"spec"`, 1), want: "VM field(s) spec.template.spec.domain.memory.guest conflicts with selected instance type"},
		"being deleted":                     {object: strings.Replace(fmt.Sprintf(vm, two, `"memory":{"guest":"1Gi"}`), `{"spec"`, `{"metadata":{"deletionTimestamp":"2026-01-01T00:00:00Z"},"spec"`, 1)},
		"no VM":                             {object: `{"spec":7}`},
	} {
		if c.user == "" {
			c.user = "ann"
		}
		code, got := ask(secretOf(AgreementPath), reviewOf(c.user, c.object, c.old))
		if code != http.StatusOK || got == nil || got.UID != question || got.Allowed != (c.want == "") {
			t.Errorf("%s: %d %+v", name, code, got)
			continue
		}
		if c.want == "" {
			continue
		}
		if got.Result.Message != c.want || got.Result.Code != http.StatusUnprocessableEntity {
			t.Errorf("%s: %d %s, want %s", name, got.Result.Code, got.Result.Message, c.want)
		}
		var causes []string
		for _, cause := range got.Result.Details.Causes {
			causes = append(causes, cause.Message)
		}
		if strings.Join(causes, ", ") != c.want {
			t.Errorf("%s: causes %+v", name, got.Result.Details.Causes)
		}
	}
}

// TestVolumesThatNameWhatAVMGets: a VM gets the names that its volumes' labels have before it is stored.
func TestVolumesThatNameWhatAVMGets(t *testing.T) {
	const vm = `{"unknown":{"field":1},"spec":{"instancetype":{%s"inferFromVolume":"disk"%s},"template":{"spec":{"domain":{"memory":{"guest":"1024M"}},"volumes":[{"name":"disk","persistentVolumeClaim":{"claimName":"%s"}}]}}}}`
	const ignore = `,"inferFromVolumeFailurePolicy":"Ignore"`
	const annotated = `{"op":"add","path":"/metadata","value":{"annotations":{"kubeqemu.io/instancetype-inferred":"disk/two"}}}]`
	const stored = `{"metadata":{"annotations":{"kubeqemu.io/instancetype-inferred":"%s/two"}},"spec":{"instancetype":{"name":"two"}}}`
	ask := asking(nil)
	for name, c := range map[string]struct {
		user, object, old, patch, refused string
		code                              int32
	}{
		"named": {object: fmt.Sprintf(vm, "", "", "named"),
			patch: `[{"op":"remove","path":"/spec/instancetype/inferFromVolume"},{"op":"add","path":"/spec/instancetype/kind","value":"virtualmachineinstancetype"},{"op":"add","path":"/spec/instancetype/name","value":"two"},` + annotated},
		"named, and memory if nothing is": {object: fmt.Sprintf(vm, "", ignore, "named"),
			patch: `[{"op":"remove","path":"/spec/instancetype/inferFromVolume"},{"op":"remove","path":"/spec/instancetype/inferFromVolumeFailurePolicy"},{"op":"add","path":"/spec/instancetype/kind","value":"virtualmachineinstancetype"},{"op":"add","path":"/spec/instancetype/name","value":"two"},{"op":"remove","path":"/spec/template/spec/domain/memory"},` + annotated},
		"not named": {object: fmt.Sprintf(vm, "", "", "plain"), refused: `infer instancetype from volume "disk": label instancetype.kubevirt.io/default-instancetype of PersistentVolumeClaim "plain" is not found`},
		"not named, and memory if nothing is": {object: fmt.Sprintf(vm, "", ignore, "plain"),
			patch: `[{"op":"remove","path":"/spec/instancetype"}]`},
		"a user who may not read the claim": {user: "bob", object: fmt.Sprintf(vm, "", "", "named")},
		"applied again": {object: fmt.Sprintf(vm, `"name":"two",`, "", "plain"), old: fmt.Sprintf(stored, "disk"),
			patch: `[{"op":"remove","path":"/spec/instancetype/inferFromVolume"},` + annotated},
		"applied with another volume": {object: fmt.Sprintf(vm, `"name":"two",`, "", "named"), old: fmt.Sprintf(stored, "former"), code: http.StatusUnprocessableEntity,
			refused: `Name already set, should be cleared before setting inferFromVolume: volume "former" has named it`},
		"a reference in a status that the user sent": {object: strings.Replace(fmt.Sprintf(vm, "", "", "plain"), `"spec"`, `"status":{"instancetypeRef":{"name":"two","inferFromVolume":"disk","controllerRevisionRef":{"name":"mine"}}},"spec"`, 1),
			refused: `infer instancetype from volume "disk": label instancetype.kubevirt.io/default-instancetype of PersistentVolumeClaim "plain" is not found`},
	} {
		if c.user == "" {
			c.user = "ann"
		}
		code, got := ask(secretOf(InferencePath), reviewOf(c.user, c.object, c.old))
		if code != http.StatusOK || got == nil || got.Allowed != (c.refused == "") || !sameOperations(t, string(got.Patch), c.patch) {
			t.Errorf("%s: %d %+v %s", name, code, got, got.Patch)
			continue
		}
		if c.refused != "" && (got.Result.Message != c.refused || got.Result.Code != cmp.Or(c.code, http.StatusBadRequest)) {
			t.Errorf("%s: %+v", name, got.Result)
		}
	}
}

// sameOperations reports whether two JSON patches have the same operations: their order is not fixed.
func sameOperations(t *testing.T, a, b string) bool {
	t.Helper()
	count := map[string]int{}
	for i, text := range []string{a, b} {
		if text == "" {
			continue
		}
		var operations []json.RawMessage
		if err := json.Unmarshal([]byte(text), &operations); err != nil {
			t.Fatal(err)
		}
		for _, o := range operations {
			count[string(o)] += 1 - 2*i
		}
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return true
}

// TestStrangersAreToldNothingOfANamespace: anybody can send questions to virt-api, in anybody's name.
func TestStrangersAreToldNothingOfANamespace(t *testing.T) {
	body := reviewOf("ann", `{"spec":{"instancetype":{"name":"two","kind":"VirtualMachineInstancetype"},"template":{"spec":{"domain":{"memory":{"guest":"1Gi"}}}}}}`, "")
	for name, c := range map[string]struct {
		path string
		keys error
		code int
	}{
		"without a secret":          {AgreementPath.Path, nil, http.StatusNotFound},
		"a guess":                   {AgreementPath.SecretPath([]byte("guess")), nil, http.StatusBadRequest},
		"the other webhook's":       {AgreementPath.SecretPath([]byte(InferencePath.Purpose)), nil, http.StatusBadRequest},
		"without a secret, infer":   {InferencePath.Path, nil, http.StatusNotFound},
		"a guess, infer":            {InferencePath.SecretPath([]byte("guess")), nil, http.StatusBadRequest},
		"there is no CA yet":        {secretOf(AgreementPath), errors.New("no CA"), http.StatusInternalServerError},
		"the secret, and no review": {secretOf(AgreementPath) + "/x", nil, http.StatusNotFound},
	} {
		if code, said := asking(c.keys)(c.path, body); code != c.code || said != nil {
			t.Errorf("%s: %d %+v, want %d", name, code, said, c.code)
		}
	}
}
