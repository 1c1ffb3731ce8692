package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
	"github.com/kubeqemu/kubeqemu/qemuargs/manifest"
)

// secret is a Secret that the VM needs, and where the launcher looks for it.
type secret struct {
	name string
	path *field.Path // of the reference in the VMI
	into string      // a path of package layout
}

// secretsOf are the Secrets with a VMI's cloud-init data and access credentials.
func secretsOf(vmi *v1.VirtualMachineInstance) []secret {
	var out []secret
	for i, v := range vmi.Spec.Volumes {
		source, path := v.CloudInit(), field.NewPath("spec", "volumes").Index(i).Child("cloudInitNoCloud")
		if source == nil {
			continue
		}
		if v.CloudInitConfigDrive != nil {
			path = field.NewPath("spec", "volumes").Index(i).Child("cloudInitConfigDrive")
		}
		if ref := source.UserDataSecretRef; ref != nil {
			out = append(out, secret{ref.Name, path.Child("secretRef"), layout.UserDataSecret(v.Name)})
		}
		if ref := source.NetworkDataSecretRef; ref != nil {
			out = append(out, secret{ref.Name, path.Child("networkDataSecretRef"), layout.NetworkDataSecret(v.Name)})
		}
	}
	for i, c := range vmi.Spec.AccessCredentials {
		if s := c.Secret(); s != nil {
			out = append(out, secret{s.SecretName, field.NewPath("spec", "accessCredentials").Index(i), layout.AccessCredential(layout.SecretDir, i)})
		}
	}
	return out
}

// missing are the Secrets that are not among the documents.
func missing(set manifest.Set, namespace string, secrets []secret) field.ErrorList {
	var errs field.ErrorList
	for _, s := range secrets {
		_, ok, err := set.Secret(namespace, s.name)
		switch {
		case err != nil:
			errs = append(errs, field.Invalid(s.path, s.name, err.Error()))
		case !ok:
			errs = append(errs, field.Invalid(s.path, s.name, fmt.Sprintf("there is no Secret of this name in namespace %s among the manifests: name the Secret's manifest too", namespace)))
		}
	}
	return errs
}

// writeSecrets puts the Secrets where the kubelet puts them in a pod.
func (f *folder) writeSecrets(set manifest.Set, namespace string, secrets []secret) error {
	for _, s := range secrets {
		entries, _, err := set.Secret(namespace, s.name)
		if err != nil {
			return err
		}
		into := f.below(s.into)
		err = os.MkdirAll(into, 0o700)
		for key, data := range entries {
			if filepath.Base(key) != key || key == "." || key == ".." {
				return fmt.Errorf("read Secret %q: %q is no key", s.name, key)
			}
			err = errors.Join(err, os.WriteFile(filepath.Join(into, key), data, 0o600))
		}
		if err != nil {
			return fmt.Errorf("write Secret %q: %w", s.name, err)
		}
	}
	return nil
}
