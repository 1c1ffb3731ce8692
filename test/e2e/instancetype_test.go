package e2e

import (
	"strings"
	"testing"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestInstancetype: the sample's guest has the size and the devices that are
// named beside it.
func TestInstancetype(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	kubectl(t, "-n", ns, "apply", "-f", "../../config/samples/vm-instancetype.yaml")
	// Its VMI comes a moment later.
	if err := poll(20*time.Second, func() error {
		_, err := output("", "kubectl", "-n", ns, "get", "vmi", "sized")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	v := vmi{t: t, namespace: ns, name: "sized"}
	v.await(v1.Running)
	shell := v.shell()
	for command, want := range map[string]string{
		"nproc":                           "2",
		"ls /sys/class/block | grep vda$": "vda",
		"cat /sys/devices/system/cpu/cpu1/topology/physical_package_id": "0", // a second core, not a second socket
	} {
		if out, _ := shell.run(20*time.Second, command); strings.TrimSpace(out) != want {
			t.Errorf("%s printed %q, want %s", command, out, want)
		}
	}
	kubectl(t, "-n", ns, "delete", "vm", "sized", "--timeout=180s")
}
