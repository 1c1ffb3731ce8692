package validation

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// parse reads a VMI's spec from YAML.
func parse(t testing.TB, spec string) *v1.VirtualMachineInstance {
	t.Helper()
	vmi := &v1.VirtualMachineInstance{}
	vmi.Name, vmi.UID = "vm", "0a1b2c3d-0000-4000-8000-000000000001"
	if err := yaml.UnmarshalStrict([]byte(spec), &vmi.Spec); err != nil {
		t.Fatal(err)
	}
	return vmi
}

// valid has at least one of everything that is validated.
const valid = `
domain:
  resources: {requests: {memory: 64Mi, cpu: 1}, limits: {memory: 128Mi, cpu: 2}}
  devices:
    disks:
    - {name: root, bootOrder: 1, disk: {bus: virtio}}
    - {name: media, bootOrder: 2, cdrom: {}}
    - {name: seed}
    interfaces:
    - {name: default, masquerade: {}, macAddress: "52:54:00:00:00:01",
       ports: [{name: http, port: 80}, {port: 53, protocol: UDP}]}
networks:
- {name: default, pod: {}}
volumes:
- {name: root, containerDisk: {image: "registry.example/root:v1"}}
- {name: media, containerDisk: {image: "registry.example/media:v1"}}
- {name: seed, cloudInitNoCloud: {userData: "#cloud-config"}}
`

type spec = v1.VirtualMachineInstanceSpec

// setDefaults fills in a spec.
func setDefaults(s *spec) {
	vmi := &v1.VirtualMachineInstance{Spec: *s}
	v1.Default(vmi)
	*s = vmi.Spec
}

// edits are changes of a valid spec with defaults, and the fields that are wrong then,
// exactly. A field that begins with "[" or "." is below the path that a test is for.
// Package qemuargs/resolve has more refusals, in testdata: each with its words.
type edits map[string]struct {
	edit  func(*spec)
	wrong string
}

func (all edits) try(t *testing.T, path string) {
	for name, e := range all {
		t.Run(name, func(t *testing.T) {
			object := parse(t, valid)
			v1.Default(object)
			e.edit(&object.Spec)
			before := object.DeepCopy()
			var got, want []string
			errs := ValidateVirtualMachineInstance(object)
			for _, err := range errs {
				got = append(got, err.Field)
			}
			for _, wrong := range strings.Fields(e.wrong) {
				if strings.ContainsAny(wrong[:1], "[.") {
					wrong = path + wrong
				}
				want = append(want, wrong)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s\n%v", diff, errs)
			}
			if !equality.Semantic.DeepEqual(before, object) {
				t.Error("Validate changed the object")
			}
		})
	}
}

func TestValidateCPUMemoryAndGracePeriod(t *testing.T) {
	grace := func(seconds int64) func(*spec) {
		return func(s *spec) { s.TerminationGracePeriodSeconds = &seconds }
	}
	memory := func(guest string) func(*spec) {
		return func(s *spec) { s.Domain.Memory.Guest = ptr.To(resource.MustParse(guest)) }
	}
	request := func(name corev1.ResourceName, quantity string) func(*spec) {
		return func(s *spec) { s.Domain.Resources.Requests[name] = resource.MustParse(quantity) }
	}
	cpu := func(cores, sockets, threads uint32) func(*spec) {
		return func(s *spec) {
			*s.Domain.CPU = v1.CPU{Model: "host-model", Cores: cores, Sockets: sockets, Threads: threads}
		}
	}
	edits{
		"valid":                     {func(s *spec) {}, ""},
		"negative grace period":     {grace(-1), ".terminationGracePeriodSeconds"},
		"more than a year of grace": {grace(10_000_000_000), ".terminationGracePeriodSeconds"},
		"no grace":                  {grace(0), ""},
		"memory without unit":       {memory("512"), ".domain.memory.guest"},
		"negative memory":           {memory("-1Gi"), ".domain.memory.guest"},
		"1 EiB":                     {func(s *spec) { memory("1Ei")(s); s.Domain.Resources.Limits = nil }, ""},
		"1 EB":                      {func(s *spec) { memory("1E")(s); s.Domain.Resources.Limits = nil }, ""},
		"4 EiB":                     {func(s *spec) { memory("4Ei")(s); s.Domain.Resources.Limits = nil }, ""},
		"more than 4 EiB": {func(s *spec) { memory("4611686018427387905")(s); s.Domain.Resources.Limits = nil },
			".domain.memory.guest"},
		"7 EB": {func(s *spec) { memory("7E")(s); s.Domain.Resources.Limits = nil },
			".domain.memory.guest"},
		"the largest int64": {func(s *spec) { memory("9223372036854775807")(s); s.Domain.Resources.Limits = nil },
			".domain.memory.guest"},
		"2^64 and 1Gi, which wraps": {func(s *spec) { memory("18446744074783293440")(s); s.Domain.Resources.Limits = nil },
			".domain.memory.guest"},
		"a request of 7 EB": {func(s *spec) { request("memory", "7E")(s); s.Domain.Resources.Limits = nil },
			".domain.resources.requests[memory]"},
		"more than an int64": {func(s *spec) { memory("1e30")(s); s.Domain.Resources.Limits = nil },
			".domain.memory.guest"},
		"limit below the guest":  {memory("129Mi"), ".domain.resources.limits[memory]"},
		"request over limit":     {request("memory", "1Gi"), ".domain.resources.requests[memory]"},
		"CPU request over limit": {request("cpu", "2001m"), ".domain.resources.requests[cpu]"},
		"small request":          {request("memory", "64"), ".domain.resources.requests[memory]"},
		"negative limit": {func(s *spec) {
			s.Domain.Resources.Limits["ephemeral-storage"] = resource.MustParse("-1")
		}, ".domain.resources.limits[ephemeral-storage]"},
		"255 vCPUs":           {cpu(51, 5, 1), ""},
		"vCPUs that overflow": {cpu(1<<31, 1<<31, 4), ".domain.cpu"},
		"no vCPU":             {cpu(0, 1, 1), ".domain.cpu"},
		"machine with a line": {func(s *spec) { s.Domain.Machine.Type = "q35\n" }, ".domain.machine.type"},
	}.try(t, "spec")
}

// FuzzValidate: whatever the API server may hand over, Default settles and neither panics.
func FuzzValidate(f *testing.F) {
	seed, err := json.Marshal(parse(f, valid))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte(`{}`))
	f.Add([]byte(
		`{"spec":{"domain":{"memory":{"guest":"1e30"},` +
			`"cpu":{"cores":4294967295,"sockets":4294967295,"threads":4294967295}}}}`))
	f.Add([]byte(
		`{"spec":{"domain":{"resources":{"requests":{"cpu":"-1"},"limits":{"cpu":"9e18","memory":"1n"}},` +
			`"devices":{"disks":[{"name":""},{"lun":{}}],"interfaces":[{"ports":[{"port":-1}]}]}},` +
			`"networks":[{"pod":null}],"volumes":[{},{"name":"a","containerDisk":{}}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		vmi := &v1.VirtualMachineInstance{}
		if longExponent.Match(data) {
			t.Skip("apimachinery takes minutes to parse 1e-999999999")
		}
		if json.Unmarshal(data, vmi) != nil {
			t.Skip("the API server refuses it")
		}
		v1.Default(vmi)
		again := vmi.DeepCopy()
		v1.Default(again)
		if !equality.Semantic.DeepEqual(vmi, again) {
			t.Errorf("defaulted twice is not defaulted once: %s", cmp.Diff(vmi, again))
		}
		if first, second := problems(vmi), problems(vmi); first != second {
			t.Error("validated twice, two answers")
		}
	})
}

var longExponent = regexp.MustCompile(`[eE]-?[0-9]{4}`)

func problems(vmi *v1.VirtualMachineInstance) string {
	if errs := ValidateVirtualMachineInstance(vmi); len(errs) > 0 {
		return errs.ToAggregate().Error()
	}
	return ""
}
