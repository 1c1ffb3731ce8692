package admission

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/cputime"
	"github.com/kubeqemu/kubeqemu/internal/intake"
)

// question is the UID that the API server gives each question.
const question = "0f9c2f1e-7f0b-4c0a-8d3e-1f6a2b7c9d10"

// ask asks a webhook as the API server does.
func ask(t *testing.T, mux *http.ServeMux, path, object, old string) *admissionv1.AdmissionResponse {
	t.Helper()
	operation := admissionv1.Update
	if old == "" {
		operation, old = admissionv1.Create, "null"
	}
	review := fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"`+question+`","name":"x","namespace":"blue","operation":%q,"object":%s,"oldObject":%s}}`, operation, object, old)
	request := httptest.NewRequest(http.MethodPost, path, bytes.NewReader([]byte(review)))
	request.Header.Set("Content-Type", "application/json")
	recorder := httptest.NewRecorder()
	mux.ServeHTTP(recorder, request)
	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(recorder.Body.Bytes(), &answer); err != nil || answer.Response == nil {
		t.Fatalf("%s: %d %s (%v)", path, recorder.Code, recorder.Body, err)
	}
	return answer.Response
}

func newServer(facts Facts, err error) *http.ServeMux {
	mux := http.NewServeMux()
	Register(mux, func(context.Context) (Facts, error) { return facts, err }, presetsIn(""), intake.NewBodies(2*MaxReview))
	return mux
}

// presetsIn is a cluster in which one namespace has presets.
func presetsIn(one string) Presets {
	return func(_ context.Context, namespace string) (bool, error) { return namespace == one, nil }
}

func TestMutatePatchesOnlyWhatIsMissing(t *testing.T) {
	mux := newServer(empty, nil)
	for name, c := range map[string]struct {
		object string
		patch  bool
	}{
		"something is missing": {`{"spec":{"domain":{"memory":{"guest":"1Gi"}}}}`, true},
		"all is there":         {strings.Replace(strings.Replace(defaulted, `{"spec":{`, `{"metadata":{"finalizers":["`+v1.VMIFinalizer+`"]},"spec":{`, 1), `"domain":{`, `"domain":{"firmware":{"uuid":"`+question+`"},`, 1), false},
		"no finalizer":         {strings.Replace(defaulted, `"domain":{`, `"domain":{"firmware":{"uuid":"`+question+`"},`, 1), true},
		"no UUID":              {strings.Replace(defaulted, `{"spec":{`, `{"metadata":{"finalizers":["`+v1.VMIFinalizer+`"]},"spec":{`, 1), true},
		"another type":         {`{"spec":{"domain":{"memory":7}}}`, false},
		"no quantity":          {`{"spec":{"domain":{"memory":{"guest":"lots"}}}}`, false},
		"no object":            {`[]`, false},
		"too large":            {`{"spec":{"hostname":"` + strings.Repeat("x", maxFilled) + `"}}`, false},
	} {
		answer := ask(t, mux, "/virtualmachineinstances-mutate", c.object, "")
		if !answer.Allowed || (len(answer.Patch) > 2) != c.patch {
			t.Errorf("%s: %+v, patch %s", name, answer, answer.Patch)
		}
	}
	for name, c := range map[string]struct {
		method, path, body string
		err                error
		code               int
	}{
		"no review":      {http.MethodPost, "/virtualmachineinstances-mutate", `{}`, nil, http.StatusBadRequest},
		"no JSON":        {http.MethodPost, "/virtualmachineinstances-mutate", `{`, nil, http.StatusBadRequest},
		"another review": {http.MethodPost, "/virtualmachineinstances-mutate", `{"apiVersion":"admission.k8s.io/v1beta1","request":{}}`, nil, http.StatusBadRequest},
		"without facts":  {http.MethodPost, "/virtualmachineinstances-mutate", `{"apiVersion":"admission.k8s.io/v1","request":{}}`, errors.New("down"), http.StatusInternalServerError},
		"many values":    {http.MethodPost, "/virtualmachineinstances-mutate", `{"apiVersion":"admission.k8s.io/v1","request":{"userInfo":{"groups":["` + strings.Repeat(`","`, maxValues) + `"]}}}`, nil, http.StatusBadRequest},
		"too much":       {http.MethodPost, "/virtualmachineinstances-mutate", strings.Repeat("x", MaxReview+1), nil, http.StatusRequestEntityTooLarge},
		"another path":   {http.MethodPost, "/pods-mutate", `{}`, nil, http.StatusNotFound},
		"another method": {http.MethodGet, "/virtualmachineinstances-mutate", ``, nil, http.StatusMethodNotAllowed},
	} {
		recorder := httptest.NewRecorder()
		newServer(empty, c.err).ServeHTTP(recorder, httptest.NewRequest(c.method, c.path, strings.NewReader(c.body)))
		if recorder.Code != c.code {
			t.Errorf("%s: %d, want %d: %s", name, recorder.Code, c.code, recorder.Body)
		}
	}
}

// TestAnswersAreShortAndSoon: what would be answered at length is answered in short, and soon:
// anybody in the cluster can ask.
func TestAnswersAreShortAndSoon(t *testing.T) {
	disks := strings.Repeat(`{"name":"`+strings.Repeat("x", 100)+`"},`, 10_000)
	server := newServer(empty, nil)
	var answer *admissionv1.AdmissionResponse
	if took := cputime.Of(t, func() {
		answer = ask(t, server, "/virtualmachineinstances-validate", `{"spec":{"domain":{"devices":{"disks":[`+disks+`{}]}}}}`, "")
	}); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	text, err := json.Marshal(answer)
	if err != nil || answer.Allowed || answer.Result.Code != http.StatusUnprocessableEntity || len(text) > maxAnswer || !strings.Contains(answer.Result.Message, "… and more") {
		t.Errorf("%d bytes, %v, %.200s", len(text), err, answer.Result.Message)
	}
}

// validated are objects of a kind, and the paths of the fields that a webhook refuses.
type validated map[string]struct {
	object, old string
	facts       Facts
	want        string
}

func (all validated) ask(t *testing.T, plural string) {
	t.Helper()
	for name, c := range all {
		answer := ask(t, newServer(c.facts, nil), "/"+plural+"-validate", c.object, c.old)
		var paths []string
		if answer.Result != nil && answer.Result.Details != nil {
			for _, cause := range answer.Result.Details.Causes {
				paths = append(paths, cause.Field)
			}
		}
		if got := strings.Join(paths, ","); got != c.want || answer.Allowed != (c.want == "") {
			t.Errorf("%s: allowed %v, %q, want %q", name, answer.Allowed, got, c.want)
			continue
		}
		if c.want != "" && (answer.Result.Code != http.StatusUnprocessableEntity || answer.Result.Reason != "Invalid" || !strings.Contains(answer.Result.Message, `.kubevirt.io "x" is invalid`)) {
			t.Errorf("%s: %+v", name, answer.Result)
		}
	}
}

func TestValidateVMI(t *testing.T) {
	bad := strings.Replace(defaulted, `"1024M"`, `"1"`, 1)
	with := func(metadata, object string) string {
		return strings.Replace(object, "{", `{"metadata":{`+metadata+`},`, 1)
	}
	const uid = `"uid":"5d307ca9-b3ef-428c-8861-06e72d69f223"`
	validated{
		"good": {with(uid, defaulted), "", empty, ""},
		"bad":  {with(uid, bad), "", empty, "spec.domain.memory.guest"},
		"what reads as a number": {strings.NewReplacer(`"autoattachPodInterface":false`, `"interfaces":[{"name":"e1","model":"e1000","bridge":{}}]`,
			`"volumes":`, `"networks":[{"name":"e1","pod":{}}],"volumes":`).Replace(with(uid+`,"labels":{"commit":"8e12345"}`, defaulted)), "", empty, ""},
		"two errors":          {bad, "", empty, "spec.domain.firmware.uuid,spec.domain.memory.guest"},
		"of an older release": {bad, bad, empty, ""},
		"being deleted":       {with(`"deletionTimestamp":"2026-01-01T00:00:00Z"`, bad), "", empty, ""},
		"unreadable":          {`{"spec":7}`, "", empty, "object"},
	}.ask(t, "virtualmachineinstances")
}

func TestValidatePool(t *testing.T) {
	validated{"empty": {`{"spec":{"virtualMachineTemplate":{"spec":{"template":{"spec":{"domain":{"memory":{"guest":"1Gi"}}}}}}}}`, "", empty,
		"spec.selector,spec.virtualMachineTemplate.spec.runStrategy"}}.ask(t, "virtualmachinepools")
}

func TestValidateKubeVirt(t *testing.T) {
	kv := func(name, spec string) string {
		return fmt.Sprintf(`{"metadata":{"namespace":"kubevirt","name":%q},"spec":%s}`, name, spec)
	}
	there := Facts{Cluster: &v1.KubeVirtConfiguration{}, KubeVirts: make([]v1.KubeVirt, 1)}
	there.KubeVirts[0].Namespace, there.KubeVirts[0].Name = v1.KubeVirtNamespace, "first"
	const pc = `{"configuration":{"machineType":"pc"}}`
	validated{
		"the first":             {kv("first", `{}`), "", empty, ""},
		"the first, once more":  {kv("first", `{}`), "", there, ""},
		"the second":            {kv("second", `{}`), "", there, "metadata.name"},
		"the second, changed":   {kv("second", `{}`), kv("second", `{}`), there, ""},
		"two mistakes":          {kv("first", `{"configuration":{"cpuModel":"a,b","machineType":"pc"}}`), "", empty, "spec.configuration.cpuModel,spec.configuration.machineType"},
		"of KubeVirt's cluster": {strings.Replace(kv("first", `{}`), `{"namespace"`, `{"finalizers":["foregroundDeleteKubeVirt"],"namespace"`, 1), "", empty, "metadata.finalizers"},
		"changed for the worse": {kv("first", pc), kv("first", `{}`), there, "spec.configuration.machineType"},
	}.ask(t, "kubevirts")
}
