package validation

import (
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func TestValidateKubeVirt(t *testing.T) {
	const config = "spec.configuration."
	for name, c := range map[string]struct {
		configuration string
		want          []string // paths
	}{
		"empty": {`{}`, nil},
		"good": {
			`{cpuModel: Nehalem, machineType: q35, architectureConfiguration: {amd64: {machineType: q35}}, ` +
				`network: {defaultNetworkInterface: masquerade}, developerConfiguration: {useEmulation: true}}`, nil},
		"CPU model": {`{cpuModel: "max,+vmx"}`, []string{config + "cpuModel"}},
		"machine types": {`{machineType: pc, architectureConfiguration: {amd64: {machineType: virt}}}`,
			[]string{config + "machineType", config + "architectureConfiguration.amd64.machineType"}},
		"two machine types": {`{machineType: q35, architectureConfiguration: {amd64: {machineType: pc-q35-7.2}}}`,
			[]string{config + "machineType"}},
		"machine patterns": {
			`{emulatedMachines: ["["], architectureConfiguration: {amd64: {emulatedMachines: ["q35*", "a["]}}}`,
			[]string{config + "emulatedMachines[0]", config + "architectureConfiguration.amd64.emulatedMachines[1]"}},
		"default not permitted": {`{emulatedMachines: ["pc-q35-9.*"]}`, []string{config + "emulatedMachines"}},
		"default permitted":     {`{emulatedMachines: ["pc-q35-9.*"], machineType: pc-q35-9.2}`, nil},
		"node selectors": {`{developerConfiguration: {nodeSelectors: {"a b": x}}}`,
			[]string{config + "developerConfiguration.nodeSelectors[a b]"}},
		"seccomp profile": {
			`{seccompConfiguration: {virtualMachineInstanceProfile: {customProfile: {localhostProfile: ../x.json}}}}`,
			[]string{config + "seccompConfiguration.virtualMachineInstanceProfile.customProfile.localhostProfile"}},
		"runtime class": {`{defaultRuntimeClass: "A b"}`, []string{config + "defaultRuntimeClass"}},
		"classes": {`{defaultRuntimeClass: "A b", vmStateStorageClass: "A b"}`,
			[]string{config + "defaultRuntimeClass", config + "vmStateStorageClass"}},
		"empty class": {`{vmStateStorageClass: ""}`, nil},
		"CPU request": {`{cpuRequest: "-1"}`, []string{config + "cpuRequest"}},
		"binding": {`{network: {defaultNetworkInterface: slirp}}`,
			[]string{config + "network.defaultNetworkInterface"}},
	} {
		kv := &v1.KubeVirt{}
		if err := yaml.UnmarshalStrict([]byte(c.configuration), &kv.Spec.Configuration); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got []string
		for _, e := range ValidateKubeVirt(kv) {
			if !slices.Contains(got, e.Field) {
				got = append(got, e.Field)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestValidateWorkloadUpdates: what is no size and no time of a batch is refused, and has no effect where nobody asked.
func TestValidateWorkloadUpdates(t *testing.T) {
	for name, c := range map[string]struct {
		strategy string
		want     []string
		size     int
		interval time.Duration
	}{
		"defaults": {`{}`, nil, 10, time.Minute},
		"KubeVirt's example": {
			`{workloadUpdateMethods: [LiveMigrate, Evict], batchEvictionSize: 5, batchEvictionInterval: 1m30s}`, nil, 5,
			90 * time.Second},
		"neither": {`{batchEvictionSize: 0, batchEvictionInterval: 0s}`, nil, 0, 0},
		"bad ones": {`{batchEvictionSize: -1, batchEvictionInterval: soon}`,
			[]string{"spec.workloadUpdateStrategy.batchEvictionSize", "spec.workloadUpdateStrategy.batchEvictionInterval"}, -1,
			time.Minute},
		"a negative time": {`{batchEvictionInterval: -1m}`, []string{"spec.workloadUpdateStrategy.batchEvictionInterval"},
			10, time.Minute},
	} {
		kv := &v1.KubeVirt{Spec: v1.KubeVirtSpec{WorkloadUpdateStrategy: &v1.WorkloadUpdateStrategy{}}}
		s := kv.Spec.WorkloadUpdateStrategy
		if err := yaml.UnmarshalStrict([]byte(c.strategy), s); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got []string
		for _, e := range ValidateKubeVirt(kv) {
			got = append(got, e.Field)
		}
		if !slices.Equal(got, c.want) || s.BatchSize() != c.size || s.BatchInterval() != c.interval {
			t.Errorf("%s: wrong are %v, %d in %s; want %v, %d in %s", name, got, s.BatchSize(), s.BatchInterval(), c.want,
				c.size, c.interval)
		}
	}
}

func TestValidateOnlyKubeVirt(t *testing.T) {
	named := func(namespace, name string) v1.KubeVirt {
		kv := v1.KubeVirt{}
		kv.Namespace, kv.Name = namespace, name
		return kv
	}
	there := []v1.KubeVirt{named("kubevirt", "first")}
	for name, c := range map[string]struct {
		created v1.KubeVirt
		there   []v1.KubeVirt
		want    string
	}{
		"the first":            {named("kubevirt", "first"), nil, ""},
		"the same once more":   {named("kubevirt", "first"), there, ""},
		"a second":             {named("kubevirt", "second"), there, `"first"`},
		"in another namespace": {named("default", "first"), nil, ""},
		"of the same name":     {named("default", "first"), there, `in the namespace "kubevirt"`},
	} {
		errs := ValidateOnlyKubeVirt(&c.created, c.there)
		if text := errs.ToAggregate(); (text == nil) != (c.want == "") || text != nil &&
			!strings.Contains(text.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, text, c.want)
		}
	}
}
