//go:build linux && long

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// TestRunUEFINetwork: UEFI boots over the network first, where that is the order.
func TestRunUEFINetwork(t *testing.T) {
	t.Parallel()
	image, err := filepath.Abs(tinyImage)
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../../_output/cache/launcher-root")
	if err != nil {
		t.Fatal(err)
	}
	// The launcher's firmware of network cards: that of the machine's own package may be iPXE with a menu of its own.
	qemu := filepath.Join(t.TempDir(), "qemu")
	script := "#!/bin/sh\nexec qemu-system-x86_64 -L " + filepath.Join(root, "usr/share/qemu") + ` "$@"`
	testkit.Program(t, qemu, []byte(script))
	s := newStarted(t, `
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: network}
spec:
  domain:
    memory: {guest: 256Mi}
    firmware: {bootloader: {efi: {secureBoot: false}}}
    devices:
      autoattachGraphicsDevice: false
      disks: [{name: root, disk: {bus: virtio}, bootOrder: 2}]
      interfaces: [{name: default, masquerade: {}, bootOrder: 1, macAddress: "52:54:00:00:00:0a"}]
  networks: [{name: default, pod: {}}]
  volumes: [{name: root, containerDisk: {image: "registry.example/tiny:v1"}}]
`, "--qemu", qemu, "--image", "root="+image, "--firmware", layout.Below(root, layout.FirmwareDir)).begin()
	s.out.Expect(">>Start PXE over IPv4.")
	if before := s.out.String(); strings.Contains(before, "BdsDxe: starting") {
		t.Errorf("the disk was started first: %q", before)
	}
}
