package admission

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
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
	made, err := patch([]byte(raw), before, after)
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

func TestPatch(t *testing.T) {
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
		made, err := patch([]byte(raw), before, after)
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
	start := time.Now()
	made := operations(t, raw, empty)
	t.Logf("%d operations in %s", len(made), time.Since(start))
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("a VMI of %d bytes took %s", len(raw), took)
	}
}

func FuzzFill(f *testing.F) {
	f.Add([]byte(defaulted))
	f.Add([]byte(`{"spec":{"domain":{"devices":{"disks":[null],"interfaces":[{}]}},"networks":[null],"volumes":[null]}}`))
	f.Add([]byte(`{"metadata":null,"spec":{"domain":{"firmware":{"kernelBoot":{"container":{}}},"resources":{"limits":{"cpu":"1e9","memory":"-1"}}}}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		watchdog := time.AfterFunc(5*time.Second, func() { panic(fmt.Sprintf("%.2000q takes too long", raw)) })
		defer watchdog.Stop()
		before, after, err := vmiKind().fill(raw, empty)
		if err != nil {
			return
		}
		if _, err := patch(raw, before, after); err != nil {
			return
		}
		if _, err := vmiKind().check(raw, nil, empty); err != nil {
			t.Errorf("it can be filled in and not be checked: %v", err)
		}
	})
}
