package vmi

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func sriovVMI() *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Name, vmi.Namespace, vmi.UID = "vm", "default", "u"
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("1Gi"))}
	for _, name := range []string{"a", "b", "c"} {
		vmi.Spec.Domain.Devices.Interfaces = append(vmi.Spec.Domain.Devices.Interfaces,
			v1.Interface{Name: name, SRIOV: &v1.InterfaceSRIOV{}})
		vmi.Spec.Networks = append(vmi.Spec.Networks, v1.Network{Name: name, Multus: &v1.MultusNetwork{NetworkName: name}})
	}
	v1.Default(vmi)
	return vmi
}

// TestPodOfSRIOV: the launcher's container asks for the cards, knows their resources, and books what VFIO needs.
func TestPodOfSRIOV(t *testing.T) {
	vmi := sriovVMI()
	pod := Pod(vmi,
		PodConfig{Resources: map[string]string{"a": "r.example/fast", "b": "r.example/slow", "c": "r.example/fast"}})
	c := pod.Spec.Containers[0]
	for name, want := range map[corev1.ResourceName]int64{"r.example/fast": 2, "r.example/slow": 1, SlotResource: 1} {
		for kind, list := range map[string]corev1.ResourceList{"requests": c.Resources.Requests,
			"limits": c.Resources.Limits} {
			if got := list[name]; got.Value() != want {
				t.Errorf("%s %s of %s, want %d", kind, got.String(), name, want)
			}
		}
	}
	want := []corev1.EnvVar{launcherProcs(), {Name: "KUBEVIRT_RESOURCE_NAME_a", Value: "r.example/fast"},
		{Name: "KUBEVIRT_RESOURCE_NAME_b", Value: "r.example/slow"},
		{Name: "KUBEVIRT_RESOURCE_NAME_c", Value: "r.example/fast"}}
	if diff := cmp.Diff(want, c.Env); diff != "" {
		t.Errorf("environment, -want +got:\n%s", diff)
	}
	plain := vmi.DeepCopy()
	plain.Spec.Domain.Devices.Interfaces = nil
	if got := Overhead(vmi, false) - Overhead(plain, false); got != 18*mib {
		t.Errorf("the cards book %d bytes", got)
	}
}

// TestNetworksNameOnlyDevicePlugins: a NetworkAttachmentDefinition, which may be a tenant's, names resources of
// device plugins only.
func TestNetworksNameOnlyDevicePlugins(t *testing.T) {
	for name, right := range map[string]bool{
		"intel.com/fast": true, "my-corp.io/net_1": true, "": false, "cpu": false, "memory": false, "hugepages-2Mi": false,
		"requests.intel.com/fast": false,
		"devices.kubevirt.io/vm":  false, "kubevirt.io/vm": false, "kubernetes.io/x": false, "a.kubernetes.io/x": false,
		"intel.com/": false, "/x": false,
		"a/b/c": false, "notkubevirt.io/x": true, strings.Repeat("a", 300) + "/x": false, "intel.com/x\n": false,
	} {
		if why := wrongResource(name); (why == "") != right {
			t.Errorf("%.40q: %q", name, why)
		}
	}
}

// TestStatusHasTheCardsThatMultusSays: Multus' words become the status, as far as they are addresses, and
// others' words harm nobody.
func TestStatusHasTheCardsThatMultusSays(t *testing.T) {
	link := func(i int) string { return sriovVMI().Spec.Networks[i].Link() }
	for name, tt := range map[string]struct {
		said string
		want map[string]v1.PCIAddress
	}{
		"nothing": {"", nil},
		"no list": {`{"interface": 1}`, nil},
		"two of three": {`[{"name":"x","interface":"eth0"},{"interface":"` + link(1) +
			`","device-info":{"type":"pci","version":"1.0.0","pci":{"pci-address":"0000:3B:02.1"}}},
			{"interface":"` + link(0) + `","device-info":{"type":"pci","pci":{"pci-address":"0000:3b:0a.0"}}}]`,
			map[string]v1.PCIAddress{"a": "0000:3b:0a.0", "b": "0000:3b:02.1"}},
		"no address": {`[{"interface":"` + link(0) + `","device-info":{"pci":{"pci-address":"../../dev/vfio"}}}]`, nil},
	} {
		vmi, pod := sriovVMI(), &corev1.Pod{}
		pod.Name, pod.Annotations = "p", map[string]string{networkStatusAnnotation: tt.said}
		observePod(&vmi.Status, pod)
		observeDevices(vmi, pod)
		if diff := cmp.Diff(tt.want, vmi.Status.LauncherDevices("p")); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
}

// TestInterfaceOfWithdrawnPluginGetsNoPod: an interface whose plugin an administrator takes back, or gives a
// sidecar, before the VMI has a pod gets none.
func TestInterfaceOfWithdrawnPluginGetsNoPod(t *testing.T) {
	for config, permitted := range map[string]bool{
		`{"network":{"binding":{"x":{"domainAttachmentType":"managedTap"}}}}`:                                       true,
		`{"network":{"binding":{"x":{"domainAttachmentType":"managedTap","sidecarImage":"registry.example/x:1"}}}}`: false,
		`{}`: false,
	} {
		c := configured(t, config)
		vmi := c.get()
		vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default", Binding: &v1.PluginBinding{Name: "x"}}}
		vmi.Spec.Networks = []v1.Network{{Name: "default", Pod: &v1.PodNetwork{}}}
		if err := c.client.Update(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
		vmi.Status.Phase = v1.Pending // it was admitted with another configuration
		if err := c.client.Status().Update(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
		if got := c.status(); strings.HasPrefix(got, "Failed  InvalidSpec") == permitted ||
			c.pods() != map[bool]int{true: 1}[permitted] {
			t.Errorf("%s: %s, %d pods", config, got, c.pods())
		}
	}
}

// TestStatusNotesTheBindingPlugins: the status says what the KubeVirt object said of plugins, also if the VMI's
// status is first written after the pod was made, and a later change of the object changes nothing.
func TestStatusNotesTheBindingPlugins(t *testing.T) {
	c := configured(t, `{"network":{"binding":{"x":{"domainAttachmentType":"managedTap","migration":{}}}}}`)
	c.Clock = clocktesting.NewFakePassiveClock(time.Now()) // the pod is as young as its creation says
	c.client = interceptor.NewClient(c.client, interceptor.Funcs{Create: func(ctx context.Context, w client.WithWatch,
		o client.Object, options ...client.CreateOption) error {
		o.SetCreationTimestamp(metav1.NewTime(c.Clock.Now()))
		return w.Create(ctx, o, options...)
	}})
	c.Client = c.client
	vmi := c.get()
	vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default", Binding: &v1.PluginBinding{Name: "x"}}}
	vmi.Spec.Networks = []v1.Network{{Name: "default", Pod: &v1.PodNetwork{}}}
	if err := c.client.Update(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	for c.pods() == 0 {
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.get().Status; reported(&got) {
		t.Fatalf("the status was written with the pod, and this test proves nothing: %+v", got)
	}
	c.Clock = clocktesting.NewFakePassiveClock(c.Clock.Now().Add(3 * time.Second))
	for _, config := range []*v1.KubeVirtConfiguration{nil, {}} {
		if config != nil {
			c.Cluster = func(context.Context) (*v1.KubeVirtConfiguration, error) { return config, nil }
		}
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
		want := []v1.InterfaceBinding{{Name: "default", Migration: &v1.InterfaceBindingMigration{}}}
		if diff := cmp.Diff(want, c.get().Status.Bindings); diff != "" {
			t.Errorf("status.bindings, -want +got:\n%s", diff)
		}
	}
}
