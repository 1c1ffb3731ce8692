package subresources

import (
	"net/http"
	"strings"
	"testing"
)

// exportPaths are those of KubeVirt's export: its API, its proxy, the server in the
// exporter's pod, and what a client might try on the group that is served here.
func exportPaths() []string {
	const volume = "/volumes/disk/"
	proxy := "/api/export.kubevirt.io/v1/namespaces/ns/virtualmachineexports/vm"
	paths := []string{
		"/apis/export.kubevirt.io", "/apis/export.kubevirt.io/v1", "/apis/export.kubevirt.io/v1beta1/namespaces/ns/virtualmachineexports/vm",
		"/volumes", "/internal/manifests/all", "/external/manifests/all", "/internal/manifests/secret", "/external/cert",
		root + "/namespaces/ns/virtualmachineexports/vm", root + "/virtualmachineexports",
		root + "/ui/../../../../volumes/disk/dir/", root + "/ui/volumes/disk/dir/", root + "/ui/%2e%2e/volumes",
	}
	for _, file := range []string{"", "dir", "dir/", "dir/etc/passwd", "dir/../../etc/passwd", "dir/..%2f..%2fetc/passwd", "disk.img", "disk.img.gz", "disk.tar.gz", "disk.qcow2", "%64isk.img"} {
		paths = append(paths, volume+file, proxy+volume+file)
		for _, resource := range []string{machines, instances} {
			for _, sub := range []string{"export", "portforward/.."} {
				paths = append(paths, root+"/namespaces/ns/"+resource+"/vm/"+sub+volume+file)
			}
		}
	}
	return paths
}

// TestNoExport: there is no way to a volume's content (CVE-2026-9804), for an
// administrator either, and none that RBAC would be asked about.
func TestNoExport(t *testing.T) {
	s := serve(t)
	for _, path := range exportPaths() {
		for _, method := range []string{http.MethodGet, http.MethodPut} {
			if code, _ := s.ask(true, "ann", method, path+"?x-kubevirt-export-token=t", ""); code != http.StatusNotFound || len(s.asked) > 0 {
				t.Errorf("%s %s: %d, and RBAC was asked %v", method, path, code, s.asked)
			}
		}
		if code, _ := s.ask(false, "ann", http.MethodGet, path, ""); code != http.StatusUnauthorized {
			t.Errorf("%s by a stranger: %d", path, code)
		}
	}
	for _, e := range Table() {
		if strings.Contains(e.Name(), "export") || strings.Contains(e.Name(), "volume") {
			t.Errorf("%s is served", e.Name())
		}
	}
}
