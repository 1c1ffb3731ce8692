package validation

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func TestValidateConfigVolumes(t *testing.T) {
	ref := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	volume := func(v v1.Volume) func(*spec) {
		return func(s *spec) {
			v.Name = "files"
			s.Volumes = append(s.Volumes, v)
			s.Domain.Devices.Disks = append(s.Domain.Devices.Disks,
				v1.Disk{Name: "files", CDRom: &v1.CDRomTarget{Bus: v1.DiskBusSATA, Tray: "closed"}})
		}
	}
	field := func(f corev1.DownwardAPIVolumeFile) func(*spec) {
		return volume(v1.Volume{DownwardAPI: &v1.DownwardAPIVolumeSource{Fields: []corev1.DownwardAPIVolumeFile{f}}})
	}
	path := func(path string) func(*spec) {
		return field(corev1.DownwardAPIVolumeFile{Path: path,
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"}})
	}
	fieldPath := func(path string) func(*spec) {
		return field(corev1.DownwardAPIVolumeFile{Path: "x", FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}})
	}
	account := func(names ...string) func(*spec) {
		return func(s *spec) {
			for i, name := range names {
				volume(v1.Volume{ServiceAccount: &v1.ServiceAccountVolumeSource{ServiceAccountName: name}})(s)
				last := strings.Repeat("x", i+1)
				s.Volumes[len(s.Volumes)-1].Name, s.Domain.Devices.Disks[len(s.Domain.Devices.Disks)-1].Name = last, last
			}
		}
	}
	many := make([]corev1.DownwardAPIVolumeFile, maxFields+1)
	edits{
		"a ConfigMap": {
			volume(v1.Volume{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: ref("settings"),
				VolumeLabel: strings.Repeat("l", 32)}}), ""},
		"a ConfigMap of no name": {volume(v1.Volume{ConfigMap: &v1.ConfigMapVolumeSource{}}), "[3].configMap.name"},
		"a ConfigMap of bad name": {
			volume(v1.Volume{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: ref("../x")}}), "[3].configMap.name"},
		"a long label": {volume(v1.Volume{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: ref("x"),
			VolumeLabel: strings.Repeat("l", 33)}}), "[3].configMap.volumeLabel"},
		"a label of blanks": {volume(v1.Volume{Secret: &v1.SecretVolumeSource{SecretName: "x", VolumeLabel: "a b"}}),
			"[3].secret.volumeLabel"},
		"a label of the pod's": {volume(v1.Volume{DownwardAPI: &v1.DownwardAPIVolumeSource{VolumeLabel: "ü"}}),
			"[3].downwardAPI.volumeLabel"},
		"a Secret":            {volume(v1.Volume{Secret: &v1.SecretVolumeSource{SecretName: "keys"}}), ""},
		"a Secret of no name": {volume(v1.Volume{Secret: &v1.SecretVolumeSource{}}), "[3].secret.secretName"},
		"two sources": {volume(v1.Volume{Secret: &v1.SecretVolumeSource{SecretName: "x"},
			ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: ref("x")}}), "[3]"},
		"answers":    {volume(v1.Volume{Sysprep: &v1.SysprepSource{Secret: &corev1.LocalObjectReference{Name: "x"}}}), ""},
		"no answers": {volume(v1.Volume{Sysprep: &v1.SysprepSource{}}), "[3].sysprep"},
		"answers twice": {volume(v1.Volume{Sysprep: &v1.SysprepSource{Secret: &corev1.LocalObjectReference{Name: "x"},
			ConfigMap: &corev1.LocalObjectReference{Name: "x"}}}), "[3].sysprep"},
		"answers of no name": {volume(v1.Volume{Sysprep: &v1.SysprepSource{ConfigMap: &corev1.LocalObjectReference{}}}),
			"[3].sysprep.configMap.name"},

		"a service account":         {account("robot"), ""},
		"no name of an account":     {account(""), "[3].serviceAccount.serviceAccountName"},
		"two service accounts":      {account("robot", "robot"), "[4].serviceAccount.serviceAccountName"},
		"the pod's service account": {func(s *spec) { s.ServiceAccountName = "robot"; account("robot")(s) }, ""},
		"another account of the pod": {func(s *spec) { s.ServiceAccountName = "other"; account("robot")(s) },
			"[3].serviceAccount.serviceAccountName"},

		"a field":               {fieldPath("metadata.labels"), ""},
		"a label":               {fieldPath("metadata.labels['example.com/tier']"), ""},
		"an annotation":         {fieldPath("metadata.annotations['note']"), ""},
		"a bad label":           {fieldPath("metadata.labels['a b']"), "[3].downwardAPI.fields[0].fieldRef.fieldPath"},
		"a label without key":   {fieldPath("metadata.labels['']"), "[3].downwardAPI.fields[0].fieldRef.fieldPath"},
		"a field of the status": {fieldPath("status.podIP"), "[3].downwardAPI.fields[0].fieldRef.fieldPath"},
		"a field of the spec":   {fieldPath("spec.nodeName"), "[3].downwardAPI.fields[0].fieldRef.fieldPath"},
		"no source of a file":   {field(corev1.DownwardAPIVolumeFile{Path: "x"}), "[3].downwardAPI.fields[0]"},
		"a resource": {field(corev1.DownwardAPIVolumeFile{Path: "x",
			ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "compute", Resource: "limits.cpu"}}), ""},
		"another container": {field(corev1.DownwardAPIVolumeFile{Path: "x",
			ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}}),
			"[3].downwardAPI.fields[0].resourceFieldRef.containerName"},
		"another resource": {field(corev1.DownwardAPIVolumeFile{Path: "x",
			ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "compute", Resource: "cpu"}}),
			"[3].downwardAPI.fields[0].resourceFieldRef.resource"},
		"a file in folders":       {path("1/2/3/4/5/6/file"), ""},
		"a file in more folders":  {path("1/2/3/4/5/6/7/file"), "[3].downwardAPI.fields[0].path"},
		"no path":                 {path(""), "[3].downwardAPI.fields[0].path"},
		"a path from the root":    {path("/etc/passwd"), "[3].downwardAPI.fields[0].path"},
		"a path that leads out":   {path("a/../../x"), "[3].downwardAPI.fields[0].path"},
		"a path of the kubelet's": {path("..data"), "[3].downwardAPI.fields[0].path"},
		"a path of two slashes":   {path("a//b"), "[3].downwardAPI.fields[0].path"},
		"a path of other letters": {path("ä"), "[3].downwardAPI.fields[0].path"},
		"more fields than may be": {volume(v1.Volume{DownwardAPI: &v1.DownwardAPIVolumeSource{Fields: many}}),
			"[3].downwardAPI.fields"},
		"no fields": {volume(v1.Volume{DownwardAPI: &v1.DownwardAPIVolumeSource{}}), ""},
		"two files of a path": {
			volume(v1.Volume{DownwardAPI: &v1.DownwardAPIVolumeSource{Fields: []corev1.DownwardAPIVolumeFile{
				{Path: "x", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.uid"}},
				{Path: "x", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}}),
			"[3].downwardAPI.fields[1].path"},
	}.try(t, "spec.volumes")
}
