package vmi

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/sidecar"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// Each file system of a guest has a container with virtiofsd, which has the volume and a socket, and nothing
// else. The containers are sidecars: the kubelet starts them before the launcher's container, and ends them
// after it. So a guest that shuts down still has its file systems, and the pod ends with the launcher.

const (
	// filesystemMemory is booked for virtiofsd: 6 MiB of its own, and what the kernel keeps for each file that the
	// guest knows.
	filesystemMemory = 80 * mib
	// filesystemRoom is what virtiofsd may take of memory beside the guest's: for each file that the guest knows,
	// reckoned as 2 KiB of the kernel's memory and virtiofsd's.
	filesystemRoom = 256 * mib
	// filesystemFiles is how many files of a file system the guest may know at a time: virtiofsd keeps each open.
	filesystemFiles = 65536
	// filesystemSocketSize limits the folder in memory with a file system's socket.
	filesystemSocketSize = 1 * mib
)

// addFilesystems adds the containers that share files with the guest, and connects them with the launcher's container.
func addFilesystems(pod *corev1.Pod, vmi *v1.VirtualMachineInstance, config PodConfig) {
	for _, f := range vmi.Spec.Domain.Devices.Filesystems {
		if sharesClaim(vmi, f.Name) {
			// Else the kubelet would change the group and mode of every file of the claim at each start. Others use the
			// files meanwhile, and there may be millions.
			pod.Spec.SecurityContext.FSGroupChangePolicy = ptr.To(corev1.FSGroupChangeOnRootMismatch)
		}
		addSidecar(pod, socketSidecar{name: v1.FilesystemContainerPrefix + f.Name, command: serveFiles(vmi, f.Name),
			resources: filesystemResources(&vmi.Spec.Domain),
			volume:    layout.PodName("filesystem", f.Name), size: filesystemSocketSize, at: layout.FileSystemFolder(f.Name),
			own: layout.FileSystemSocketDir})
	}
}

// serveFiles returns the command of a container that shares files. The container is virtiofsd's sandbox:
// virtiofsd could make another only with privileges. A guest that moves goes on also where a file that it had
// open has another name on the target, as in a ConfigMap that has changed. The guest gets an error for that
// file alone. Others may rename a claim's files while the guest moves. So the source corrects the paths at the
// end, and tells the target which file each is: the guest gets no other file in a file's place. Config volumes
// are made anew on the target, of other files.
func serveFiles(vmi *v1.VirtualMachineInstance, volume string) []string {
	command := []string{launcherBinary, "serve-files", "--most=" + strconv.Itoa(filesystemFiles), "--",
		"--shared-dir=" + layout.FileSystemRoot,
		"--sandbox=none", "--seccomp=kill", "--cache=auto", "--migration-on-error=guest-error"}
	if sharesClaim(vmi, volume) {
		command = append(command, "--migration-confirm-paths", "--migration-verify-handles")
	}
	return command
}

func sharesClaim(vmi *v1.VirtualMachineInstance, volume string) bool {
	return slices.ContainsFunc(vmi.Spec.Volumes,
		func(v v1.Volume) bool { return v.Name == volume && vmi.Claim(&v) != nil })
}

// filesystemResources returns the resources of a container that shares files. CPU and the requests are
// KubeVirt's. The kernel books a page of the guest's memory on the container that touches the page first. That
// may be virtiofsd's, which reads a file into a page that is new. So the limit is as much as the guest has and
// more, or virtiofsd would be killed. QEMU touches all pages of a guest with CPUs of its own first. The pod of
// such a guest must have the same requests and limits, or the kubelet gives it no CPUs.
func filesystemResources(domain *v1.DomainSpec) corev1.ResourceRequirements {
	memory := *resource.NewQuantity(filesystemMemory, resource.BinarySI)
	if domain.CPU.Dedicated() {
		// A guest that knows all files must not end virtiofsd.
		memory := *resource.NewQuantity(filesystemRoom, resource.BinarySI)
		list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: memory}
		return corev1.ResourceRequirements{Requests: list, Limits: list.DeepCopy()}
	}
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: memory},
		Limits: corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(
			domain.Memory.Guest.Value()+filesystemRoom, resource.BinarySI)},
	}
}

// holder returns the container that mounts a volume, and where. It is the container that shares the volume's
// files, or else the launcher's, which mounts the volume at path.
func holder(pod *corev1.Pod, volume, path string) (c *corev1.Container, at string) {
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.Name == v1.FilesystemContainerPrefix+volume {
			return c, layout.FileSystemRoot
		}
	}
	return &pod.Spec.Containers[0], path
}

// observeSidecars writes into conditions that the guest has lost a file system or an interface. A container
// says by its exit code that its program has ended before QEMU. QEMU cannot connect to another program, and the
// kubelet's next attempts end with the same code. It is pure.
func observeSidecars(vmi *v1.VirtualMachineInstance, pod *corev1.Pod, now metav1.Time) {
	volume := func(name string) string { return name }
	observeSidecar(&vmi.Status, pod, now, v1.FilesystemContainerPrefix, volume,
		v1.VirtualMachineInstanceCondition{Type: v1.ConditionFilesystemFailed, Reason: v1.ReasonVirtioFSDEnded,
			Message: "the program that serves a file system of the guest has ended, " +
				"and what the guest does there hangs until the VM is stopped and started: "})
	nic := func(name string) string { return interfaceOf(vmi, layout.PasstContainerPrefix+name) }
	observeSidecar(&vmi.Status, pod, now, layout.PasstContainerPrefix, nic,
		v1.VirtualMachineInstanceCondition{Type: v1.ConditionNetworkFailed, Reason: v1.ReasonPasstEnded,
			Message: "the program passt that connects an interface of the guest has ended, " +
				"and the guest has no network there until it moves, or the VM is stopped and started: "})
}

// observeSidecar sets a condition, or takes the condition back. prefix begins the containers' names. named
// returns what the guest's owner calls the thing that the rest of a container's name is for.
func observeSidecar(status *v1.VirtualMachineInstanceStatus, pod *corev1.Pod, now metav1.Time, prefix string,
	named func(string) string, c v1.VirtualMachineInstanceCondition) {
	if status.Phase != v1.Running {
		status.RemoveCondition(c.Type)
		return
	}
	if compute := computeStatus(pod); compute == nil || compute.State.Running == nil || pod.DeletionTimestamp != nil {
		return
	}
	var failed []string
	for i := range pod.Status.InitContainerStatuses {
		s := &pod.Status.InitContainerStatuses[i]
		if rest, ours := strings.CutPrefix(s.Name, prefix); ours && hasLost(s) {
			failed = append(failed, fmt.Sprintf("%s (the log of its container %s says more)", named(rest), s.Name))
		}
	}
	if len(failed) == 0 {
		status.RemoveCondition(c.Type)
		return
	}
	c.Status, c.Message = metav1.ConditionTrue, c.Message+strings.Join(failed, ", ")
	status.SetCondition(c, now)
}

// hasLost reports whether a container's guest has lost what the container's program serves.
func hasLost(c *corev1.ContainerStatus) bool {
	return slices.ContainsFunc([]*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated},
		func(end *corev1.ContainerStateTerminated) bool {
			return end != nil && end.ExitCode == sidecar.ExitLost
		})
}
