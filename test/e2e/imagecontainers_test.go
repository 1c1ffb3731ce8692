package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestImageContainers: where there are no image volumes, a container of the pod hands out each container disk. The
// guest writes to its overlay, reads a disk without one, and goes on when a container of the pod is killed and the
// kubelet has started another one.
func TestImageContainers(t *testing.T) {
	if !withoutImageVolumes() { // the API server has image volumes
		configure(t, `{"developerConfiguration":{"disabledFeatureGates":["ImageVolume"]}}`,
			`{"developerConfiguration":{"disabledFeatureGates":null}}`)
	}
	ns := namespace(t)
	m := createVM(t, ns, "handed", v1.RunStrategyAlways, bootsKernel, withMedia)
	uid := m.runs("")
	pod := m.pod()
	for _, name := range []string{"disk-root", "disk-media"} {
		if c := initContainer(pod, name); c == nil || c.Command[0] != "/kubeqemu/program" {
			t.Errorf("the pod has the containers %v", pod.Spec.InitContainers)
		}
	}
	for _, v := range pod.Spec.Volumes {
		if v.Image != nil {
			t.Errorf("the pod has the image volume %s", v.Name)
		}
	}
	shell := m.shell()
	boot := m.in(shell, "cat /proc/sys/kernel/random/boot_id")
	sum := m.in(shell, "head -c 8388608 /dev/vda | cat - /dev/vdb | md5sum")
	restarts := func() (n int32) {
		for _, s := range m.pod().Status.InitContainerStatuses {
			if s.Name == "disk-root" {
				n = s.RestartCount
			}
		}
		return n
	}
	before := restarts()
	pids, err := onNodeNamed(pod.Spec.NodeName, `for p in /proc/[0-9]*; do
		[ "$(tr '\0' ' ' < $p/cmdline | cut -d' ' -f 1,2)" = "/kubeqemu/program serve-image" ] && grep -q "$1" $p/cgroup &&
		echo ${p#/proc/}; done; true`,
		string(pod.UID))
	if err != nil || len(strings.Fields(pids)) != 2 {
		t.Fatalf("the pod's programs are %q (%v)", pids, err)
	}
	for _, pid := range strings.Fields(pids) {
		if _, err := onNodeNamed(pod.Spec.NodeName, `kill -KILL "$1"`, pid); err != nil {
			t.Error(err)
		}
	}
	if err := poll(func() error {
		if n := restarts(); n <= before {
			return fmt.Errorf("the container disk-root was restarted %d times", n)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	m.in(shell, "echo 3 > /proc/sys/vm/drop_caches")
	if again := m.in(shell, "head -c 8388608 /dev/vda | cat - /dev/vdb | md5sum"); again != sum {
		t.Errorf("the disks are %q, and were %q", again, sum)
	}
	if now := m.in(shell, "cat /proc/sys/kernel/random/boot_id"); now != boot || m.uid() != uid || m.pod().UID != pod.UID {
		t.Error("the guest was started anew")
	}
	kubectl(t, "-n", ns, "delete", "vm", m.name, "--timeout=600s")
}

// withMedia gives a VM a disk that is only read.
func withMedia(spec *v1.VirtualMachineInstanceSpec) {
	spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks,
		v1.Disk{Name: "media", Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio, ReadOnly: true}})
	spec.Volumes = append(spec.Volumes,
		v1.Volume{Name: "media", ContainerDisk: &v1.ContainerDiskSource{Image: "localhost/kubeqemu/tiny-container-disk:dev"}})
}

func initContainer(pod *corev1.Pod, name string) *corev1.Container {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == name {
			return &pod.Spec.InitContainers[i]
		}
	}
	return nil
}

// TestMigrationImageContainers: a guest moves from a pod with image volumes to one whose containers hand its disks out,
// and back, without a restart and with the disks that it had. Where the API server has no image volumes, both of its
// pods have containers.
func TestMigrationImageContainers(t *testing.T) {
	newSecondNode(t)
	ns := namespace(t)
	m := createVM(t, ns, "ways", v1.RunStrategyAlways, withMedia)
	uid := m.runs("")
	shell := m.shell()
	const sums = "echo 3 > /proc/sys/vm/drop_caches; head -c 8388608 /dev/vda | cat - /dev/vdb | md5sum"
	sum := m.in(shell, sums)
	volumes := func() (n int) {
		for _, v := range m.pod().Spec.Volumes {
			if v.Image != nil {
				n++
			}
		}
		return n
	}
	all, ways := 2, []int{0, 2}
	if withoutImageVolumes() {
		t.Log("the cluster has no image volumes: the guest moves between containers alone")
		all, ways = 0, []int{0, 0}
	}
	if n := volumes(); n != all {
		t.Fatalf("the pod has %d image volumes, want %d", n, all)
	}
	const reset = `{"developerConfiguration":{"disabledFeatureGates":null}}`
	for i, wanted := range ways {
		if wanted > 0 {
			configure(t, reset, reset)
		} else {
			configure(t, `{"developerConfiguration":{"disabledFeatureGates":["ImageVolume"]}}`, reset)
		}
		m.migrate(fmt.Sprintf("move-%d", i), nil).ends(v1.MigrationSucceeded)
		if got := volumes(); got != wanted {
			t.Errorf("after move %d the pod has %d image volumes, want %d", i, got, wanted)
		}
		shell = m.shell()
		if now := m.in(shell, sums); now != sum || m.uid() != uid {
			t.Errorf("after move %d the disks are %q, and were %q", i, now, sum)
		}
	}
	kubectl(t, "-n", ns, "delete", "vm", m.name, "--timeout=600s")
}
