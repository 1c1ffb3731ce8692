package v1

import (
	"testing"
)

// TestConfigVolumeLabelsAreKubeVirts: the labels are KubeVirt's.
func TestConfigVolumeLabelsAreKubeVirts(t *testing.T) {
	for want, v := range map[string]Volume{
		"cfgdata":    {ConfigMap: &ConfigMapVolumeSource{}},
		"OEMDRV":     {ConfigMap: &ConfigMapVolumeSource{VolumeLabel: "OEMDRV"}},
		"s":          {Secret: &SecretVolumeSource{VolumeLabel: "s"}},
		"d":          {DownwardAPI: &DownwardAPIVolumeSource{VolumeLabel: "d"}},
		"unattendCD": {Sysprep: &SysprepSource{}},
	} {
		if got := v.ConfigLabel(); got != want || !v.IsConfig() {
			t.Errorf("label %q, want %q", got, want)
		}
	}
	if v := (Volume{ServiceAccount: &ServiceAccountVolumeSource{}}); v.ConfigLabel() != "cfgdata" || !v.IsConfig() {
		t.Errorf("a service account has the label %q", v.ConfigLabel())
	}
	if v := (Volume{EmptyDisk: &EmptyDiskSource{}}); v.IsConfig() {
		t.Error("an empty disk is a disk of files")
	}
}
