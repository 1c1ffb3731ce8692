package handover

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/cloudinit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestSeedsHaveAnIDAndTheirKeys: each kind of seed has what cloud-init knows a first boot by, and the
// keys that are for it.
func TestSeedsHaveAnIDAndTheirKeys(t *testing.T) {
	key := func(m v1.SSHPublicKeyAccessCredentialPropagationMethod) v1.AccessCredential {
		return v1.AccessCredential{SSHPublicKey: &v1.SSHPublicKeyAccessCredential{PropagationMethod: m,
			Source: v1.SSHPublicKeyAccessCredentialSource{Secret: &v1.AccessCredentialSecretSource{SecretName: "keys"}}}}
	}
	noCloud := key(v1.SSHPublicKeyAccessCredentialPropagationMethod{NoCloud: &v1.NoCloudSSHPublicKeyAccessCredentialPropagation{}})
	drive := key(v1.SSHPublicKeyAccessCredentialPropagationMethod{ConfigDrive: &v1.ConfigDriveSSHPublicKeyAccessCredentialPropagation{}})
	vmi := &v1.VirtualMachineInstance{}
	vmi.Namespace, vmi.Name = "team-a", "vm.example"
	vmi.Spec.AccessCredentials = []v1.AccessCredential{noCloud, drive, noCloud}
	vmi.Spec.Volumes = []v1.Volume{
		{Name: "root", ContainerDisk: &v1.ContainerDiskSource{Image: "x"}},
		{Name: "a", CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserDataBase64: "eA==", NetworkDataSecretRef: &corev1.LocalObjectReference{Name: "n"}}},
		{Name: "b", CloudInitConfigDrive: &v1.CloudInitConfigDriveSource{UserDataSecretRef: &corev1.LocalObjectReference{Name: "u"}, NetworkData: "{}"}},
	}
	vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default", Tag: "mgmt"}, {Name: "other"}}
	vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "root", Tag: "boot", Serial: "S1", Disk: &v1.DiskTarget{Bus: "virtio"}}, {Name: "a"}, {Name: "b", Tag: "seed", CDRom: &v1.CDRomTarget{Bus: "scsi"}}}
	lun := 3
	machine := &qemuargs.Machine{UUID: "uuid", NICs: []qemuargs.NIC{{Name: "default", MAC: "02:00:00:00:00:01", PCI: qemuargs.PCIAddress{Bus: "pci.10"}}, {Name: "other"}},
		Disks: []qemuargs.Disk{{Name: "root", PCI: &qemuargs.PCIAddress{Bus: "pcie.0", Slot: 0x1b}}, {Name: "a"}, {Name: "b", LUN: &lun}}}
	got, err := seeds(vmi, machine)
	want := []control.CloudInitSeed{
		{Volume: "a", InstanceID: "uuid", Hostname: "vm", UserData: []byte("x"), NetworkData: []byte{}, NetworkDataSecret: true, AccessCredentials: []int{0, 2}},
		{Volume: "b", InstanceID: "vm.example.team-a", ConfigDriveUUID: "uuid", Hostname: "vm", UserData: []byte{}, NetworkData: []byte("{}"), UserDataSecret: true, AccessCredentials: []int{1},
			Devices: []cloudinit.Device{{Type: "nic", Bus: "pci", Address: "0000:0a:00.0", MAC: "02:00:00:00:00:01", Tags: []string{"mgmt"}},
				{Type: "disk", Bus: "pci", Address: "0000:00:1b.0", Serial: "S1", Tags: []string{"boot"}}, {Type: "disk", Bus: "scsi", Address: "0:0:0:3", Tags: []string{"seed"}}}},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
}
