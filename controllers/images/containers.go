package images

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// This file renders the containers with images that are not the pod's own. They run virt-image. A hostile image can
// have a program of its own run instead (docs/storage.md): so these containers have nothing that is worth having, and
// what they say is not believed.

const (
	// Resource is the resource of a container that runs virt-image: virt-handler's device plugin mounts the program.
	Resource corev1.ResourceName = "devices.kubevirt.io/image"
	// Binary is virt-image in virt-launcher's image.
	Binary = "/usr/bin/virt-image"

	// program is the name of the container that copies virt-image, and of the folder with the copy.
	program = "program"

	mib = 1 << 20
	// programSize limits the folder with virt-image's copy, socketSize that with a socket, and copiedSize that with
	// copied files.
	programSize = 16 * mib
	socketSize  = 1 * mib
	copiedSize  = 1 << 30
)

// Image is an image that comes to a pod by a container of its own.
type Image struct {
	// Container is the container's name, and that of the folder that it shares with the pod's first container.
	Container string
	// Reference and Policy say which image it is, and when it is pulled.
	Reference string
	Policy    corev1.PullPolicy
	// At is the path of that folder in the first container.
	At string
	// Resources are the container's, beside Resource. It has requests and limits.
	Resources corev1.ResourceRequirements
}

// AddDisk adds a sidecar that hands out the disk at a path in an image. An empty path means the only file in /disk.
func AddDisk(pod *corev1.Pod, image Image, path string) {
	command := []string{layout.Program, "serve-image", "--socket=" + layout.OwnImageSocket()}
	if path != "" {
		command = append(command, "--path="+Literal(path))
	}
	share(pod, image, corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: bytes(socketSize)})
	c := container(pod, image, command, layout.ImageSocketDir)
	for _, list := range []corev1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
		list[Resource] = *resource.NewQuantity(1, resource.DecimalSI)
	}
	c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
}

// AddFiles adds a container that copies files of an image to a folder before the pod's first container starts, and
// ends. The program comes from the pod's own image, by one container more: a container that has ended must hold no
// device. A kubelet that is started again asks the device plugin for it anew, and ends the pod if the plugin is not
// there yet (devicesToAllocate in its devicemanager).
func AddFiles(pod *corev1.Pod, image Image, files ...string) {
	own := &pod.Spec.Containers[0]
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: program, VolumeSource: corev1.VolumeSource{
		EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: bytes(programSize)}}})
	brings := container(pod, Image{Container: program, Reference: own.Image, Policy: own.ImagePullPolicy,
		Resources: image.Resources}, []string{Binary, "copy-program", "--to=" + layout.Program}, layout.ProgramDir)
	command := []string{layout.Program, "copy-files", "--to=" + image.At, "--most=" + strconv.Itoa(copiedSize), "--"}
	for _, file := range files {
		command = append(command, Literal(file))
	}
	share(pod, image, corev1.EmptyDirVolumeSource{SizeLimit: bytes(copiedSize)})
	c := container(pod, image, command, image.At)
	c.VolumeMounts = append(c.VolumeMounts,
		corev1.VolumeMount{Name: program, MountPath: layout.ProgramDir, ReadOnly: true})
	pod.Spec.InitContainers = append(pod.Spec.InitContainers, brings, c)
}

// container returns a container that has an image, and runs virt-image. at is the shared folder's path in it.
func container(pod *corev1.Pod, image Image, command []string, at string) corev1.Container {
	return corev1.Container{
		Name: image.Container, Image: image.Reference, ImagePullPolicy: image.Policy,
		Command:                  command,
		WorkingDir:               "/", // the image names another, which need not be a folder
		Env:                      oneThread(),
		Resources:                *image.Resources.DeepCopy(),
		SecurityContext:          pod.Spec.Containers[0].SecurityContext.DeepCopy(),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		VolumeMounts:             []corev1.VolumeMount{{Name: image.Container, MountPath: at}},
	}
}

// share gives the pod's first container a folder that a container of an image writes to.
func share(pod *corev1.Pod, image Image, folder corev1.EmptyDirVolumeSource) {
	own := &pod.Spec.Containers[0]
	pod.Spec.Volumes = append(pod.Spec.Volumes,
		corev1.Volume{Name: image.Container, VolumeSource: corev1.VolumeSource{EmptyDir: &folder}})
	own.VolumeMounts = append(own.VolumeMounts,
		corev1.VolumeMount{Name: image.Container, MountPath: image.At, ReadOnly: true})
}

// oneThread returns the variable by which Go keeps the memory of one thread only.
func oneThread() []corev1.EnvVar { return []corev1.EnvVar{{Name: "GOMAXPROCS", Value: "1"}} }

func bytes(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }

// Literal returns an argument, or a variable's value, that the kubelet expands to a text: the kubelet takes $(NAME)
// for a variable, and $$ for $.
func Literal(text string) string { return strings.ReplaceAll(text, "$", "$$") }
