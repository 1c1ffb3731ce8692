package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
)

// TestWeb looks at virt-api's page with a browser: test/web, which is a module of its own. A VM waits for its image here,
// for the page to upload, and boots from the image in the end.
func TestWeb(t *testing.T) {
	ns := namespace(t)
	provision(t, ns)
	image := filepath.Join(t.TempDir(), "tiny.qcow2")
	if err := os.WriteFile(image, downloaded(t, serve(t, ns, "web", 0)+"/disk/tiny.qcow2"), 0o644); err != nil {
		t.Fatal(err)
	}
	m := withTemplates(t, ns, "sent", map[string]string{"root": `{"upload":{}}`}, "root")
	reaches(t, ns, "sent-root", cdi.UploadReady)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-v", "-timeout=19m", ".")
	cmd.Dir = "../web"
	cmd.Env = append(os.Environ(), "KUBEQEMU_UPLOAD_NAMESPACE="+ns, "KUBEQEMU_UPLOAD_IMAGE="+image)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("test the page: %v", err)
	}
	m.runs("")
	if got := m.in(m.shell(), "blockdev --getsize64 /dev/vda"); got != "268435456" {
		t.Errorf("the guest's disk has %s bytes", got)
	}
	kubectl(t, "-n", ns, "delete", "vm", "sent", "--timeout=600s")
	nothingLeft(t, ns, "sent")
}
