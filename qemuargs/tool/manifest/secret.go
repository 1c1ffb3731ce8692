package manifest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Secret returns the entries of a Secret among the documents; ok is false if there is none.
func (s Set) Secret(namespace, name string) (entries map[string][]byte, ok bool, err error) {
	for _, d := range s {
		in := d.Namespace
		if in == "" {
			in = metav1.NamespaceDefault
		}
		if d.GroupVersionKind() != corev1.SchemeGroupVersion.WithKind("Secret") || d.Name != name || in != namespace {
			continue
		}
		var secret corev1.Secret
		if err := d.decode(&secret); err != nil {
			return nil, false, fmt.Errorf("read Secret %q: %w", name, err)
		}
		entries = secret.Data
		if entries == nil {
			entries = map[string][]byte{}
		}
		for key, text := range secret.StringData { // as the API server writes it into data
			entries[key] = []byte(text)
		}
		return entries, true, nil
	}
	return nil, false, nil
}
