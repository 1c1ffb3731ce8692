package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestInstallation: what runs is not removed, and neither a second installation
// nor one by Helm over that by kubectl touches a guest.
func TestInstallation(t *testing.T) {
	ns := namespace(t)
	v := create(t, ns, tiny("guest"))
	v.await(v1.Running)
	qemu := v.qemu()
	same := func(after string) {
		t.Helper()
		if now := v.qemu(); now.PID != qemu.PID || now.Start != qemu.Start {
			t.Errorf("after %s the guest's QEMU is %d, and was %d", after, now.PID, qemu.PID)
		}
		if phase := v.get().Status.Phase; phase != v1.Running {
			t.Errorf("after %s the VMI is %s", after, phase)
		}
	}
	deploy := func(command string) (string, error) { return output("", "../../config/deploy.sh", command) }

	_, err := deploy("down")
	if err == nil || !strings.Contains(err.Error(), "FORCE=1") || !strings.Contains(err.Error(), v.name) {
		t.Fatalf("make undeploy with a VM: %v, want to be refused, and the VM to be named", err)
	}
	same("make undeploy")
	out, err := deploy("up")
	if err != nil || !strings.Contains(out, "Kubeqemu is up") || !strings.Contains(out, "cluster: https://") {
		t.Errorf("make deploy: %v\n%s", err, out)
	}
	same("make deploy")

	chart := filepath.Join(t.TempDir(), "kubeqemu")
	manifests := kubectl(t, "kustomize", "../../config/default")
	if _, err := output(manifests, "go", "-C", "../../tools", "run", "./chart", "--source", "../config/chart", "--output", chart); err != nil {
		t.Fatal(err)
	}
	helm := func(args ...string) {
		t.Helper()
		if _, err := exec.LookPath("helm"); err != nil {
			t.Fatalf("find Helm (run `make helm` first): %v", err)
		}
		if _, err := output("", "helm", args...); err != nil {
			t.Fatal(err)
		}
	}
	helm("upgrade", "--install", "kubeqemu", chart, "--namespace", ns, "--take-ownership", "--force-conflicts", "--wait", "--timeout=2m")
	same("helm install")
	helm("upgrade", "kubeqemu", chart, "--namespace", ns, "--wait", "--timeout=2m")
	same("helm upgrade")
	// The release's record goes with the namespace; the objects stay the cluster's.
}
