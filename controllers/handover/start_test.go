package handover

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// TestSeeds: each kind of seed has what cloud-init knows a first boot by, and the
// keys that are for it.
func TestSeeds(t *testing.T) {
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
	got, err := seeds(vmi, "uuid")
	want := []control.CloudInitSeed{
		{Volume: "a", InstanceID: "uuid", Hostname: "vm", UserData: []byte("x"), NetworkData: []byte{}, NetworkDataSecret: true, AccessCredentials: []int{0, 2}},
		{Volume: "b", InstanceID: "vm.example.team-a", ConfigDriveUUID: "uuid", Hostname: "vm", UserData: []byte{}, NetworkData: []byte("{}"), UserDataSecret: true, AccessCredentials: []int{1}},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
}
