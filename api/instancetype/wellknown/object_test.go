package wellknown

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/kubeqemu/kubeqemu/api/instancetype"
	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
)

func objects(t *testing.T) []Object {
	t.Helper()
	all, err := Objects()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// names are the names of a kind's objects.
func names(all []Object, kind string) []string {
	var out []string
	for _, o := range all {
		if o.Kind == kind {
			out = append(out, o.Name)
		}
	}
	return out
}

// TestAllNamesOfKubeVirtAreThereOnce: there are all of KubeVirt's, each once.
func TestAllNamesOfKubeVirtAreThereOnce(t *testing.T) {
	all := objects(t)
	sizes := map[string]string{
		"u1": "nano micro small medium 2xmedium large xlarge 2xlarge 4xlarge 8xlarge", "o1": "nano micro small medium large xlarge 2xlarge 4xlarge 8xlarge",
		"d1":  "nano micro small medium 2xmedium large xlarge 2xlarge 4xlarge 8xlarge",
		"cx1": "medium medium1gi large large1gi xlarge xlarge1gi 2xlarge 2xlarge1gi 4xlarge 4xlarge1gi 8xlarge 8xlarge1gi",
		"m1":  "large large1gi xlarge xlarge1gi 2xlarge 2xlarge1gi 4xlarge 4xlarge1gi 8xlarge 8xlarge1gi",
		"n1":  "medium large xlarge 2xlarge 4xlarge 8xlarge", "rt1": "micro small medium large xlarge 2xlarge 4xlarge 8xlarge",
	}
	var want []string
	for series, of := range sizes {
		for _, size := range strings.Fields(of) {
			want = append(want, series+"."+size)
		}
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, slices.Sorted(slices.Values(names(all, Instancetype)))); diff != "" || len(want) != 65 {
		t.Errorf("%d instancetypes, -want +got:\n%s", len(want), diff)
	}
	preferences := names(all, Preference)
	if unique := slices.Compact(slices.Clone(preferences)); !slices.IsSorted(preferences) || len(unique) != len(preferences) || len(preferences) != 54 {
		t.Errorf("%d preferences, or they are not sorted, or one is there twice: %v", len(preferences), preferences)
	}
}

// TestValuesAreKubeVirts holds a row of each series, and the more peculiar guests, against what KubeVirt's
// objects have.
func TestValuesAreKubeVirts(t *testing.T) {
	const own, crio = "dedicatedCPUPlacement: true, isolateEmulatorThread: true", "annotations: {cpu-load-balancing.crio.io: disable, cpu-quota.crio.io: disable, irq-load-balancing.crio.io: disable}"
	const hyperv = "{frequencies: {}, ipi: {}, reenlightenment: {}, relaxed: {}, reset: {}, runtime: {}, spinlocks: {spinlocks: 8191}, synic: {}, synictimer: {direct: {}}, tlbflush: {}, vapic: {}, vpindex: {}}"
	const clock = "clock: {preferredClockOffset: {utc: {}}, preferredTimer: {hpet: {present: false}, hyperv: {}, pit: {tickPolicy: delay}, rtc: {tickPolicy: catchup}}}, " +
		"cpu: {preferredCPUTopology: sockets}, preferredTerminationGracePeriodSeconds: 3600"
	want := map[string]string{
		"u1.2xmedium":   "{cpu: {guest: 2}, memory: {guest: 4Gi}}",
		"o1.nano":       "{cpu: {guest: 1}, memory: {guest: 512Mi, overcommitPercent: 50}}",
		"d1.8xlarge":    "{cpu: {guest: 32, " + own + "}, ioThreadsPolicy: auto, memory: {guest: 128Gi}}",
		"cx1.large1gi":  "{cpu: {guest: 2, maxSockets: 2, numa: {guestMappingPassthrough: {}}, " + own + "}, ioThreadsPolicy: auto, memory: {guest: 4Gi, hugepages: {pageSize: 1Gi}}}",
		"m1.xlarge":     "{cpu: {guest: 4}, memory: {guest: 32Gi, hugepages: {pageSize: 2Mi}}}",
		"n1.medium":     "{" + crio + ", cpu: {guest: 4, " + own + "}, memory: {guest: 4Gi, hugepages: {pageSize: 1Gi}}}",
		"rt1.micro":     "{" + crio + ", cpu: {guest: 1, numa: {guestMappingPassthrough: {}}, realtime: {}, " + own + "}, memory: {guest: 1Gi, hugepages: {pageSize: 1Gi}}}",
		"alpine":        "{annotations: {vm.kubevirt.io/os: linux}, devices: {preferredDiskBus: virtio, preferredInterfaceModel: virtio, preferredRng: {}}, requirements: {cpu: {guest: 1}, memory: {guest: 512Mi}}}",
		"legacy":        "{annotations: {vm.kubevirt.io/os: legacy}, devices: {preferredDiskBus: sata, preferredInterfaceModel: e1000}}",
		"rhel.10.arm64": "{annotations: {vm.kubevirt.io/os: linux}, devices: {preferredDiskBus: virtio, preferredDiskDedicatedIoThread: true, preferredInterfaceModel: virtio, preferredRng: {}}, preferredArchitecture: arm64, requirements: {architecture: arm64, cpu: {guest: 1}, memory: {guest: 1.5Gi}}}",
		"rhel.9.realtime": "{annotations: {vm.kubevirt.io/os: linux}, cpu: {preferredCPUTopology: spread, spreadOptions: {across: SocketsCoresThreads}}, " +
			"devices: {preferredAutoattachGraphicsDevice: false, preferredAutoattachMemBalloon: false, preferredAutoattachSerialConsole: true, preferredDiskBus: virtio, " +
			"preferredDiskDedicatedIoThread: true, preferredInterfaceModel: virtio, preferredNetworkInterfaceMultiQueue: true, preferredRng: {}}, features: {preferredSmm: {}}, " +
			"firmware: {preferredEfi: {secureBoot: true}}, preferredArchitecture: amd64, requirements: {architecture: amd64, cpu: {guest: 4}, memory: {guest: 4Gi}}}",
		"windows.11.virtio": "{annotations: {vm.kubevirt.io/os: windows}, " + clock + ", devices: {preferredAutoattachInputDevice: true, preferredDiskBus: virtio, preferredInputBus: virtio, preferredInputType: tablet, " +
			"preferredInterfaceModel: virtio, preferredTPM: {persistent: true}, preferredVideoType: virtio}, features: {preferredAcpi: {}, preferredApic: {}, preferredHyperv: " + hyperv + ", preferredSmm: {}}, " +
			"firmware: {preferredEfi: {persistent: true, secureBoot: true}}, requirements: {cpu: {guest: 2}, memory: {guest: 4Gi}}}",
		"windows.2k3": `{annotations: {kubevirt.io/disablePCIHole64: "true", vm.kubevirt.io/os: windows}, ` + clock + ", devices: {preferredAutoattachInputDevice: true, preferredDiskBus: sata, preferredInterfaceModel: rtl8139}, " +
			"features: {preferredAcpi: {}, preferredApic: {}, preferredHyperv: " + hyperv + "}, requirements: {cpu: {guest: 1}, memory: {guest: 256Mi}}}",
	}
	for _, o := range objects(t) {
		text, ok := want[o.Name]
		if !ok {
			continue
		}
		delete(want, o.Name)
		var spec any
		if err := yaml.UnmarshalStrict([]byte(text), &spec); err != nil {
			t.Fatalf("%s: %v", o.Name, err)
		}
		if diff := cmp.Diff(spec, tree(t, o)["spec"]); diff != "" {
			t.Errorf("%s, -want +got:\n%s", o.Name, diff)
		}
	}
	if len(want) > 0 {
		t.Errorf("there are no %v", slices.Sorted(maps.Keys(want)))
	}
}

// tree is an object's JSON.
func tree(t *testing.T, o Object) fields {
	t.Helper()
	var all fields
	if err := json.Unmarshal(o.Manifest, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestLabelsThatClientsChooseBy: clients choose by them.
func TestLabelsThatClientsChooseBy(t *testing.T) {
	for _, o := range objects(t) {
		labels, _ := tree(t, o)["metadata"].(fields)["labels"].(fields)
		for _, name := range []string{"vendor", "common-instancetypes-version"} {
			if labels[prefix+name] == nil {
				t.Errorf("%s has no label %s", o.Name, name)
			}
		}
		for name, value := range labels {
			if text, ok := value.(string); !ok || len(validation.IsValidLabelValue(text)) > 0 || len(validation.IsQualifiedName(name)) > 0 {
				t.Errorf("%s: the label %s=%v is not valid", o.Name, name, value)
			}
		}
		switch o.Name {
		case "cx1.large1gi":
			if got := fmt.Sprintln(labels[prefix+"cpu"], labels[prefix+"memory"], labels[prefix+"size"], labels[prefix+"hugepages"], labels[prefix+"numa"], labels[prefix+"version"]); got != "2 4Gi large1gi 1Gi true 1\n" {
				t.Errorf("%s: %s", o.Name, got)
			}
		case "fedora":
			if got := fmt.Sprintln(labels[prefix+"os-type"], labels[prefix+"arch"], labels[prefix+"required-memory"]); got != "linux amd64 2Gi\n" {
				t.Errorf("%s: %s", o.Name, got)
			}
		}
	}
}

// TestUnsupportedFieldsAreFound: what is found is every field that is not supported, wherever it is.
func TestUnsupportedFieldsAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		kind, spec string
		want       []string
	}{
		"supported":    {Instancetype, "{cpu: {guest: 2}, memory: {guest: 1Gi}}", nil},
		"refused":      {Instancetype, "{cpu: {guest: 2}, memory: {guest: 1Gi}, gpus: [{}], launchSecurity: {sev: {}}}", []string{"gpus", "launchSecurity"}},
		"not known":    {Instancetype, "{cpu: {guest: 2}, memory: {guest: 1Gi}, newer: 1}", []string{"newer"}},
		"too large":    {Instancetype, "{cpu: {guest: 1}, memory: {guest: 5Ei}}", []string{"spec.domain.memory.guest: 5Ei"}},
		"of the VMI":   {Preference, "{preferredArchitecture: s390x, annotations: {kubevirt.io/ignitiondata: x}}", []string{"metadata.annotations[kubevirt.io/ignitiondata]", "spec.architecture: s390x"}},
		"requirements": {Preference, "{requirements: {cpu: {guest: 8}, memory: {guest: 32Gi}}}", nil},
	} {
		spec, err := assemble(c.spec)
		if err != nil {
			t.Fatal(err)
		}
		o, err := newObject(c.kind, "one", nil, nil, spec)
		if err != nil || !cmp.Equal(o.WaitsFor, c.want) {
			t.Errorf("%s: %q (%v), want %q", name, o.WaitsFor, err, c.want)
		}
	}
}

// TestNoFieldOfAnObjectIsDropped: every field of an object that can be installed is one that Kubeqemu knows,
// and without it a VM would be another, or would be started where it must not.
func TestNoFieldOfAnObjectIsDropped(t *testing.T) {
	checked := 0
	for _, o := range objects(t) {
		if len(o.WaitsFor) > 0 {
			continue
		}
		whole := machine(t, o.Kind, o.Manifest)
		for _, path := range leaves(tree(t, o)["spec"].(fields), nil) {
			checked++
			less := tree(t, o)
			cut(less["spec"].(fields), path)
			text, err := json.Marshal(less)
			if err != nil {
				t.Fatal(err)
			}
			if machine(t, o.Kind, text) == whole && !asAnyway[strings.Join(path, ".")] {
				t.Errorf("%s: a VM is the same without %s", o.Name, strings.Join(path, "."))
			}
		}
	}
	if checked < 100 {
		t.Errorf("only %d fields were checked", checked)
	}
}

// asAnyway are fields of the Windows preferences that ask for what a VM has by default.
var asAnyway = map[string]bool{"cpu.preferredCPUTopology": true, "features.preferredAcpi": true}

// machine is what an object makes of a VM, and what it requires, as text.
func machine(t *testing.T, kind string, manifest []byte) string {
	t.Helper()
	var size v1beta1.VirtualMachineClusterInstancetype
	var preference v1beta1.VirtualMachineClusterPreference
	into := any(&size)
	if kind == Preference {
		into = &preference
	}
	if unknown, err := kjson.UnmarshalStrict(manifest, into); err != nil || len(unknown) > 0 {
		t.Fatal(err, unknown)
	}
	if kind == Preference {
		// Eight CPUs, so that a spread shows.
		size.Spec = v1beta1.VirtualMachineInstancetypeSpec{CPU: v1beta1.CPUInstancetype{Guest: 8}, Memory: enoughFor(&preference.Spec).Memory}
	}
	// The model of an interface that the VM does not list is not the preference's to choose.
	vm := smallest()
	vm.Spec.Template.Spec.Networks = []v1.Network{{Name: "default", Pod: &v1.PodNetwork{}}}
	vm.Spec.Template.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default", Masquerade: &v1.InterfaceMasquerade{}}}
	expanded, errs := instancetype.ExpandChecked(vm, &size.Spec, &preference.Spec)
	text, err := json.Marshal(struct{ VM, Errors, Requirements any }{expanded, errs, preference.Spec.Requirements})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// leaves are the paths of the values that hold no others.
func leaves(value fields, above []string) (paths [][]string) {
	for _, name := range slices.Sorted(maps.Keys(value)) {
		path := append(slices.Clone(above), name)
		if below, ok := value[name].(fields); ok && len(below) > 0 {
			paths = append(paths, leaves(below, path)...)
			continue
		}
		paths = append(paths, path)
	}
	return paths
}

func cut(value fields, path []string) {
	for _, name := range path[:len(path)-1] {
		value = value[name].(fields)
	}
	delete(value, path[len(path)-1])
}

const header = `# The cluster-wide instancetypes and preferences that virt-controller creates, made from the table in
# api/instancetype/wellknown by "go test ./api/instancetype/wellknown -update". docs/instancetypes.md
# says how to have them. Those that you apply from this file are yours: virt-controller neither changes
# nor deletes them.
`

// TestObjectsFileIsUpToDate: config/instancetypes/objects.yaml has what is created.
func TestObjectsFileIsUpToDate(t *testing.T) {
	var text bytes.Buffer
	text.WriteString(header)
	for _, o := range objects(t) {
		if len(o.WaitsFor) > 0 {
			continue
		}
		manifest, err := yaml.JSONToYAML(o.Manifest)
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString("---\n")
		text.Write(manifest)
	}
	golden.Compare(t, "../../../config/instancetypes/objects.yaml", text.String())
}
