package vmi

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// configured returns a cluster with a configuration, and a VMI that is new in it.
func configured(t *testing.T, config string) *cluster {
	t.Helper()
	c := newCluster(t, "", interceptor.Funcs{})
	parsed := &v1.KubeVirtConfiguration{}
	if err := json.Unmarshal([]byte(config), parsed); err != nil {
		t.Fatal(err)
	}
	c.Config.Emulation = false
	c.Cluster = func(context.Context) (*v1.KubeVirtConfiguration, error) { return parsed, nil }
	return c
}

func (c *cluster) get() *v1.VirtualMachineInstance {
	c.t.Helper()
	vmi := &v1.VirtualMachineInstance{}
	if err := c.client.Get(context.Background(), client.ObjectKeyFromObject(c.vmi), vmi); err != nil {
		c.t.Fatal(err)
	}
	return vmi
}

func TestClusterDefaultsArePersisted(t *testing.T) {
	c := configured(t, `{"cpuModel":"Nehalem","machineType":"pc-q35-7.2"}`)
	vmi := c.get()
	vmi.Finalizers, vmi.Spec.Domain.CPU, vmi.Spec.Domain.Machine = nil, nil, nil
	if err := c.client.Update(context.Background(), vmi); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
	}
	domain := c.get().Spec.Domain
	if domain.CPU.Model != "Nehalem" || domain.CPU.Sockets != 1 || domain.Machine.Type != "pc-q35-7.2" {
		t.Errorf("CPU %+v, machine %+v", domain.CPU, domain.Machine)
	}
	if c.pods() != 1 {
		t.Errorf("%d pods", c.pods())
	}
}

// TestStartedVMIKeepsItsDefaults: a VMI that is past its start keeps what it got, and
// is not refused any more.
func TestStartedVMIKeepsItsDefaults(t *testing.T) {
	c := configured(t, `{"cpuModel":"Nehalem"}`)
	c.vmi = c.get()
	c.vmi.Status.Phase = v1.Pending
	if err := c.client.Status().Update(context.Background(), c.vmi); err != nil {
		t.Fatal(err)
	}
	before := c.get().Spec
	if err := c.reconcile(); err != nil {
		t.Fatal(err)
	}
	if after := c.get().Spec; after.Domain.CPU.Model != before.Domain.CPU.Model {
		t.Errorf("CPU model %q became %q", before.Domain.CPU.Model, after.Domain.CPU.Model)
	}
}

func TestEmulationIsBooked(t *testing.T) {
	booked := func(config string) int64 {
		t.Helper()
		c := configured(t, config)
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
		var pods corev1.PodList
		if err := c.client.List(context.Background(), &pods); err != nil || len(pods.Items) != 1 {
			t.Fatalf("%d pods (%v)", len(pods.Items), err)
		}
		return pods.Items[0].Spec.Containers[0].Resources.Requests.Memory().Value()
	}
	without, with := booked(`{}`), booked(`{"developerConfiguration":{"useEmulation":true}}`)
	if with-without != overheadEmulation {
		t.Errorf("%d with emulation, %d without", with, without)
	}
}

func TestConfigurationIsUnreadable(t *testing.T) {
	c := newCluster(t, "", interceptor.Funcs{})
	down := errors.New("down")
	c.Cluster = func(context.Context) (*v1.KubeVirtConfiguration, error) { return nil, down }
	if err := c.reconcile(); !errors.Is(err, down) || c.pods() != 0 {
		t.Errorf("%v, %d pods: nothing may be decided", err, c.pods())
	}
}

// rendered returns the pod of a small VMI in a cluster with a configuration.
func rendered(t *testing.T, spec, config string) *corev1.Pod {
	t.Helper()
	vmi := &v1.VirtualMachineInstance{}
	vmi.Name, vmi.Namespace, vmi.UID = "small", "default", "uid"
	parsed := &v1.KubeVirtConfiguration{}
	for text, into := range map[string]any{spec: &vmi.Spec, config: parsed} {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Fatal(err)
		}
	}
	v1.Default(vmi)
	return Pod(vmi, PodConfig{LauncherImage: "launcher", ARM64Image: "emulator", Cluster: parsed})
}

const fourVCPUs = `{"domain":{"memory":{"guest":"1Gi"},"cpu":{"cores":4}}}`

func TestResourcesByClusterConfiguration(t *testing.T) {
	for name, c := range map[string]struct{ spec, config, cpu, memory string }{
		"default":     {fourVCPUs, `{}`, "400m", "1118Mi"},
		"ratio":       {fourVCPUs, `{"developerConfiguration":{"cpuAllocationRatio":2}}`, "2", "1118Mi"},
		"large ratio": {fourVCPUs, `{"developerConfiguration":{"cpuAllocationRatio":10000}}`, "1m", "1118Mi"},
		"CPU": {fourVCPUs, `{"cpuRequest":"150m","developerConfiguration":{"cpuAllocationRatio":2}}`, "150m",
			"1118Mi"},
		"CPU is set":          {`{"domain":{"memory":{"guest":"1Gi"},"cpu":{"cores":4},"resources":{"requests":{"cpu":"1"}}}}`, `{"cpuRequest":"150m"}`, "1", "1118Mi"},
		"overcommit":          {fourVCPUs, `{"developerConfiguration":{"memoryOvercommit":200}}`, "400m", "606Mi"},
		"undercommit":         {fourVCPUs, `{"developerConfiguration":{"memoryOvercommit":50}}`, "400m", "2142Mi"},
		"memory is set":       {`{"domain":{"memory":{"guest":"1Gi"},"cpu":{"cores":4},"resources":{"requests":{"memory":"800Mi"}}}}`, `{"developerConfiguration":{"memoryOvercommit":200}}`, "400m", "894Mi"},
		"overhead":            {fourVCPUs, `{"additionalGuestMemoryOverheadRatio":"2.5"}`, "400m", "1259Mi"},
		"overhead is no less": {fourVCPUs, `{"additionalGuestMemoryOverheadRatio":"0.5"}`, "400m", "1118Mi"},
		"the largest guest": {`{"domain":{"memory":{"guest":"4Ei"}}}`,
			`{"additionalGuestMemoryOverheadRatio":"1000","developerConfiguration":{"memoryOvercommit":1}}`, "100m", "6Ei"},
		"a guest of 1 EiB":     {`{"domain":{"memory":{"guest":"1Ei"}}}`, `{}`, "100m", "1101659111507Mi"},
		"overhead is no ratio": {fourVCPUs, `{"additionalGuestMemoryOverheadRatio":"NaN"}`, "400m", "1118Mi"},
	} {
		requests := rendered(t, c.spec, c.config).Spec.Containers[0].Resources.Requests
		if cpu, memory := requests[corev1.ResourceCPU],
			requests[corev1.ResourceMemory]; cpu.Cmp(resource.MustParse(c.cpu)) != 0 ||
			memory.Cmp(resource.MustParse(c.memory)) != 0 {
			t.Errorf("%s: %s and %s, want %s and %s", name, cpu.String(), memory.String(), c.cpu, c.memory)
		}
	}
}

func TestPodFollowsTheClusterConfiguration(t *testing.T) {
	pod := rendered(t, `{"domain":{"memory":{"guest":"1Gi"}},"nodeSelector":{"disk":"ssd","zone":"a"}}`,
		`{"defaultRuntimeClass":"kata","imagePullPolicy":"Always",
		"seccompConfiguration":{"virtualMachineInstanceProfile":{"customProfile":{"localhostProfile":"kubeqemu.json"}}},
		"developerConfiguration":{"nodeSelectors":{"zone":"b","guests":"yes"},"logVerbosity":{"virtLauncher":5}}}`)
	spec, container := pod.Spec, pod.Spec.Containers[0]
	if *spec.RuntimeClassName != "kata" || container.ImagePullPolicy != corev1.PullAlways {
		t.Errorf("%+v", spec)
	}
	if p := spec.SecurityContext.SeccompProfile; p.Type != corev1.SeccompProfileTypeLocalhost ||
		*p.LocalhostProfile != "kubeqemu.json" {
		t.Errorf("seccomp profile %+v", p)
	}
	want := map[string]string{"disk": "ssd", "zone": "a", "guests": "yes", "kubernetes.io/arch": "amd64"}
	if !maps.Equal(spec.NodeSelector, want) {
		t.Errorf("node selector %v, want %v", spec.NodeSelector, want)
	}
	if !slices.Contains(container.Command, "--verbosity=5") {
		t.Errorf("command %q", container.Command)
	}
	// A value that virt-api would refuse counts as not set, because the API server would refuse the pod.
	bad := rendered(t, fourVCPUs, `{"defaultRuntimeClass":"A b","cpuRequest":"-1","seccompConfiguration":{"virtualMachineInstanceProfile":{"customProfile":{"localhostProfile":"a/../../b"}}},"developerConfiguration":{"nodeSelectors":{"a b":"x"}}}`)
	if !equality.Semantic.DeepEqual(bad, rendered(t, fourVCPUs, `{}`)) {
		t.Errorf("a configuration that no pod could have changes the pod: %+v", bad.Spec)
	}
	plain := rendered(t, fourVCPUs, `{"seccompConfiguration":{"virtualMachineInstanceProfile":{"customProfile":{"runtimeDefaultProfile":true}}},"developerConfiguration":{"logVerbosity":{"virtAPI":5}}}`)
	if !equality.Semantic.DeepEqual(plain, rendered(t, fourVCPUs, `{}`)) {
		t.Errorf("a configuration without an effect changes the pod: %+v", plain.Spec)
	}
}
