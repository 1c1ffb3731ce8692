package local

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/handover"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/manifest"
)

// everything is a VM with a disk of each kind, a kernel, graphics and two interfaces.
const everything = `
apiVersion: v1
kind: Secret
metadata: {name: seed, namespace: team-a}
data: {userdata: I2Nsb3VkLWNvbmZpZwo=}
stringData: {networkdata: "version: 2"}
---
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: web, namespace: team-a, uid: 0a1b2c3d-0000-4000-8000-000000000001}
spec:
  hostname: www
  domain:
    cpu: {cores: 4}
    memory: {guest: 256Mi}
    firmware:
      kernelBoot:
        kernelArgs: console=ttyS0
        container: {image: registry.example/kernel:v1, kernelPath: /boot/vmlinuz, initrdPath: /boot/initrd}
    devices:
      networkInterfaceMultiqueue: true
      rng: {}
      disks:
      - {name: root, disk: {bus: virtio}}
      - {name: tools, cdrom: {bus: sata}}
      - {name: seed, disk: {bus: virtio}}
      - {name: empty, disk: {bus: scsi}}
      - {name: data, disk: {bus: virtio}}
      - {name: template, disk: {bus: virtio}}
      interfaces:
      - {name: default, masquerade: {}, ports: [{port: 8080}]}
  networks:
  - {name: default, pod: {vmNetworkCIDR: 10.11.12.0/28}}
  volumes:
  - {name: root, containerDisk: {image: registry.example/root:v1}}
  - {name: tools, containerDisk: {image: registry.example/tools:v1, path: /isos/tools.iso}}
  - {name: seed, cloudInitNoCloud: {secretRef: {name: seed}, networkDataSecretRef: {name: seed}}}
  - {name: empty, emptyDisk: {capacity: 1Gi}}
  - {name: data, persistentVolumeClaim: {claimName: data}}
  - {name: template, ephemeral: {persistentVolumeClaim: {claimName: template}}}
`

func write(t *testing.T, path string, size int) string {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, make([]byte, size), 0o600)); err != nil {
		t.Fatal(err)
	}
	return path
}

// readyVM is a VM of manifests up to its folder, with the files that it needs in dir.
func readyVM(t *testing.T, dir, text string, o Options) *vm {
	t.Helper()
	set, err := manifest.Read("vm.yaml", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := set.Instances()
	if err != nil || len(objects) != 1 {
		t.Fatalf("%d VMs, %v", len(objects), err)
	}
	v := &vm{Options: o, notes: newNotes(io.Discard), set: set, object: objects[0], vmi: objects[0].DeepCopy(), qemu: program{version: "7.2.22"}}
	v1.Default(v.vmi)
	if v.folder, err = makeFolder(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.cleanUp)
	return v
}

// TestVMHasItsMachineOfTheCluster: a VM has the machine here that it has in a cluster, but for the network.
func TestVMHasItsMachineOfTheCluster(t *testing.T) {
	dir := testkit.ShortFolder(t)
	write(t, dir+"/root/disk/root.img", 1<<20)
	write(t, dir+"/tools/isos/tools.iso", 1<<20)
	write(t, dir+"/kernel/boot/vmlinuz", 512)
	write(t, dir+"/kernel/boot/initrd", 512)
	data, template := write(t, dir+"/data.img", 1<<20), write(t, dir+"/claims/template/disk.img", 2<<20)
	v := readyVM(t, dir, everything, Options{Accelerator: qemuargs.KVM, Cache: dir + "/cache",
		Images:  map[string]string{"root": dir + "/root", "registry.example/tools:v1": dir + "/tools", "registry.example/kernel:v1": dir + "/kernel"},
		Volumes: map[string]string{"data": data, "template": template}, Forwards: []qemuargs.Forward{{Protocol: qemuargs.TCP, Address: loopback, GuestPort: 22}}})
	if err := v.check(); err != nil {
		t.Fatal(err)
	}
	host, err := v.host(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	here, errs := resolve.Machine(v.vmi, host)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	for i := range here.NICs {
		user := here.NICs[i].User
		if user == nil || user.Network.String() != "10.11.12.0/28" || user.Guest.String() != "10.11.12.2" || user.Hostname != "www" || len(user.Forwards) != 2 {
			t.Errorf("the network of %s is %+v", here.NICs[i].Name, user)
		}
		here.NICs[i].User = nil
	}
	cluster := inCluster(t, v, data)
	text, err := json.MarshalIndent(here, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	rewritten := strings.NewReplacer(v.folder.path, "", data, layout.Claim("data")+"/disk.img", template, layout.Claim("template")+"/disk.img").Replace(string(text))
	want, err := json.MarshalIndent(cluster, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(rewritten, "\n")); diff != "" {
		t.Errorf("-cluster +here:\n%s", diff)
	}
	if strings.Contains(rewritten, dir) {
		t.Errorf("the machine names the test's folder: %s", rewritten)
	}
	request, err := v.request(here)
	if err != nil || len(request.CloudInit) != 1 || !request.CloudInit[0].UserDataSecret || request.CloudInit[0].Hostname != "www" {
		t.Errorf("the request's seeds are %+v, %v", request.CloudInit, err)
	}
	if err := v.folder.writeSecrets(v.set, "team-a", handover.Secrets(v.vmi)); err != nil {
		t.Fatal(err)
	}
	if err := v.folder.folders().Prepare(context.Background(), &request, map[string]*os.File{}, 0, nil); err != nil {
		t.Errorf("the launcher's preparation: %v", err)
	}
}

// inCluster is the machine that virt-handler makes of the VMI, where the pod's files are those
// of the VM's folder.
func inCluster(t *testing.T, v *vm, data string) *qemuargs.Machine {
	t.Helper()
	claims := v.folder.below(layout.ClaimDir)
	if err := errors.Join(os.MkdirAll(claims+"/data", 0o700), os.MkdirAll(claims+"/template", 0o700), os.Rename(data, claims+"/data/disk.img")); err != nil {
		t.Fatal(err)
	}
	write(t, claims+"/template/disk.img", 2<<20)
	asked := handover.Inspection(v.vmi)
	asked.Claims = []control.Claim{{Volume: "data"}, {Volume: "template", ReadOnly: true}}
	reply, err := v.folder.folders().Inspect(t.Context(), asked)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(claims+"/data/disk.img", data); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(reply)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(strings.ReplaceAll(string(text), v.folder.path, "")), &reply); err != nil {
		t.Fatal(err)
	}
	host := resolve.Host{Accelerator: qemuargs.KVM, QEMUVersion: v.qemu.version, NICs: map[string]resolve.NIC{"default": {MTU: userMTU, MAC: "0a:58:0a:f4:00:05"}}}
	if err := handover.Take(&host, asked, reply); err != nil {
		t.Fatal(err)
	}
	machine, errs := resolve.Machine(v.vmi, host)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return machine
}

// TestDedicatedCPUsRunWithANote: no kubelet gives CPUs away here. The VM runs all the same, a note says so, and the guest has one NUMA node.
func TestDedicatedCPUsRunWithANote(t *testing.T) {
	dir := testkit.ShortFolder(t)
	write(t, dir+"/root/disk/root.img", 1<<20)
	v := readyVM(t, dir, `
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: own, namespace: default, uid: 0a1b2c3d-0000-4000-8000-000000000001}
spec:
  domain:
    cpu: {cores: 3, dedicatedCpuPlacement: true, isolateEmulatorThread: true, numa: {guestMappingPassthrough: {}}, realtime: {}}
    memory: {guest: 256Mi, hugepages: {pageSize: 2Mi}}
    devices: {autoattachPodInterface: false, disks: [{name: root, disk: {bus: virtio}}]}
  volumes: [{name: root, containerDisk: {image: registry.example/root:v1}}]
`, Options{Accelerator: qemuargs.TCG, Cache: dir + "/cache", Images: map[string]string{"root": dir + "/root"}})
	var said strings.Builder
	v.notes = newNotes(&said)
	host, err := v.host(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	machine, errs := resolve.Machine(v.vmi, host)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if len(machine.NUMA) != 1 || machine.NUMA[0].CPUs != 3 {
		t.Errorf("the guest's nodes are %+v", machine.NUMA)
	}
	request, err := v.request(machine)
	if err != nil || request.DedicatedCPUs != nil || !strings.Contains(said.String(), "run on all CPUs of this machine") {
		t.Errorf("the request's CPUs are %+v, %v, and the notes %q", request.DedicatedCPUs, err, said.String())
	}
}

// TestClusterNeedsAreNamedAtOnce: what is not to be had here is named, all at once, with the flag that helps.
func TestClusterNeedsAreNamedAtOnce(t *testing.T) {
	text := strings.NewReplacer("metadata: {name: seed, namespace: team-a}", "metadata: {name: other}",
		"emptyDisk: {capacity: 1Gi}", "hostDisk: {path: /x/disk.img, type: Disk}").Replace(everything)
	v := readyVM(t, testkit.ShortFolder(t), text, Options{VNC: UnixVNC, Volumes: map[string]string{"data": "x", "root": "y"}, Images: map[string]string{"none": "z"}})
	off := false
	v.vmi.Spec.Domain.Devices.AutoattachGraphicsDevice = &off
	err := v.check()
	if err == nil {
		t.Fatal("it is not refused")
	}
	for _, want := range []string{
		`vm.yaml:38: VirtualMachineInstance "web": spec.volumes[3].hostDisk: Forbidden`, "--volume template=FILE", `there is no Secret of this name in namespace team-a`,
		"spec.volumes[2].cloudInitNoCloud.secretRef", "spec.volumes[2].cloudInitNoCloud.networkDataSecretRef", "--volume root: ", "--image none: ", "--vnc: ",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "--volume data=") {
		t.Errorf("a volume that is given: %v", err)
	}
	v.vmi.Spec.Domain.Memory.Guest = &resource.Quantity{}
	if err := v.check(); err == nil || !strings.Contains(err.Error(), "spec.domain.memory.guest") {
		t.Errorf("an invalid VMI: %v", err)
	}
}

// TestClaimFileMustBeRawAndThere: a claim's file is raw, and there.
func TestClaimFileMustBeRawAndThere(t *testing.T) {
	dir := testkit.ShortFolder(t)
	v := readyVM(t, dir, everything, Options{})
	volume := v.vmi.Spec.Volumes[4]
	good := write(t, dir+"/good", 4096)
	bad := dir + "/qcow2"
	if err := errors.Join(os.WriteFile(bad, []byte("QFI\xfb\x00\x00\x00\x03"), 0o600), os.Symlink("good", dir+"/link")); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{good: "", dir + "/link": "", bad: "qemu-img convert", dir + "/none": "truncate -s", dir: "is a folder", write(t, dir+"/empty", 0): "is empty"} {
		facts, err := claimFacts(v.vmi, volume, file)
		switch {
		case want == "" && (err != nil || facts.Path != good || facts.Size != 4096):
			t.Errorf("%s: %+v, %v", file, facts, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "volume data")):
			t.Errorf("%s: %+v, %v, want an error with %q", file, facts, err, want)
		}
	}
}
