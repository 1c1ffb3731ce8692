package v1

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"
)

// TestGuestWithBindingPluginIsMigratable: a guest with a plugin moves if the plugin has a migration, or if nothing gave
// the guest's address.
func TestGuestWithBindingPluginIsMigratable(t *testing.T) {
	config := func(migration *InterfaceBindingMigration) *KubeVirtConfiguration {
		return &KubeVirtConfiguration{NetworkConfiguration: &NetworkConfiguration{Binding: map[string]InterfaceBindingPlugin{
			"x": {DomainAttachmentType: ManagedTap, Migration: migration}}}}
	}
	pod, beside := Network{Name: "n", Pod: &PodNetwork{}}, Network{Name: "n", Multus: &MultusNetwork{NetworkName: "lan"}}
	for name, tt := range map[string]struct {
		network   Network
		ipam      *bool
		migration *InterfaceBindingMigration
		annotated bool
		stays     string
		refreshes bool
	}{
		"pod network":            {network: pod, stays: "had no migration"},
		"pod network, migration": {network: pod, migration: &InterfaceBindingMigration{}},
		"pod network, link-refresh": {network: pod, migration: &InterfaceBindingMigration{Method: LinkRefresh},
			refreshes: true},
		"pod network, annotation": {network: pod, annotated: true},
		"beside, not known":       {network: beside, stays: "not known yet"},
		"beside, IPAM":            {network: beside, ipam: ptr.To(true), stays: "by IPAM"},
		"beside, no IPAM":         {network: beside, ipam: ptr.To(false)},
		"beside, IPAM, migration": {network: beside, ipam: ptr.To(true), migration: &InterfaceBindingMigration{}},
	} {
		vmi := &VirtualMachineInstance{}
		if tt.annotated {
			vmi.Annotations = map[string]string{AllowPodBridgeMigrationAnnotation: ""}
		}
		vmi.Spec.Domain.Devices.Interfaces = []Interface{{Name: "n", Binding: &PluginBinding{Name: "x"}}}
		vmi.Spec.Networks = []Network{tt.network}
		vmi.Status.Bindings = config(tt.migration).Bindings(&vmi.Spec)
		vmi.Status.Interfaces = []NetworkInterfaceStatus{{Name: "n", IPAM: tt.ipam}}
		reason, message := vmi.NotMigratable()
		if (reason != "") != (tt.stays != "") || !strings.Contains(message, tt.stays) || reason != "" &&
			reason != ReasonInterfaceNotMigratable {
			t.Errorf("%s: %s: %s", name, reason, message)
		}
		if got := vmi.Status.RefreshesLink("n"); got != tt.refreshes {
			t.Errorf("%s: the link is refreshed: %v", name, got)
		}
	}
}

// TestSRIOVGuestIsNotMigratable: the card is the node's, and QEMU locks the guest's memory for it.
func TestSRIOVGuestIsNotMigratable(t *testing.T) {
	vmi := &VirtualMachineInstance{}
	vmi.Spec.Networks = []Network{{Name: "n", Multus: &MultusNetwork{NetworkName: "lan"}}}
	vmi.Spec.Domain.Devices.Interfaces = []Interface{{Name: "n", SRIOV: &InterfaceSRIOV{}}}
	if reason, message := vmi.NotMigratable(); reason != ReasonHostDeviceNotMigratable ||
		!strings.Contains(message, "interfaces[0], n,") {
		t.Errorf("%s: %s", reason, message)
	}
	if !vmi.Spec.Domain.LocksMemory() {
		t.Error("QEMU locks no memory")
	}
}

// TestStatusNamesRefusedBindingPlugins: the KubeVirt object's status names the plugins only if interfaces with some are
// refused.
func TestStatusNamesRefusedBindingPlugins(t *testing.T) {
	for text, want := range map[string]int{
		`{"x":{"domainAttachmentType":"managedTap","migration":{}}}`:                               0,
		`{"x":{"domainAttachmentType":"managedTap"},"y":{"sidecarImage":"registry.example/y:v1"}}`: 1,
	} {
		spec := decodeJSON[KubeVirtSpec](t, `{"configuration":{"network":{"binding":`+text+`}}}`)
		got, err := IneffectiveFields(spec)
		if err != nil || len(got) != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
}
