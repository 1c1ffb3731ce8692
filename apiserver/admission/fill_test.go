package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/cputime"
	"github.com/kubeqemu/kubeqemu/internal/patch"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

var empty = Facts{Cluster: &v1.KubeVirtConfiguration{}}

func vmiKind() kind { return kinds()[0] }

// operations are the patch of a VMI, one line each.
func operations(t *testing.T, raw string, facts Facts) []string {
	t.Helper()
	before, after, err := vmiKind().fill([]byte(raw), facts)
	if err != nil {
		t.Fatal(err)
	}
	made, err := patch.Operations([]byte(raw), before, after)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, o := range made {
		value, err := json.Marshal(o.Value)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, o.Operation+" "+o.Path+" "+string(value))
	}
	return lines
}

const defaulted = `{"spec":{"architecture":"amd64","domain":{"machine":{"type":"q35"},"memory":{"guest":"1024M"},"cpu":{"cores":1,"sockets":1,"threads":1,"model":"host-model"},
	"devices":{"autoattachPodInterface":false,"disks":[{"name":"root","disk":{"bus":"virtio"}}]}},
	"volumes":[{"name":"root","containerDisk":{"image":"image:v1","imagePullPolicy":"IfNotPresent"}}]}}`

func TestPatchFillsInDefaults(t *testing.T) {
	without := func(text string) string {
		if !strings.Contains(defaulted, text) {
			t.Fatalf("%s is not in it", text)
		}
		return strings.Replace(defaulted, text, "", 1)
	}
	for name, c := range map[string]struct {
		raw  string
		want []string
	}{
		"nothing":                {defaulted, nil},
		"a string":               {without(`"architecture":"amd64",`), []string{`add /spec/architecture "amd64"`}},
		"a field of a list item": {without(`,"disk":{"bus":"virtio"}`), []string{`add /spec/domain/devices/disks/0/disk {"bus":"sata"}`}},
		"a list item":            {without(`,"disks":[{"name":"root","disk":{"bus":"virtio"}}]`), []string{`add /spec/domain/devices/disks [{"disk":{"bus":"sata"},"name":"root"}]`}},
		"an empty string":        {strings.Replace(defaulted, `"type":"q35"`, `"type":""`, 1), []string{`replace /spec/domain/machine/type "q35"`}},
		"a zero":                 {strings.Replace(defaulted, `"cores":1`, `"cores":0`, 1), nil},
		"a zero, and more": {strings.Replace(defaulted, `{"cores":1,"sockets":1,"threads":1,"model":"host-model"}`, `{"cores":0}`, 1),
			[]string{`add /spec/domain/cpu/model "host-model"`, `add /spec/domain/cpu/sockets 1`, `add /spec/domain/cpu/threads 1`}},
		"what is not known here": {strings.Replace(without(`,"threads":1`), `"name":"root",`, `"name":"root","colour":"red",`, 1), []string{`add /spec/domain/cpu/threads 1`}},
		"what is written another way": {strings.Replace(without(`,"threads":1`), `1024M`, `1024000k`, 1),
			[]string{`add /spec/domain/cpu/threads 1`}},
	} {
		if diff := cmp.Diff(c.want, operations(t, c.raw, empty), cmpopts.SortSlices(strings.Compare)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestChangedObjectKeepsWhatIsLeftOut: of a changed object, what is left out stays as it is there.
func TestChangedObjectKeepsWhatIsLeftOut(t *testing.T) {
	const there = `{"metadata":{"uid":"5d307ca9-b3ef-428c-8861-06e72d69f223"},"spec":{"architecture":"amd64","domain":{"machine":{"type":"pc-q35-7.2"},"memory":{"guest":"1024M"},"devices":{"disks":[{"name":"root","disk":{"bus":"virtio"}}]}},"volumes":[{"name":"root","containerDisk":{"image":"x"}}]}}`
	for name, c := range map[string]struct{ spec, want string }{
		"all left out":  {`{"domain":{"memory":{"guest":"1024M"}},"volumes":[{"name":"root","containerDisk":{"image":"x"}}]}`, ``},
		"empty":         {`{"architecture":"","domain":{"machine":{"type":""},"firmware":{},"memory":{"guest":"1024M"},"devices":{"disks":[{"name":"root"}]}},"volumes":[{"name":"root","containerDisk":{"image":"x"}}]}`, ``},
		"a changed one": {`{"domain":{"machine":{"type":"q35"},"memory":{"guest":"1024M"}},"volumes":[{"name":"root","containerDisk":{"image":"x"}}]}`, `"type":"q35"`},
		"a new one":     {`{"domain":{"firmware":{"serial":"a"},"memory":{"guest":"1024M"}},"volumes":[{"name":"root","containerDisk":{"image":"x"}}]}`, `"firmware":{"serial":"a"}`},
		"another disk": {`{"domain":{"memory":{"guest":"1024M"},"devices":{"disks":[{"name":"more"}]}},
			"volumes":[{"name":"root","containerDisk":{"image":"x"}},{"name":"more","emptyDisk":{"capacity":"1Gi"}}]}`,
			`"disks":[{"name":"more"},{"disk":{"bus":"virtio"},"name":"root"}]`},
		"another LUN": {`{"domain":{"memory":{"guest":"1024M"},
			"devices":{"disks":[{"name":"root"},{"name":"more","lun":{}}]}},
			"volumes":[{"name":"root","containerDisk":{"image":"x"}},
			{"name":"more","persistentVolumeClaim":{"claimName":"c"}}]}`,
			`"disks":[{"disk":{"bus":"virtio"},"name":"root"},{"name":"more","lun":{}}]`},
		"one disk more": {`{"domain":{"memory":{"guest":"1024M"}},"volumes":[{"name":"root","containerDisk":{"image":"x"}},{"name":"more","emptyDisk":{"capacity":"1Gi"}}]}`, `"name":"more"`},
	} {
		raw := []byte(strings.Replace(there, there[strings.Index(there, `"spec":`):], `"spec":`+c.spec+"}", 1))
		answer := vmiKind().mutate(empty, &admissionv1.AdmissionRequest{Object: runtime.RawExtension{Raw: raw}, OldObject: runtime.RawExtension{Raw: []byte(there)}})
		patched := raw
		if len(answer.Patch) > 0 {
			operations, err := jsonpatch.DecodePatch(answer.Patch)
			if err != nil {
				t.Fatal(err)
			}
			if patched, err = operations.Apply(raw); err != nil {
				t.Fatal(err)
			}
		}
		var got, old any
		if err := errors.Join(json.Unmarshal(patched, &got), json.Unmarshal([]byte(there), &old)); err != nil {
			t.Fatal(err)
		}
		if c.want == "" {
			if diff := cmp.Diff(old, got); diff != "" {
				t.Errorf("%s (-there +got):\n%s", name, diff)
			}
		} else if !strings.Contains(string(patched), c.want) || strings.Contains(string(patched), `"uuid"`) {
			t.Errorf("%s: %s, want %s in it and no UUID", name, patched, c.want)
		}
	}
}

// TestPatchMakesParents: objects that reading makes of nothing are made.
func TestPatchMakesParents(t *testing.T) {
	for name, raw := range map[string]string{
		"no devices": `{"spec":{"domain":{"memory":{"guest":"1Gi"}},"volumes":[{"name":"root","containerDisk":{"image":"x"}}]}}`,
		"no domain":  `{"spec":{"volumes":[{"name":"root","containerDisk":{"image":"x"}}]}}`,
		"no spec":    `{}`,
		"null":       `{"spec":{"domain":{"devices":null,"cpu":null}}}`,
	} {
		before, after, err := vmiKind().fill([]byte(raw), empty)
		if err != nil {
			t.Fatal(err)
		}
		made, err := patch.Operations([]byte(raw), before, after)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		text, err := json.Marshal(made)
		if err != nil {
			t.Fatal(err)
		}
		// As the API server does it, which makes no parents.
		applied, err := jsonpatch.DecodePatch(text)
		if err != nil {
			t.Fatal(err)
		}
		patched, err := applied.Apply([]byte(raw))
		if err != nil {
			t.Errorf("%s: %v: %s", name, err, text)
			continue
		}
		if again := operations(t, string(patched), empty); len(again) > 0 {
			t.Errorf("%s: not all is in %s: %v", name, patched, again)
		}
	}
}

// TestPatchIsBounded: a VMI as large as is looked at, before any schema.
func TestPatchIsBounded(t *testing.T) {
	item := `{"name":"a"},`
	disks := strings.Repeat(item, maxFilled/len(item))
	raw := `{"spec":{"domain":{"devices":{"disks":[` + strings.TrimSuffix(disks, ",") + `]}}}}`
	made := 0
	took := cputime.Of(t, func() { made = len(operations(t, raw, empty)) })
	t.Logf("%d operations in %s", made, took)
	if took > 3*time.Second {
		t.Errorf("a VMI of %d bytes took %s", len(raw), took)
	}
}

func FuzzFill(f *testing.F) {
	f.Add([]byte(defaulted))
	f.Add([]byte(`{"spec":{"domain":{"devices":{"disks":[null],"interfaces":[{}]}},"networks":[null],"volumes":[null]}}`))
	f.Add([]byte(`{"metadata":null,"spec":{"domain":{"firmware":{"kernelBoot":{"container":{}}},"resources":{"limits":{"cpu":"1e9","memory":"-1"}}}}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		watchdog := time.AfterFunc(testkit.Patience, func() { panic(fmt.Sprintf("%.2000q takes too long", raw)) })
		defer watchdog.Stop()
		before, after, err := vmiKind().fill(raw, empty)
		if err != nil {
			return
		}
		if _, err := patch.Operations(raw, before, after); err != nil {
			return
		}
		if _, err := unchanged(before, after, raw); err != nil {
			t.Errorf("it can be filled in and not be changed: %v", err)
		}
		if _, _, err := vmiKind().check(raw, nil, empty); err != nil {
			t.Errorf("it can be filled in and not be checked: %v", err)
		}
	})
}

// TestNewVMIGetsFinalizerAndUUID: a VMI that is being created gets the finalizer and a UUID of its own;
// one that is there gets neither.
func TestNewVMIGetsFinalizerAndUUID(t *testing.T) {
	facts := empty
	facts.New = question
	with := strings.Replace(defaulted, `"domain":{`, `"domain":{"firmware":{"uuid":"5d307ca9-b3ef-428c-8861-06e72d69f223"},`, 1)
	other := strings.Replace(with, `{"spec":{`, `{"metadata":{"finalizers":["example.test/mine"]},"spec":{`, 1)
	finalizers := func(text string) string { return fmt.Sprintf(text, v1.VMIFinalizer) }
	for name, c := range map[string]struct {
		raw   string
		facts Facts
		want  []string
	}{
		"neither":             {defaulted, facts, []string{finalizers(`add /metadata {"finalizers":[%q]}`), `add /spec/domain/firmware {"uuid":"` + question + `"}`}},
		"a UUID":              {with, facts, []string{finalizers(`add /metadata {"finalizers":[%q]}`)}},
		"another finalizer":   {other, facts, []string{finalizers(`add /metadata/finalizers/1 %q`)}},
		"one that is there":   {defaulted, empty, nil},
		"there, with a UUID":  {with, empty, nil},
		"there, of another's": {other, empty, nil},
	} {
		if diff := cmp.Diff(c.want, operations(t, c.raw, c.facts), cmpopts.SortSlices(strings.Compare), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
