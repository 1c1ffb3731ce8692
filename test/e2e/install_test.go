package e2e

import (
	"errors"
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
	t.Cleanup(func() { reinstall(t) })
	_, err := present.deploy("down")
	if err == nil || !strings.Contains(err.Error(), "FORCE=1") || !strings.Contains(err.Error(), v.name) {
		t.Fatalf("make undeploy with a VM: %v, want to be refused, and the VM to be named", err)
	}
	same("make undeploy")
	out, err := present.deploy("up")
	if err != nil || !strings.Contains(out, "Kubeqemu is up") || !strings.Contains(out, "cluster: https://") {
		t.Errorf("make deploy: %v\n%s", err, out)
	}
	same("make deploy")
	// config/default has no uploads, and the tests' cluster had.
	if left := kubectl(t, "get", "apiservice", "v1beta1.upload.cdi.kubevirt.io", "--ignore-not-found", "-o", "name"); left != "" {
		t.Errorf("make deploy left %s, which nothing serves: no namespace of the cluster could be deleted", left)
	}

	chart := present.chart(t)
	helm(t, "upgrade", "--install", "kubeqemu", chart, "--namespace", ns, "--take-ownership", "--force-conflicts")
	same("helm install")
	helm(t, "upgrade", "kubeqemu", chart, "--namespace", ns)
	same("helm upgrade")
	besideKubeVirt(t, chart, ns)
	same("KubeVirt came and went")
	// The release's record goes with the namespace; the objects stay the cluster's.
}

// besideKubeVirt: where KubeVirt's operator has its label, the chart refuses, and a virt-controller that starts is idle until the label is gone.
func besideKubeVirt(t *testing.T, chart, ns string) {
	const definition, label = "customresourcedefinition/virtualmachines.kubevirt.io", "app.kubernetes.io/managed-by"
	before := kubectl(t, "get", definition, "-o", `jsonpath={.metadata.labels.app\.kubernetes\.io/managed-by}`)
	give := func(who string) { t.Helper(); kubectl(t, "label", "--overwrite", definition, label+who) }
	restore := func() {
		t.Helper()
		if before == "" {
			give("-")
		} else {
			give("=" + before)
		}
	}
	give("=virt-operator")
	t.Cleanup(restore)
	if _, err := output("", "helm", "upgrade", "kubeqemu", chart, "--namespace", ns); err == nil || !strings.Contains(err.Error(), "KubeVirt runs here") {
		t.Errorf("helm upgrade beside KubeVirt: %v, want to be refused", err)
	}
	kubectl(t, "-n", v1.KubeVirtNamespace, "rollout", "restart", "deployment/virt-controller")
	if err := poll(func() error {
		out, err := output("", "kubectl", "-n", v1.KubeVirtNamespace, "get", "events", "--field-selector", "reason=KubeVirtIsHere", "-o", "name")
		if err == nil && out == "" {
			return errors.New("no event says that virt-controller is idle")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	restore()
	kubectl(t, "-n", v1.KubeVirtNamespace, "rollout", "status", "deployment/virt-controller", "--timeout=5m")
}
