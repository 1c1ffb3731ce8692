package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeqemu/kubeqemu/controllers/handover"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/manifest"
)

// missing are the Secrets that are not among the documents.
func missing(set manifest.Set, namespace string, secrets []handover.Secret) field.ErrorList {
	var errs field.ErrorList
	for _, s := range secrets {
		_, ok, err := set.Secret(namespace, s.Name)
		switch {
		case err != nil:
			errs = append(errs, field.Invalid(s.Field, s.Name, err.Error()))
		case !ok:
			errs = append(errs, field.Invalid(s.Field, s.Name, fmt.Sprintf("there is no Secret of this name in namespace %s among the manifests: name the Secret's manifest too", namespace)))
		}
	}
	return errs
}

// writeSecrets puts the Secrets where the kubelet puts them in a pod.
func (f *folder) writeSecrets(set manifest.Set, namespace string, secrets []handover.Secret) error {
	for _, s := range secrets {
		entries, _, err := set.Secret(namespace, s.Name)
		if err != nil {
			return err
		}
		into := f.below(s.Path)
		err = os.MkdirAll(into, 0o700)
		for key, data := range entries {
			if filepath.Base(key) != key || key == "." || key == ".." {
				return fmt.Errorf("read Secret %q: %q is no key", s.Name, key)
			}
			err = errors.Join(err, os.WriteFile(filepath.Join(into, key), data, 0o600))
		}
		if err != nil {
			return fmt.Errorf("write Secret %q: %w", s.Name, err)
		}
	}
	return nil
}
