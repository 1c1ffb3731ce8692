package vmi

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/images"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// This file brings the images of container disks and of the kernel to the pod: as volumes of the pod, or by containers
// (package images).

// kernelName is the name of the volume with the kernel, and of the container that copies it.
const kernelName = "kernel"

// findWay puts into config how images come to a VMI's pods. A VMI without images does not depend on the answer.
func (r *Reconciler) findWay(ctx context.Context, vmi *v1.VirtualMachineInstance, config *PodConfig) (err error) {
	if r.Images == nil || !hasImages(vmi) {
		return nil
	}
	config.Images, err = r.Images(ctx)
	return err
}

// hasImages reports whether a VMI has container disks, or a kernel of its own.
func hasImages(vmi *v1.VirtualMachineInstance) bool {
	return vmi.KernelContainer() != nil ||
		slices.ContainsFunc(vmi.Spec.Volumes, func(v v1.Volume) bool { return v.ContainerDisk != nil })
}

// byContainers reports whether a VMI's images come to a pod by containers. It reads the pod's status.
func byContainers(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.InitContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.Name == kernelName || slices.ContainsFunc(vmi.Spec.Volumes, func(v v1.Volume) bool {
			return v.ContainerDisk != nil && c.Name == diskName(v.Name)
		})
	})
}

// diskName returns the name of the pod's volume, or container, with the image of a container disk.
func diskName(volume string) string { return layout.PodName("disk", volume) }

// mountPatience is how long a node may take to mount a pod's image volumes, before virt-controller asks whether it can.
const mountPatience = 15 * time.Second

// awaitsImages returns how long the launcher of a pod with image volumes has waited for them at most, and reports
// whether it waits. The kubelet has a status of each container of a pod before it mounts anything.
func awaitsImages(vmi *v1.VirtualMachineInstance, pod *corev1.Pod, now time.Time) (since time.Duration, waits bool) {
	if pod == nil || pod.DeletionTimestamp != nil || !hasImages(vmi) || launched(&vmi.Status) ||
		byContainers(vmi, pod) {
		return 0, false
	}
	if c := computeStatus(pod); c == nil || c.State.Waiting == nil {
		return 0, false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return now.Sub(c.LastTransitionTime.Time), true
		}
	}
	return 0, false
}

// awaitImages returns when to look again at a pod that waits for its image volumes, or 0.
func (r *Reconciler) awaitImages(_ context.Context, t *turn) (time.Duration, error) {
	if _, waits := awaitsImages(t.vmi, t.pod, t.now); waits {
		return mountPatience, nil
	}
	return 0, nil
}

// saidStranded reports whether a VMI's status says that its pod is stranded, and is made anew.
func saidStranded(status *v1.VirtualMachineInstanceStatus) bool {
	c := status.Condition(v1.ConditionSynchronized)
	return c != nil && c.Reason == v1.ReasonNoImageVolumes
}

// stranded reports whether a pod with image volumes waits on a node that has none. Such a node may have come after the
// pod, or just before it: virt-controller knows of the node within a minute, and new pods then have containers. If the
// API server does not answer, stranded reports false, and the next turn asks again. A stranded pod that is being
// deleted stays stranded, although the kubelet says that it has failed.
func (r *Reconciler) stranded(ctx context.Context, vmi *v1.VirtualMachineInstance, pod *corev1.Pod) bool {
	if pod != nil && pod.DeletionTimestamp != nil {
		return saidStranded(&vmi.Status)
	}
	if since, waits := awaitsImages(vmi, pod, r.Clock.Now()); r.Images == nil || !waits || since < mountPatience {
		return false
	}
	// Where the configuration says that there are image volumes, the nodes' versions say nothing.
	if way, err := r.Images(ctx); err != nil || way != images.Containers {
		return false
	}
	node := &corev1.Node{}
	err := r.Live.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, node)
	return err == nil && !images.Mounts(node.Status.NodeInfo)
}

// addImages adds the images of container disks and of the kernel.
func addImages(pod *corev1.Pod, vmi *v1.VirtualMachineInstance, config PodConfig) {
	byContainer := config.Images == images.Containers
	resources := imageResources(&pod.Spec.Containers[0].Resources)
	for _, v := range vmi.Spec.Volumes {
		disk := v.ContainerDisk
		if disk == nil {
			continue
		}
		name := diskName(v.Name)
		reference := images.Pinned(disk.Image, disk.ImagePullPolicy, config.Present[name])
		if byContainer {
			images.AddDisk(pod, images.Image{Container: name, Reference: reference, Policy: disk.ImagePullPolicy,
				At: layout.ImageFolder(v.Name), Resources: resources}, disk.Path)
		} else {
			mountImage(pod, name, layout.ImageVolume(v.Name), reference, disk.ImagePullPolicy)
		}
		addPullSecret(pod, disk.ImagePullSecret)
	}
	kernel := vmi.KernelContainer()
	if kernel == nil {
		return
	}
	reference := images.Pinned(kernel.Image, kernel.ImagePullPolicy, config.Present[kernelName])
	if byContainer {
		files := slices.DeleteFunc([]string{kernel.KernelPath, kernel.InitrdPath}, func(f string) bool { return f == "" })
		images.AddFiles(pod, images.Image{Container: kernelName, Reference: reference, Policy: kernel.ImagePullPolicy,
			At: layout.KernelDir, Resources: resources}, files...)
	} else {
		mountImage(pod, kernelName, layout.KernelDir, reference, kernel.ImagePullPolicy)
	}
	addPullSecret(pod, kernel.ImagePullSecret)
}

func addPullSecret(pod *corev1.Pod, secret string) {
	reference := corev1.LocalObjectReference{Name: secret}
	if secret != "" && !slices.Contains(pod.Spec.ImagePullSecrets, reference) {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, reference)
	}
}

// mountImage mounts an image at a path. An image that is mounted twice is one volume: at every
// sync of the pod the kubelet looks for each volume's image, and writes an event for it.
func mountImage(pod *corev1.Pod, name, path, image string, policy corev1.PullPolicy) {
	source := corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: image, PullPolicy: policy}}
	same := func(v corev1.Volume) bool { return v.Image != nil && *v.Image == *source.Image }
	i := slices.IndexFunc(pod.Spec.Volumes, same)
	if i < 0 {
		mount(pod, name, path, source)
		return
	}
	c := &pod.Spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts,
		corev1.VolumeMount{Name: pod.Spec.Volumes[i].Name, MountPath: path, ReadOnly: true})
}

// imageResources returns the resources of a container with an image. The limit of memory is KubeVirt's. If the launcher
// has the same requests and limits, so has the container: otherwise the pod's quality of service would not be
// Guaranteed, and the kubelet would give no CPUs to a guest that is to have CPUs of its own.
func imageResources(launcher *corev1.ResourceRequirements) corev1.ResourceRequirements {
	limits := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("40M")}
	if guaranteed(launcher) {
		limits[corev1.ResourceCPU] = resource.MustParse("10m")
		return corev1.ResourceRequirements{Requests: limits.DeepCopy(), Limits: limits}
	}
	return corev1.ResourceRequirements{Limits: limits, Requests: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1m"), corev1.ResourceMemory: resource.MustParse("2Mi")}}
}

// guaranteed reports whether a container's limits of CPU and memory are what it requests.
func guaranteed(r *corev1.ResourceRequirements) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		limit, limited := r.Limits[name]
		if request, asked := r.Requests[name]; !limited || asked && request.Cmp(limit) != 0 {
			return false
		}
	}
	return true
}
