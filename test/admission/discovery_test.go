package admission

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

const subresources = "/apis/subresources.kubevirt.io/v1"

// discovery: kubectl finds the subresources' group, and virtctl its version.
func (s *testServer) discovery(t *testing.T) {
	s.plane.Kubectl("wait", "--for=condition=Available", "--timeout=60s", "apiservice/v1.subresources.kubevirt.io", "apiservice/v1alpha3.subresources.kubevirt.io")
	get := func(path string) (string, error) { return s.plane.Try("", "get", "--raw", path) }
	if out, err := get(subresources); err != nil || !strings.Contains(out, "virtualmachineinstances/console") {
		t.Errorf("resources: %s (%v)", out, err)
	}
	for _, of := range []string{subresources, "/apis/subresources.kubevirt.io/v1alpha3"} {
		if out, err := get(of + "/version"); err != nil || !strings.Contains(out, "goVersion") {
			t.Errorf("version of %s: %s (%v)", of, out, err)
		}
	}
	for _, c := range [][2]string{{"/openapi/v3", "apis/subresources.kubevirt.io/v1?hash="}, {"/openapi/v3" + subresources, "v1virtualmachineinstances-vnc-screenshot"},
		{"/openapi/v2", "v1virtualmachineinstances-console"}, {subresources + "/healthz", "ok"}} {
		// The API server merges what it asks for by and by.
		testkit.Eventually(t, c[0], func() error {
			out, err := get(c[0])
			if err == nil && !strings.Contains(out, c[1]) {
				time.Sleep(time.Second) // the answer may be long
				err = fmt.Errorf("it has no %q", c[1])
			}
			return err
		})
	}
	// There is no export, for an administrator either.
	for _, path := range []string{"/apis/export.kubevirt.io/v1", subresources + "/namespaces/default/virtualmachineexports/vm/volumes/disk/dir/",
		subresources + "/namespaces/default/virtualmachines/vm/export/volumes/disk/disk.img", subresources + "/ui/volumes/disk/disk.img"} {
		if out, err := get(path); err == nil || !strings.Contains(err.Error()+out, "NotFound") {
			t.Errorf("%s: %v %s", path, err, out)
		}
	}
	if out := s.plane.Kubectl("explain", "vmi.spec.domain"); !strings.Contains(out, "devices") {
		t.Errorf("kubectl explain: %s", out)
	}
	s.plane.Kubectl("api-resources")
}
