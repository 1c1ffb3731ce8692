package admission

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// tooLong returns the spec of an object, in which a list has 100,000 empty elements and a map 20,000 members.
func tooLong(spec string) string {
	members := make([]string, 20_000)
	for i := range members {
		members[i] = fmt.Sprintf(`"-%d":"-"`, i)
	}
	return strings.NewReplacer("LIST", "["+strings.Repeat("{},", 99_999)+"{}]", "MAP", "{"+strings.Join(members, ",")+"}").Replace(spec)
}

// longCase is an object that is too long, and what the refusal says.
type longCase struct {
	version, kind, spec, want string
}

// longLists: 100,000 empty elements, of each kind that has lists, are refused by their path, and the members of maps
// too.
func (s *testServer) longLists(t *testing.T) {
	const disks = `{"domain":{"memory":{"guest":"128Mi"},"devices":{"disks":LIST}}}`
	const labels = `{"selector":{"matchLabels":{"a":"b"}},`
	const instancetype = `{"cpu":{"guest":1},"memory":{"guest":"1Gi"},"gpus":LIST}`
	const preference = `{"cpu":{"preferredCPUFeatures":LIST}}`
	const many = ": Too many: must have at most 1024 items"
	for _, c := range []longCase{
		{"kubevirt.io/v1", "VirtualMachineInstance", disks, "spec.domain.devices.disks" + many},
		{"kubevirt.io/v1", "VirtualMachine", `{"runStrategy":"Halted","template":{"spec":` + disks + `}}`, "spec.template.spec.domain.devices.disks" + many},
		{"kubevirt.io/v1", "VirtualMachineInstanceReplicaSet", labels + `"template":{"spec":` + disks + `}}`, "spec.template.spec.domain.devices.disks" + many},
		{"kubevirt.io/v1", "VirtualMachineInstancePreset", disks, "spec.domain.devices.disks" + many},
		{"pool.kubevirt.io/v1beta1", "VirtualMachinePool", labels + `"virtualMachineTemplate":{"spec":{"runStrategy":"Halted","template":{"spec":` + disks + `}}}}`,
			"spec.virtualMachineTemplate.spec.template.spec.domain.devices.disks" + many},
		{"instancetype.kubevirt.io/v1beta1", "VirtualMachineInstancetype", instancetype, "spec.gpus" + many},
		{"instancetype.kubevirt.io/v1beta1", "VirtualMachineClusterInstancetype", instancetype, "spec.gpus" + many},
		{"instancetype.kubevirt.io/v1beta1", "VirtualMachinePreference", preference, "spec.cpu.preferredCPUFeatures" + many},
		{"instancetype.kubevirt.io/v1beta1", "VirtualMachineClusterPreference", preference, "spec.cpu.preferredCPUFeatures" + many},
		{"kubevirt.io/v1", "VirtualMachineInstanceMigration", `{"vmiName":"any","addedNodeSelector":MAP}`, "the object has more than 50000 names and values"},
	} {
		s.refusedLong(t, c)
	}
	s.longSelectors(t)
}

// refusedLong: an object is refused with the words of the webhook, which is asked before the schema.
func (s *testServer) refusedLong(t *testing.T, c longCase) {
	object := &unstructured.Unstructured{}
	text := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"long"%s},"spec":%s}`, c.version, c.kind,
		map[bool]string{false: `,"namespace":"default"`}[strings.Contains(c.kind, "Cluster")], tooLong(c.spec))
	if err := json.Unmarshal([]byte(text), object); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	err := s.as("somebody").Create(t.Context(), object, client.DryRunAll)
	t.Logf("%s: refused after %s", c.kind, time.Since(began))
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), c.want) {
		t.Errorf("%s: %.300v, want %q", c.kind, err, c.want)
	}
}

// longSelectors: a selector that is changed alone is refused too, of a kind whose template is left as it is.
func (s *testServer) longSelectors(t *testing.T) {
	for _, c := range []longCase{
		{"kubevirt.io/v1", "VirtualMachineInstanceReplicaSet", `{"replicas":0,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"domain":{"memory":{"guest":"128Mi"},"devices":{}}}}}`, ""},
		{"pool.kubevirt.io/v1beta1", "VirtualMachinePool", `{"replicas":0,"selector":{"matchLabels":{"a":"b"}},"virtualMachineTemplate":{"metadata":{"labels":{"a":"b"}},"spec":{"runStrategy":"Halted","template":{"spec":{"domain":{"memory":{"guest":"128Mi"},"devices":{}}}}}}}`, ""},
	} {
		object := &unstructured.Unstructured{}
		if err := json.Unmarshal(fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,"metadata":{"name":"long-selector","namespace":"default"},"spec":%s}`, c.version, c.kind, c.spec), object); err != nil {
			t.Fatal(err)
		}
		if err := s.admin.Create(t.Context(), object); err != nil {
			t.Fatalf("%s: %v", c.kind, err)
		}
		patch := tooLong(`{"spec":{"selector":{"matchExpressions":LIST}}}`)
		err := s.as("somebody").Patch(t.Context(), object, client.RawPatch(types.MergePatchType, []byte(patch)), client.DryRunAll)
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.selector.matchExpressions: Too many: must have at most 1024 items") {
			t.Errorf("%s, with another selector: %.300v", c.kind, err)
		}
		if err := s.admin.Delete(t.Context(), object); err != nil {
			t.Error(err)
		}
	}
}
