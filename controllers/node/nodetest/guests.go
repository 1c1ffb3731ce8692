package nodetest

import (
	"errors"
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/accelerator"
	"github.com/kubeqemu/kubeqemu/internal/kvmcheck"
	"github.com/kubeqemu/kubeqemu/netsetup"
)

// Broken returns the verdict on a KVM that does not work.
func Broken() kvmcheck.Result { return kvmcheck.Result{Verdict: kvmcheck.Broken, Reason: "it crawls"} }

// Emulating returns the choice of a node whose KVM does not work, in a cluster that permits emulation.
func Emulating() *accelerator.Chooser {
	chooser := accelerator.New(Broken())
	chooser.PermitEmulation(true)
	return chooser
}

// Scheme returns the scheme of virt-handler's client.
func Scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(s), v1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	return s
}

// Demanding returns a VMI whose start sets fields of many kinds.
func Demanding() *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Namespace, vmi.Name, vmi.UID = "ns", "guest", "0a1b2c3d-0000-4000-8000-000000000001"
	vmi.Annotations = map[string]string{v1.KeepLauncherAnnotation: "true"}
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("128Mi"))}
	vmi.Spec.StartStrategy = v1.StartStrategyPaused
	vmi.Spec.Volumes = []v1.Volume{{Name: "seed",
		CloudInitConfigDrive: &v1.CloudInitConfigDriveSource{UserData: "#cloud-config"}}}
	vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "seed"}}
	vmi.Spec.AccessCredentials = []v1.AccessCredential{{SSHPublicKey: &v1.SSHPublicKeyAccessCredential{
		Source:            v1.SSHPublicKeyAccessCredentialSource{Secret: &v1.AccessCredentialSecretSource{SecretName: "keys"}},
		PropagationMethod: v1.SSHPublicKeyAccessCredentialPropagationMethod{ConfigDrive: &v1.ConfigDriveSSHPublicKeyAccessCredentialPropagation{}}}}}
	vmi.Spec.Domain.Clock = &v1.Clock{Timezone: "Asia/Kathmandu"}
	vmi.Spec.Domain.Chassis = &v1.Chassis{Asset: "rack-1"}
	vmi.Spec.Domain.CPU = &v1.CPU{Features: []v1.CPUFeature{{Name: "aes"}}}
	v1.Default(vmi)
	return vmi
}

// Beside returns a VMI with the pod network, one network without IPAM, and one with.
func Beside() *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Name, vmi.Namespace, vmi.UID = "vm", "default", "0a1b2c3d-0000-4000-8000-000000000001"
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("128Mi"))}
	vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{
		{Name: "lan", Model: "virtio", Bridge: &v1.InterfaceBridge{}},
		{Name: "default", Model: "virtio", Masquerade: &v1.InterfaceMasquerade{}},
		{Name: "given", Model: "virtio", Bridge: &v1.InterfaceBridge{}},
	}
	vmi.Spec.Networks = []v1.Network{{Name: "default", Pod: &v1.PodNetwork{}},
		{Name: "given", Multus: &v1.MultusNetwork{NetworkName: "given"}},
		{Name: "lan", Multus: &v1.MultusNetwork{NetworkName: "lan"}}}
	vmi.Status.Phase = v1.Running
	return vmi
}

// BesideLinks returns the links of the VMI of Beside, by interface.
func BesideLinks(vmi *v1.VirtualMachineInstance) map[string]netsetup.Facts {
	return map[string]netsetup.Facts{
		"default": {Link: "eth0", MAC: "0a:58:0a:f4:00:05", MTU: 1450, Addresses: prefixes("10.244.0.5/24")},
		"lan": {Link: vmi.Spec.Networks[2].Link(), MAC: v1.MAC(vmi.UID, "lan"), MTU: 1500,
			Addresses: prefixes("2001:db8::1/64")},
		"given": {Link: vmi.Spec.Networks[1].Link(), MAC: v1.MAC(vmi.UID, "given"), MTU: 1500,
			Addresses: prefixes("192.0.2.9/24", "2001:db8::9/64")},
	}
}

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}
