package e2e

import (
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestOlderVersion: a tenant whose manifests and tools say v1alpha3 has a VM, starts it, stops it
// and deletes it.
func TestOlderVersion(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	kubectl(t, "wait", "--for=condition=Available", "--timeout=600s", "apiservice", "-l", "kubevirt.io=virt-api-aggregator")
	as := tenant(t, ns)
	do := func(stdin string, args ...string) string {
		t.Helper()
		out, err := output(stdin, "kubectl", append([]string{"-n", ns, as}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	const resource = "virtualmachines.v1alpha3.kubevirt.io"
	manifest := strings.Replace(manifestOf(t, "old", v1.RunStrategyHalted), `"kubevirt.io/v1"`, `"kubevirt.io/v1alpha3"`, 1)
	// kubectl looks up the version at the API server, which asks virt-api: on a machine that has much to do the answer may come too late for kubectl once.
	if err := poll(func() error {
		_, err := output(manifest, "kubectl", "-n", ns, as, "apply", "-f", "-")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	do("{}", "replace", "--raw", "/apis/subresources.kubevirt.io/v1alpha3/namespaces/"+ns+"/virtualmachines/old/start", "-f", "-")
	do("", "wait", resource, "old", "--for=condition=Ready", "--timeout=600s")
	m := vm{vmi{t: t, namespace: ns, name: "old"}}
	m.runs("")
	if got := do("", "get", resource, "old"); !strings.Contains(got, "Running") {
		t.Errorf("kubectl get: %s", got)
	}
	do("", "patch", resource, "old", "--type=merge", "-p", `{"spec":{"runStrategy":"Halted"}}`)
	m.is(v1.VirtualMachineStatusStopped)
	do(manifest, "delete", "-f", "-")
	if out, err := output("", "kubectl", as, "-n", "kubevirt", "get", resource); err == nil || !strings.Contains(err.Error(), "cannot list resource") {
		t.Errorf("in another namespace: %v %s", err, out)
	}
}
