package manifest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConfigMap returns the entries of a ConfigMap among the documents; ok is false if there is none.
func (s Set) ConfigMap(namespace, name string) (entries map[string][]byte, ok bool, err error) {
	for _, d := range s {
		in := d.Namespace
		if in == "" {
			in = metav1.NamespaceDefault
		}
		if d.GroupVersionKind() != corev1.SchemeGroupVersion.WithKind("ConfigMap") || d.Name != name || in != namespace {
			continue
		}
		var config corev1.ConfigMap
		if err := d.decode(&config); err != nil {
			return nil, false, fmt.Errorf("read ConfigMap %q: %w", name, err)
		}
		entries = map[string][]byte{}
		for key, data := range config.BinaryData {
			entries[key] = data
		}
		for key, text := range config.Data {
			entries[key] = []byte(text)
		}
		return entries, true, nil
	}
	return nil, false, nil
}
