package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// claims makes PersistentVolumes on the node's own disk, or on its devices, and
// claims for them.
type claims struct {
	t         *testing.T
	namespace string
}

// nodeFolder is the node's folder for a volume.
func (c claims) nodeFolder(name string) string {
	return "/var/lib/e2e-volumes/" + c.namespace + "/" + name
}

// storageClass waits for the first pod, as local storage does. All tests share it. The cluster comes up with it, because one of
// two tests that apply it at once fails.
const storageClass = `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: e2e-local}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
allowVolumeExpansion: true
`

// volume makes a local PersistentVolume of a path of the node.
func (c claims) volume(name, mode, size, path string) {
	c.t.Helper()
	c.sharedVolume(name, mode, size, path, corev1.ReadWriteOnce)
}

// sharedVolume is volume with an access mode.
func (c claims) sharedVolume(name, mode, size, path string, access corev1.PersistentVolumeAccessMode) {
	c.t.Helper()
	apply(c.t, "", fmt.Sprintf(`apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s-%[2]s, labels: {for: %[2]s}}
spec:
  capacity: {storage: %[4]s}
  accessModes: [%[6]s]
  volumeMode: %[3]s
  persistentVolumeReclaimPolicy: Retain
  storageClassName: e2e-local
  claimRef: {namespace: %[1]s, name: %[2]s}
  local: {path: %[5]s}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{key: kubernetes.io/os, operator: In, values: [linux]}]
`, c.namespace, name, mode, size, path, access))
	c.t.Cleanup(func() {
		if _, err := output("", "kubectl", "delete", "persistentvolume", c.namespace+"-"+name, "--wait=false"); err != nil {
			c.t.Error(err)
		}
	})
}

// claim makes a claim, and no volume.
func (c claims) claim(name, mode, size string) {
	c.t.Helper()
	c.sharedClaim(name, mode, size, corev1.ReadWriteOnce)
}

// sharedClaim is claim with an access mode.
func (c claims) sharedClaim(name, mode, size string, access corev1.PersistentVolumeAccessMode) {
	c.t.Helper()
	apply(c.t, c.namespace, fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec:
  accessModes: [%s]
  volumeMode: %s
  storageClassName: e2e-local
  resources: {requests: {storage: %s}}
`, name, access, mode, size))
}

// folder makes a folder of the node, which a script fills, and a claim for it.
func (c claims) folder(name, size, script string) string {
	c.t.Helper()
	path := c.nodeFolder(name)
	if out, err := onNode(`mkdir -p "$1" && cd "$1" && `+script, path); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
	c.t.Cleanup(func() {
		if _, err := onNode(`rm -rf --one-file-system "$1"`, path); err != nil {
			c.t.Error(err)
		}
	})
	c.volume(name, "Filesystem", size, path)
	c.claim(name, "Filesystem", size)
	return path
}

// onClaim adds a disk on a claim, on the bus that tiny guests have.
func onClaim(name string) func(*v1.VirtualMachineInstanceSpec) {
	return func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Devices.Disks = append(s.Domain.Devices.Disks, v1.Disk{Name: name, Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}})
		s.Volumes = append(s.Volumes, v1.Volume{Name: name, PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}})
	}
}

// offline takes the network from a guest that needs none: what it says of its
// lease would be in between what the test asks it.
func offline(s *v1.VirtualMachineInstanceSpec) {
	s.Networks, s.Domain.Devices.Interfaces, s.Domain.Devices.AutoattachPodInterface = nil, nil, ptr.To(false)
}

// in runs a command in the guest, and returns what it prints.
func (v vmi) in(shell *transcript, command string) string {
	v.t.Helper()
	out, code := shell.run(command)
	if code != 0 {
		v.t.Fatalf("%s: exit code %d: %s", command, code, out)
	}
	return strings.TrimSpace(out)
}

// TestClaimDiskOutlivesItsGuest: a VMI waits for its claim, gets a disk of the claim's size, and
// what the guest has written to it is there after it has gone; when the claim
// grows, the running guest sees it.
func TestClaimDiskOutlivesItsGuest(t *testing.T) {
	t.Parallel()
	c := claims{t, namespace(t)}
	v := create(t, c.namespace, tiny("first", bootsKernel, offline, onClaim("data")))
	v.awaitCondition(v1.ConditionSynchronized, "FailedPvcNotFound", c.namespace+"/data")
	if phase := v.get().Status.Phase; phase != v1.Pending {
		t.Errorf("without its claim it is %s", phase)
	}
	folder := c.folder("data", "100Mi", "true")
	v.await(v1.Running)
	for _, s := range v.get().Status.VolumeStatus {
		if s.Name != "data" {
			continue
		}
		if info := s.PersistentVolumeClaimInfo; s.Target != "vdb" || info == nil || info.Capacity.Storage().String() != "100Mi" || *info.VolumeMode != corev1.PersistentVolumeFilesystem {
			t.Errorf("status %+v", s)
		}
	}
	const size = 94 << 20 // 100 MiB without 5.5 %
	shell := v.shell()
	if got := v.in(shell, "blockdev --getsize64 /dev/vdb"); got != fmt.Sprint(size) {
		t.Errorf("the guest's disk has %s bytes, want %d", got, size)
	}
	v.in(shell, "echo written by the first | dd of=/dev/vdb bs=512 seek=100 conv=sync,fsync 2>/dev/null")
	v.delete()
	if out, err := onNode(`stat --format='%s %a %u:%g' "$1"/disk.img; ls -A "$1"`, folder); err != nil || out != fmt.Sprintf("%d 660 107:107\ndisk.img\n", size) {
		t.Errorf("in the volume: %q (%v)", out, err)
	}

	// What is written over it, and not to it, is thrown away.
	over := create(t, c.namespace, tiny("over", bootsKernel, offline, onClaim("data"), func(s *v1.VirtualMachineInstanceSpec) {
		s.Volumes[1] = v1.Volume{Name: "data", Ephemeral: &v1.EphemeralVolumeSource{PersistentVolumeClaim: &v1.EphemeralClaim{ClaimName: "data"}}}
	}))
	over.await(v1.Running)
	shell = over.shell()
	over.in(shell, "echo thrown away | dd of=/dev/vdb bs=512 seek=100 conv=sync,fsync 2>/dev/null")
	over.delete()

	again := create(t, c.namespace, tiny("second", bootsKernel, offline, onClaim("data")))
	again.await(v1.Running)
	shell = again.shell()
	if got := again.in(shell, `dd if=/dev/vdb bs=512 skip=100 count=1 2>/dev/null | tr -d '\000'`); got != "written by the first" {
		t.Errorf("on the disk is %q", got)
	}
	again.grow(shell, "data", 189<<20) // 200 MiB without 5.5 %
	again.delete()
}

// grow resizes a claim to 200 MiB, as a storage driver does that has resized
// its volume, and waits for the guest to see it.
func (v vmi) grow(shell *transcript, claim string, size int64) {
	v.t.Helper()
	qemu := v.qemu()
	kubectl(v.t, "-n", v.namespace, "patch", "pvc", claim, "--type=merge", "--patch", `{"spec":{"resources":{"requests":{"storage":"200Mi"}}}}`)
	kubectl(v.t, "-n", v.namespace, "patch", "pvc", claim, "--subresource=status", "--type=merge", "--patch", `{"status":{"capacity":{"storage":"200Mi"}}}`)
	err := poll(func() error {
		if got := v.in(shell, "blockdev --getsize64 /dev/vdb"); got != fmt.Sprint(size) {
			return fmt.Errorf("after its claim has grown the guest's disk has %s bytes, want %d", got, size)
		}
		return nil
	})
	if err != nil {
		v.t.Error(err)
	}
	if now := v.qemu(); now.PID != qemu.PID || now.Start != qemu.Start {
		v.t.Errorf("QEMU is %d, was %d", now.PID, qemu.PID)
	}
}

// TestHostileClaims: what lies in a volume as disk.img ends the VMI that was to
// boot from it, with what is wrong; and no file of the node is changed.
func TestHostileClaims(t *testing.T) {
	t.Parallel()
	c := claims{t, namespace(t)}
	const victim = "/var/lib/e2e-volumes/victim"
	if _, err := onNode(`mkdir -p /var/lib/e2e-volumes && echo secret > "$1" && chmod 600 "$1"`, victim); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct{ script, want string }{
		"link":      {"ln -s /etc/passwd disk.img", "/disk.img is a symbolic link"},
		"proc":      {"ln -s /proc/self/environ disk.img", "/disk.img is a symbolic link"},
		"fifo":      {"mkfifo disk.img", "/disk.img is a FIFO"},
		"folder":    {"mkdir disk.img", "/disk.img is a folder"},
		"device":    {"mknod disk.img b 7 0", "/disk.img is a block device"},
		"hard-link": {"ln " + victim + " disk.img", "hard links"},
		"empty":     {": > disk.img && chmod 666 disk.img", "/disk.img is empty"},
		"others":    {"head -c 1048576 /dev/zero > disk.img && chown 0:0 disk.img && chmod 600 disk.img", "/disk.img has mode 0600 and owner 0:0, and cannot be written by user 107"},
	}
	const look = `cd "$1" && find . /var/lib/e2e-volumes/victim /etc/passwd -printf '%p %y %m %U:%G %s %l\n' | sort | grep -v '^\. '; cat /var/lib/e2e-volumes/victim`
	before := map[string]string{}
	for name, hostile := range cases {
		folder := c.hostPath(name, hostile.script)
		out, err := onNode(look, folder)
		if err != nil {
			t.Fatal(err)
		}
		before[name] = out
		create(t, c.namespace, tiny(name, offline, onClaim(name)))
	}
	for name, hostile := range cases {
		v := vmi{t: t, namespace: c.namespace, name: name}
		status := v.await(v1.Failed).Status
		ready := status.Condition(v1.ConditionReady)
		if status.Reason != "StartFailed" || ready == nil || !strings.Contains(ready.Message, hostile.want) || !strings.Contains(ready.Message, "spec.volumes[1].persistentVolumeClaim") {
			t.Errorf("%s: reason %q, Ready %+v; want StartFailed and %q", name, status.Reason, ready, hostile.want)
		}
		v.delete()
		if after, err := onNode(look, c.nodeFolder(name)); err != nil || after != before[name] {
			t.Errorf("%s: the node's files were\n%sare\n%s(%v)", name, before[name], after, err)
		}
	}
	// A qcow2 header in a raw disk means nothing: the guest sees it.
	c.hostPath("qcow2", `printf 'QFI\373\000\000\000\003' > disk.img && truncate -s 1M disk.img && chown 107:107 disk.img`)
	v := create(t, c.namespace, tiny("qcow2", bootsKernel, offline, onClaim("qcow2")))
	v.await(v1.Running)
	if got := v.in(v.shell(), "head -c 4 /dev/vdb | od -An -tx1 | tr -d ' '"); got != "514649fb" {
		t.Errorf("the guest reads %q", got)
	}
	v.delete()
}

// hostPath makes a volume that the kubelet leaves as it is: it gives the files
// of a local one to the pod's group.
func (c claims) hostPath(name, script string) string {
	c.t.Helper()
	path := c.nodeFolder(name)
	if out, err := onNode(`mkdir -p "$1" && chmod 777 "$1" && cd "$1" && `+script, path); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
	c.t.Cleanup(func() {
		if _, err := onNode(`rm -rf --one-file-system "$1"`, path); err != nil {
			c.t.Error(err)
		}
		if _, err := output("", "kubectl", "delete", "persistentvolume", c.namespace+"-"+name, "--wait=false"); err != nil {
			c.t.Error(err)
		}
	})
	apply(c.t, "", fmt.Sprintf(`apiVersion: v1
kind: PersistentVolume
metadata: {name: %[1]s-%[2]s}
spec:
  capacity: {storage: 10Mi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: e2e-local
  claimRef: {namespace: %[1]s, name: %[2]s}
  hostPath: {path: %[3]s}
`, c.namespace, name, path))
	c.claim(name, "Filesystem", "10Mi")
	return path
}

// TestBlockDeviceIsTheGuestsDisk: a block device is the guest's disk, and what it writes stays.
// The device is a loop device: the test needs one.
func TestBlockDeviceIsTheGuestsDisk(t *testing.T) {
	t.Parallel()
	c := claims{t, namespace(t)}
	// In the cluster's folder: what is left of loop devices there, its end detaches.
	folder := c.nodeFolder("raw")
	if _, err := onNode(`mkdir -p "$1"`, folder); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { onNode(`rm -rf --one-file-system "$1"`, folder) })
	device := c.loopDevice(folder+"/device", "100M")
	c.volume("raw", "Block", "100Mi", device)
	c.claim("raw", "Block", "100Mi")
	for i, want := range []string{"", "from the first"} {
		v := create(t, c.namespace, tiny(fmt.Sprintf("block-%d", i), offline, onClaim("raw")))
		v.await(v1.Running)
		shell := v.shell()
		if got := v.in(shell, "blockdev --getsize64 /dev/vdb; dd if=/dev/vdb bs=512 count=1 2>/dev/null | tr -d '\\000'"); got != strings.TrimSpace(fmt.Sprintf("%d\n%s", 100<<20, want)) {
			t.Errorf("VMI %d: the guest reads %q, want its size and %q", i, got, want)
		}
		if i == 0 {
			v.in(shell, "echo from the first | dd of=/dev/vdb bs=512 conv=sync,fsync 2>/dev/null")
		} else {
			if out, err := onNode(`truncate -s 200M "$1"/device && losetup --set-capacity "$2"`, folder, device); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			v.grow(shell, "raw", 200<<20)
		}
		v.delete()
	}
}

// TestFullStoragePausesTheGuest: a guest whose storage fails is paused, says why, and goes on
// once the storage does: a file on a full file system, and a device on one.
func TestFullStoragePausesTheGuest(t *testing.T) {
	t.Parallel()
	for mode, why := range map[string][]string{
		"Filesystem": {"No space left on device", "nospace"},
		"Block":      nil, // kernels differ in what a loop device says
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := claims{t, namespace(t)}
			folder := c.nodeFolder("full")
			// What the test mounts in the node goes with the node, should it fail.
			if out, err := onNode(`mkdir -p "$1" && mount -t tmpfs -o size=20m,mode=0777 e2e "$1"`, folder); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			t.Cleanup(func() {
				if _, err := onNode(`umount -l "$1"; rmdir "$1"`, folder); err != nil {
					t.Error(err)
				}
			})
			path := folder
			if mode == "Block" {
				path = c.loopDevice(folder+"/device", "18M")
			}
			c.volume("full", mode, "20Mi", path)
			c.claim("full", mode, "20Mi")
			v := create(t, c.namespace, tiny("full", bootsKernel, offline, onClaim("full")))
			v.await(v1.Running)
			shell := v.shell()
			if _, err := onNode(`head -c 15000000 /dev/zero > "$1"/filler`, folder); err != nil {
				t.Fatal(err)
			}
			shell.send("dd if=/dev/zero of=/dev/vdb bs=1M count=10 conv=fsync && echo wrote''all\n")
			v.awaitCondition(v1.ConditionPaused, append(why, "PausedIOError", `"full"`)...)
			v.awaitEvents("Started", "IOerror")
			if _, err := onNode(`rm "$1"/filler`, folder); err != nil {
				t.Fatal(err)
			}
			shell.shows("wroteall")
			v.awaitReady("GuestRunning")
			if paused := v.condition(v1.ConditionPaused); paused.Type != "" {
				t.Errorf("it runs, but %+v", paused)
			}
			v.delete()
		})
	}
}

// loopDevice makes a block device of the node on a sparse file.
func (c claims) loopDevice(file, size string) string {
	c.t.Helper()
	out, err := onNode(`truncate -s "$2" "$1" && losetup --find --show "$1"`, file, size)
	if err != nil {
		c.t.Fatalf("THIS MACHINE HAS NO LOOP DEVICES FOR THE NODE, and block volumes cannot be tested: %v", err)
	}
	device := strings.TrimSpace(out)
	c.t.Cleanup(func() {
		if _, err := onNode(`losetup --detach "$1"`, device); err != nil {
			c.t.Error(err)
		}
	})
	return device
}

// TestSampleGuestWithItsClaim: the sample's guest and its claim.
func TestSampleGuestWithItsClaim(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "config", "samples", "vmi-pvc.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	c := claims{t, namespace(t)}
	path := c.nodeFolder("tiny-data")
	if _, err := onNode(`mkdir -p "$1"`, path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { onNode(`rm -rf --one-file-system "$1"`, path) })
	c.volume("tiny-data", "Filesystem", "1Gi", path)
	// As anybody has to who has no default storage class: name one.
	apply(t, c.namespace, strings.Replace(string(text), "  accessModes:", "  storageClassName: e2e-local\n  accessModes:", 1))
	v := vmi{t: t, namespace: c.namespace, name: "tiny-pvc"}
	v.await(v1.Running)
	v.delete()
}
