package images

import (
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestPinned: a reference is replaced by a digest only if the runtime says that the image was pulled from the
// reference's own repository.
func TestPinned(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("0a", 32)
	for _, c := range []struct{ reference, present, want string }{
		{"registry.example/root:latest", "registry.example/root" + digest, "registry.example/root" + digest},
		{"registry.example:5000/a/root", "registry.example:5000/a/root" + digest, "registry.example:5000/a/root" + digest},
		{"registry.example:5000/root:v1", "registry.example:5000/root" + digest, "registry.example:5000/root" + digest},
		{"fedora:42", "docker.io/library/fedora" + digest, "fedora" + digest},
		{"someone/fedora", "docker.io/someone/fedora" + digest, "someone/fedora" + digest},
		{"docker.io/fedora:42", "docker.io/library/fedora" + digest, "docker.io/fedora" + digest},
		{"index.docker.io/fedora:42", "docker.io/library/fedora" + digest, "index.docker.io/fedora" + digest},
		{"docker.io/someone/fedora", "docker.io/someone/fedora" + digest, "docker.io/someone/fedora" + digest},
		{"localhost/root:dev", "localhost/root" + digest, "localhost/root" + digest},

		{"registry.example/root:latest", "", ""},
		{"registry.example/root:latest", strings.TrimPrefix(digest, "@"), ""}, // imported, and not pulled
		{"registry.example/root:latest", "mirror.example/root" + digest, ""},
		{"registry.example/root:latest", "registry.example/root/a" + digest, ""},
		{"registry.example/root:latest", "registry.example/root@sha256:0a", ""},
		{"registry.example/root:latest", "registry.example/root" + digest + "\n", ""},
		{"registry.example/root" + digest, "registry.example/root@sha256:" + strings.Repeat("1b", 32), ""},
	} {
		if c.want == "" {
			c.want = c.reference
		}
		for _, policy := range []corev1.PullPolicy{corev1.PullAlways, corev1.PullIfNotPresent} {
			if got := Pinned(c.reference, policy, c.present); got != c.want {
				t.Errorf("%s of %q: %s, want %s", c.reference, c.present, got, c.want)
			}
		}
		if got := Pinned(c.reference, corev1.PullNever, c.present); got != c.reference {
			t.Errorf("%s of %q, never pulled: %s", c.reference, c.present, got)
		}
	}
}

// TestPresent: what a pod has is read of its containers, and of its image volumes where the kubelet says it.
func TestPresent(t *testing.T) {
	pod := &corev1.Pod{Status: corev1.PodStatus{
		InitContainerStatuses: []corev1.ContainerStatus{{Name: "disk-root", ImageID: "a"}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "compute", ImageID: "b", VolumeMounts: []corev1.VolumeMountStatus{
			{Name: "run"}, {Name: "disk-media",
				VolumeStatus: &corev1.VolumeStatus{Image: &corev1.ImageVolumeStatus{ImageRef: "c"}}},
		}}},
	}}
	if got := Present(pod); !maps.Equal(got, map[string]string{"disk-root": "a", "disk-media": "c"}) {
		t.Errorf("%v", got)
	}
}
