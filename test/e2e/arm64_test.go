package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// arm64Manifest leaves to the defaults what is different for arm64: board, CPU, firmware, bus.
const arm64Manifest = `
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: arm}
spec:
  runStrategy: %s
  template:
    spec:
      architecture: arm64
      terminationGracePeriodSeconds: 120
      domain:
        memory: {guest: 256Mi}
        devices:
          disks: [{name: root}]
          interfaces: [{name: default, masquerade: {}}]
      networks: [{name: default, pod: {}}]
      volumes:
      - name: root
        containerDisk: {image: localhost/kubeqemu/tiny-arm64-container-disk:dev}
`

// TestARM64: emulated on this node of amd64, by the cluster's configuration, a guest of arm64 boots from the manifest, has a console, answers over
// TCP from a pod, and shuts down. Without that configuration it waits for a node of arm64, and the VMI says what can be done.
func TestARM64(t *testing.T) {
	load := []string{"load-image", "--name", os.Getenv(clusterVariable)}
	for _, name := range []string{"virt-launcher-arm64-emulator", "tiny-arm64-container-disk"} {
		file := filepath.Join("..", "..", "_output", "images", name+".tar")
		if _, err := os.Stat(file); err != nil {
			t.Fatalf("find the images of arm64 (make images-arm64-guest): %v", err)
		}
		load = append(load, file)
	}
	if _, err := output("", "cluster", load...); err != nil {
		t.Fatal(err)
	}
	ns := namespace(t)
	apply(t, ns, clientManifest)
	apply(t, ns, fmt.Sprintf(arm64Manifest, v1.RunStrategyHalted))
	t.Run("emulated", func(t *testing.T) { emulatedARM64(t, ns) })
	startARM64(t, ns)
	v := vmi{t, ns, "arm"}
	if err := poll(func() error {
		c := v.get().Status.Condition(v1.ConditionPodScheduled)
		if c == nil || c.Status != "False" || !strings.Contains(c.Message, "arm64.useEmulation") {
			return fmt.Errorf("without emulation PodScheduled is %+v", c)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	stopARM64(t, ns)
}

func setARM64(t *testing.T, ns string, strategy v1.VirtualMachineRunStrategy) {
	t.Helper()
	kubectl(t, "-n", ns, "patch", "vm", "arm", "--type=merge", "--patch", fmt.Sprintf(`{"spec":{"runStrategy":%q}}`, strategy))
}

func startARM64(t *testing.T, ns string) {
	t.Helper()
	setARM64(t, ns, v1.RunStrategyAlways)
	kubectl(t, "-n", ns, "wait", "--for=create", "vmi/arm", "--timeout=600s")
}

func stopARM64(t *testing.T, ns string) {
	t.Helper()
	setARM64(t, ns, v1.RunStrategyHalted)
	kubectl(t, "-n", ns, "wait", "--for=delete", "vmi/arm", "--timeout=600s")
}

func emulatedARM64(t *testing.T, ns string) {
	configure(t, `{"architectureConfiguration":{"arm64":{"useEmulation":true}}}`, `{"architectureConfiguration":null}`)
	startARM64(t, ns)
	v := vmi{t, ns, "arm"}
	running := v.await(v1.Running)
	log := v.log()
	log.expect("tiny: up")
	if c := running.Status.Condition(v1.ConditionSoftwareEmulation); c == nil || !strings.Contains(c.Message, "guest of arm64") {
		t.Errorf("SoftwareEmulation is %+v", c)
	}
	if m := running.Status.Machine; m == nil || !strings.HasPrefix(m.Type, "virt-") {
		t.Errorf("the machine is %+v", m)
	}
	if node := v.pod().Spec.NodeSelector[corev1.LabelArchStable]; node != v1.AMD64 {
		t.Errorf("the pod selects nodes of %q", node)
	}
	qemu := v.qemu()
	if line := qemu.shell(); !strings.Contains(line, "qemu-system-aarch64") || !strings.Contains(line, "gic-version=3") {
		t.Errorf("QEMU: %s", line)
	}
	if out := v.runner()("uname -m; ls /sys/firmware/efi"); !strings.Contains(out, "aarch64") || !strings.Contains(out, "efivars") {
		t.Errorf("the guest is %q", out)
	}
	log.expect("tiny: eth0")
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/client", "--timeout=600s")
	address := v.get().Status.Interfaces[0].IP
	if err := poll(func() error { return echoes(ns, address, 7) }); err != nil {
		t.Errorf("from a pod: %v", err)
	}
	if rollup, err := onNode(`grep -E '^(Rss|Private_Dirty)' "/proc/$1/smaps_rollup"`, fmt.Sprint(qemu.PID)); err == nil {
		t.Logf("QEMU of the guest with 256 MiB: %s", rollup)
	}
	setARM64(t, ns, v1.RunStrategyHalted)
	log.expect("tiny: ACPI power button, shutting down")
	stopARM64(t, ns)
}
