package local

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/manifest"
)

// configFiles are the files of each config volume of a VMI, by the volume's name and the file's path. The errors say which
// cannot be had here.
func configFiles(set manifest.Set, vmi *v1.VirtualMachineInstance) (map[string]map[string][]byte, field.ErrorList) {
	all := map[string]map[string][]byte{}
	var errs field.ErrorList
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		if !v.IsConfig() || vmi.Spec.IsFilesystem(v.Name) {
			continue
		}
		files, err := filesOf(set, vmi, v, field.NewPath("spec", "volumes").Index(i))
		if err != nil {
			errs = append(errs, err)
		}
		all[v.Name] = files
	}
	return all, errs
}

// filesOf are the files of a config volume.
func filesOf(set manifest.Set, vmi *v1.VirtualMachineInstance, v *v1.Volume, path *field.Path) (map[string][]byte, *field.Error) {
	type source func(namespace, name string) (map[string][]byte, bool, error)
	from := func(kind string, entries source, name string, optional *bool, path *field.Path) (map[string][]byte, *field.Error) {
		found, ok, err := entries(vmi.Namespace, name)
		switch {
		case err != nil:
			return nil, field.Invalid(path, name, err.Error())
		case !ok && (optional == nil || !*optional):
			return nil, field.Invalid(path, name, fmt.Sprintf("there is no %s of this name in namespace %s among the manifests: name the %s's manifest too", kind, vmi.Namespace, kind))
		}
		return found, nil
	}
	switch sysprep := path.Child("sysprep"); {
	case v.ConfigMap != nil:
		return from("ConfigMap", set.ConfigMap, v.ConfigMap.Name, v.ConfigMap.Optional, path.Child("configMap", "name"))
	case v.Secret != nil:
		return from("Secret", set.Secret, v.Secret.SecretName, v.Secret.Optional, path.Child("secret", "secretName"))
	case v.Sysprep != nil && v.Sysprep.ConfigMap != nil:
		return from("ConfigMap", set.ConfigMap, v.Sysprep.ConfigMap.Name, nil, sysprep.Child("configMap", "name"))
	case v.Sysprep != nil && v.Sysprep.Secret != nil:
		return from("Secret", set.Secret, v.Sysprep.Secret.Name, nil, sysprep.Child("secret", "name"))
	case v.ServiceAccount != nil:
		return nil, field.Forbidden(path.Child("serviceAccount"), "a cluster gives service accounts their tokens, and there is no cluster here")
	case v.DownwardAPI != nil:
		return podFacts(vmi, v.DownwardAPI.Fields, path.Child("downwardAPI", "fields"))
	}
	return nil, nil
}

// podFacts are the files of the downward API, with the VMI in place of a pod.
func podFacts(vmi *v1.VirtualMachineInstance, fields []corev1.DownwardAPIVolumeFile, path *field.Path) (map[string][]byte, *field.Error) {
	files := map[string][]byte{}
	for i, f := range fields {
		if f.FieldRef == nil {
			return nil, field.Forbidden(path.Index(i).Child("resourceFieldRef"), "only a pod has resources, and there is no pod here")
		}
		name, key, _ := strings.Cut(strings.TrimSuffix(f.FieldRef.FieldPath, "']"), "['")
		text := map[string]string{"metadata.name": vmi.Name, "metadata.namespace": vmi.Namespace, "metadata.uid": string(vmi.UID),
			"metadata.labels": lines(vmi.Labels), "metadata.annotations": lines(vmi.Annotations)}[name]
		switch {
		case key != "" && name == "metadata.labels":
			text = vmi.Labels[key]
		case key != "" && name == "metadata.annotations":
			text = vmi.Annotations[key]
		}
		files[f.Path] = []byte(text)
	}
	return files, nil
}

// lines are the entries of a map as the kubelet writes them: key="value", in the keys' order.
func lines(entries map[string]string) string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		out = append(out, fmt.Sprintf("%s=%q", key, entries[key]))
	}
	return strings.Join(out, "\n")
}

// writeConfig puts the files of config volumes where the kubelet puts them in a pod.
func (f *folder) writeConfig(volumes map[string]map[string][]byte) error {
	for volume, files := range volumes {
		into := f.below(layout.Config(volume))
		if err := os.MkdirAll(into, 0o700); err != nil {
			return fmt.Errorf("write volume %s: %w", volume, err)
		}
		for name, data := range files {
			if !filepath.IsLocal(name) {
				return fmt.Errorf("write volume %s: %q is no key", volume, name)
			}
			at := filepath.Join(into, name)
			if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
				return fmt.Errorf("write volume %s: %w", volume, err)
			}
			if err := os.WriteFile(at, data, 0o600); err != nil {
				return fmt.Errorf("write volume %s: %w", volume, err)
			}
		}
	}
	return nil
}
