package validation

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func TestValidateVolumes(t *testing.T) {
	seed := func(edit func(*v1.CloudInitNoCloudSource)) func(*spec) {
		return func(s *spec) { edit(s.Volumes[2].CloudInitNoCloud) }
	}
	secret := func(name string) *corev1.LocalObjectReference { return &corev1.LocalObjectReference{Name: name} }
	const noCloud = "[2].cloudInitNoCloud"
	long := strings.Repeat("x", maxCloudInitBytes+1)
	edits{
		"volume with two sources": {func(s *spec) { s.Volumes[2].ContainerDisk = s.Volumes[0].ContainerDisk }, "[2]"},
		"two volumes of a name": {func(s *spec) { s.Volumes[2].Name = "root" },
			"spec.domain.devices.disks[2].name [2].name"},
		"no image": {func(s *spec) { s.Volumes[0].ContainerDisk.Image = "" }, "[0].containerDisk.image"},
		"network data alone": {seed(func(c *v1.CloudInitNoCloudSource) {
			*c = v1.CloudInitNoCloudSource{NetworkData: "version: 2"}
		}), ""},
		"user data twice": {seed(func(c *v1.CloudInitNoCloudSource) { c.UserDataBase64 = "eA==" }),
			noCloud + ".userData"},
		"no base64": {seed(func(c *v1.CloudInitNoCloudSource) {
			*c = v1.CloudInitNoCloudSource{NetworkDataBase64: "%"}
		}), noCloud + ".networkDataBase64"},
		"long user data": {seed(func(c *v1.CloudInitNoCloudSource) { c.UserData = long }),
			noCloud + ".userData"},
		"user data as long as may be": {seed(func(c *v1.CloudInitNoCloudSource) { c.UserData = long[1:] }), ""},
		"user data in a Secret": {seed(func(c *v1.CloudInitNoCloudSource) {
			c.UserData, c.UserDataSecretRef, c.NetworkData = "", secret("user"), "version: 2"
		}), ""},
		"user data also in a Secret": {seed(func(c *v1.CloudInitNoCloudSource) { c.UserDataSecretRef = secret("user") }),
			noCloud + ".userData"},
		"Secret without name": {seed(func(c *v1.CloudInitNoCloudSource) { c.NetworkDataSecretRef = secret("") }),
			noCloud + ".networkDataSecretRef.name"},
		"long network data of a ConfigDrive": {func(s *spec) {
			s.Volumes[2] = v1.Volume{Name: "seed", CloudInitConfigDrive: &v1.CloudInitConfigDriveSource{NetworkData: long}}
		}, "[2].cloudInitConfigDrive.networkData"},
		"both kinds of seed in a volume": {func(s *spec) {
			s.Volumes[2].CloudInitConfigDrive = &v1.CloudInitConfigDriveSource{UserData: "x"}
		}, "[2]"},
	}.try(t, "spec.volumes")
}

// TestLongCloudInitDataIsNotRead: a warning comes before the refusal of data that is too long, and YAML's nodes take
// much memory.
func TestLongCloudInitDataIsNotRead(t *testing.T) {
	warned := func(data string) []string {
		return warnCloudInit([]v1.Volume{{Name: "seed", CloudInitNoCloud: &v1.CloudInitNoCloudSource{NetworkData: data}}},
			field.NewPath("spec", "volumes"))
	}
	if got := warned("[" + strings.Repeat("a,", 5)); len(got) != 1 {
		t.Errorf("no YAML: %q, want a warning", got)
	}
	if got := warned("[" + strings.Repeat("a,", maxCloudInitBytes)); len(got) != 0 {
		t.Errorf("data that is too long was read: %.200q", got)
	}
}
