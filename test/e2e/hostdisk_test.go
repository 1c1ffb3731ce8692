package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// onHostDisk adds a disk in a file of the node.
func onHostDisk(disk v1.HostDisk) func(*v1.VirtualMachineInstanceSpec) {
	return func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Devices.Disks = append(s.Domain.Devices.Disks, v1.Disk{Name: "host", Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}})
		s.Volumes = append(s.Volumes, v1.Volume{Name: "host", HostDisk: &disk})
	}
}

// TestHostDisk: files of the node are disks below the folder that is permitted,
// and nowhere else; none changes its owner, and no link leads out. A file whose size no sector divides is a disk of as many whole sectors.
func TestHostDisk(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	const folder = "/var/lib/e2e-hostdisks"
	if _, err := onNode(`mkdir -p "$1"/team /var/lib/e2e-outside && chown 107:107 "$1"/team && cd "$1" &&
		head -c 1048576 /dev/zero > root.img && chmod 600 root.img &&
		head -c 1048576 /dev/zero > team/good.img && head -c 10000001 /dev/zero > team/odd.img && chown 107:107 team/good.img team/odd.img &&
		cp -p team/good.img /var/lib/e2e-outside/ && ln -s /var/lib/e2e-outside out && ln -s ../root.img team/link.img`, folder); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := onNode(`rm -rf --one-file-system "$1" /var/lib/e2e-outside`, folder); err != nil {
			t.Error(err)
		}
	})
	refused := func(name, path string) {
		t.Helper()
		text, err := json.Marshal(tiny(name, offline, onHostDisk(v1.HostDisk{Path: path, Type: v1.HostDiskExists})))
		if err != nil {
			t.Fatal(err)
		}
		_, err = output(string(text), "kubectl", "-n", ns, "apply", "-f", "-")
		if err == nil || !strings.Contains(err.Error(), "spec.volumes[1].hostDisk.path: Forbidden") || !strings.Contains(err.Error(), "permits") {
			t.Errorf("%s: %v, want a refusal of spec.volumes[1].hostDisk.path", name, err)
		}
	}
	refused("unconfigured", folder+"/team/good.img")

	configure := func(value string) error {
		_, err := output("", "kubectl", "-n", "kubevirt", "patch", "kubevirt", "kubevirt", "--type=merge", "--patch", `{"spec":{"configuration":{"hostDisk":`+value+`}}}`)
		return err
	}
	t.Cleanup(func() {
		if err := configure("null"); err != nil {
			t.Error(err)
		}
	})
	if err := configure(`{"folders":["` + folder + `"]}`); err != nil {
		t.Fatal(err)
	}
	const look = `cd "$1" && find . /var/lib/e2e-outside -printf '%p %y %m %U:%G %s %l\n' | sort | grep -v 'new.img\|odd.img'`
	before, err := onNode(look, folder)
	if err != nil {
		t.Fatal(err)
	}
	// virt-api hears of another configuration a moment later.
	permitted, err := json.Marshal(tiny("permitted", offline, onHostDisk(v1.HostDisk{Path: folder + "/team/good.img", Type: v1.HostDiskExists})))
	if err != nil {
		t.Fatal(err)
	}
	if err := poll(func() error {
		_, err := output(string(permitted), "kubectl", "-n", ns, "apply", "--dry-run=server", "-f", "-")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	refused("outside", "/var/lib/e2e-outside/good.img")
	for name, c := range map[string]struct {
		path string
		want []string
	}{
		"others":  {folder + "/root.img", []string{"StartFailed", "mode 0600 and owner 0:0"}},
		"link":    {folder + "/team/link.img", []string{"StartFailed", "symbolic link"}},
		"missing": {folder + "/team/none.img", []string{"StartFailed", "no such file"}},
	} {
		v := create(t, ns, tiny(name, offline, onHostDisk(v1.HostDisk{Path: c.path, Type: v1.HostDiskExists})))
		v.await(v1.Failed)
		v.awaitCondition(v1.ConditionReady, c.want...)
	}
	// The kubelet refuses the path, and the VMI says so while it waits.
	out := create(t, ns, tiny("out", offline, onHostDisk(v1.HostDisk{Path: folder + "/out/good.img", Type: v1.HostDiskExists})))
	out.awaitCondition(v1.ConditionSynchronized, "CreateContainerConfigError", "subPath")
	out.delete()

	v := create(t, ns, tiny("new", bootsKernel, offline, onHostDisk(v1.HostDisk{Path: folder + "/team/new.img", Type: v1.HostDiskExistsOrCreate, Capacity: ptr.To(resource.MustParse("10Mi"))}),
		func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.Devices.Disks = append(s.Domain.Devices.Disks, v1.Disk{Name: "odd", Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}})
			s.Volumes = append(s.Volumes, v1.Volume{Name: "odd", HostDisk: &v1.HostDisk{Path: folder + "/team/odd.img", Type: v1.HostDiskExists}})
		}))
	v.await(v1.Running)
	if got := v.in(v.shell(), "blockdev --getsize64 /dev/vdb && echo hello | dd of=/dev/vdb conv=sync,fsync 2>/dev/null"); got != "10485760" {
		t.Errorf("the guest's disk has %s bytes", got)
	}
	const sectors = 10000001/512 + 1 // QEMU fills the last with zeros
	if got := v.in(v.shell(), "blockdev --getsz /dev/vdc; echo hello | dd of=/dev/vdc conv=sync,fsync 2>/dev/null; dd if=/dev/vdc bs=512 skip=19530 2>/dev/null | wc -c"); got != fmt.Sprintf("%d\n%d", sectors, (sectors-19530)*512) {
		t.Errorf("the guest's disk of an odd size has %q sectors and bytes in the last", got)
	}
	v.delete()
	if got, err := onNode(`head -c 5 "$1"/team/new.img; stat --format=' %a %u:%g' "$1"/team/new.img`, folder); err != nil || strings.TrimSpace(got) != "hello 660 107:107" {
		t.Errorf("the file holds %q (%v)", got, err)
	}
	if after, err := onNode(look, folder); err != nil || after != before {
		t.Errorf("the node's files were\n%sare\n%s(%v)", before, after, err)
	}
}
