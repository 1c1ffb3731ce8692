package e2e

import (
	"maps"
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestHostileImages: what a container disk's maker may have put into it ends
// its own VMI, with what is wrong, and nothing else.
func TestHostileImages(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	restarts := componentRestarts(t)
	cases := map[string]struct{ image, path, detail string }{
		"empty":     {emptyImage, "", "it is empty"},
		"link":      {linkImage, "", "symbolic link"},
		"data-file": {dataImage, "", "data file"},
		"huge":      {hugeImage, "", "claims a size"},
		"launcher":  {"localhost/kubeqemu/virt-launcher:dev", "", "no folder /disk"},
		"dots":      {tinyImage, "/disk/../../../../../proc/self/environ", "/proc/self/environ"},
	}
	for name, c := range cases {
		create(t, ns, tiny(name, func(s *v1.VirtualMachineInstanceSpec) {
			s.Volumes[0].ContainerDisk = &v1.ContainerDiskSource{Image: c.image, Path: c.path}
		}))
	}
	for name, c := range cases {
		v := vmi{t: t, namespace: ns, name: name}
		status := v.await(v1.Failed).Status
		if ready := status.Condition(v1.ConditionReady); status.Reason != "StartFailed" || ready == nil || !strings.Contains(ready.Message, c.detail) {
			t.Errorf("%s: reason %q, Ready %+v; want StartFailed and %q", name, status.Reason, ready, c.detail)
		}
		deletesSoon(t, v)
	}
	if now := componentRestarts(t); !maps.Equal(now, restarts) {
		t.Errorf("restarts were %v, are %v", restarts, now)
	}
}
