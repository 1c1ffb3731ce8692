// Package vmi is virt-controller's side of a VirtualMachineInstance: it makes
// the launcher pod, follows it, and writes every phase but Running.
package vmi

import (
	"maps"
	"path"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/handover"
	"github.com/kubeqemu/kubeqemu/controllers/images"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

const (
	// RuntimeUser is the user and group ID of the launcher and QEMU: the traditional ID of
	// "qemu", which can read container disks.
	RuntimeUser = 107
	// SlotResource is the resource that virt-handler's device plugin advertises. One slot is
	// the right to one connection to virt-handler.
	SlotResource corev1.ResourceName = "devices.kubevirt.io/vm"
	// FaultResource is the resource of the right to a node's /dev/userfaultfd, if the node has it. With the device
	// QEMU receives a guest whose memory comes later. Every virt-handler advertises the resource, so that it
	// decides nothing about where a pod may be.
	FaultResource corev1.ResourceName = "devices.kubevirt.io/userfaultfd"
	// ContainerName is the name of the launcher's container in its pod.
	ContainerName  = "compute"
	launcherBinary = "/usr/bin/virt-launcher"
	// stopSeconds is added to the guest's grace period: QEMU has to quit, and the launcher to
	// report how QEMU ended.
	stopSeconds = 15
)

// PodConfig is what the renderer needs besides the VMI.
type PodConfig struct {
	// LauncherImage is the launcher's image reference.
	LauncherImage string
	// ARM64Image is that of a launcher for nodes of amd64 that emulates guests of arm64.
	ARM64Image string
	// Images is how container disks and kernels come to the pod. Empty is images.Volumes.
	Images images.Way
	// Present are the images of the guest's present pod, for a target pod, as of images.Present.
	Present map[string]string
	// Cluster is the cluster's configuration; nil is an empty one. It says which files of the
	// nodes may be disks, and more; see cluster.go.
	Cluster *v1.KubeVirtConfiguration
	// Emulation adds the memory of TCG's translation cache to the request.
	Emulation bool
	// PostCopy lets the target pod of a migration that may go on by post-copy ask for FaultResource.
	PostCopy bool
	// Resources are those of the network cards of the node, by interface.
	Resources map[string]string
	// Unlabelled says that some node that takes guests does not tell which CPUs it can give. The labels of CPUs
	// then choose no node.
	Unlabelled bool
	// TargetCPU are the labels that the node of a target pod must have so that it can give the guest the CPU that
	// the guest has.
	TargetCPU map[string]string
	// GuestAddress is the IPv4 address that the guest of a target pod has from passt; empty if the guest has none,
	// or has that of the pod.
	GuestAddress string
}

// isForeign reports whether a guest runs on nodes of another architecture than its own.
func (c *PodConfig) isForeign(vmi *v1.VirtualMachineInstance) bool {
	return c.Cluster != nil && c.Cluster.NodeArchitecture(vmi.Spec.Architecture) != vmi.Spec.Architecture
}

func (c *PodConfig) image(vmi *v1.VirtualMachineInstance) string {
	if c.isForeign(vmi) && c.ARM64Image != "" {
		return c.ARM64Image
	}
	return c.LauncherImage
}

// Pod renders the launcher pod of a defaulted VMI, whose status already holds the facts about
// its claims. A namespace that enforces the restricted Pod Security Standard admits the pod.
func Pod(vmi *v1.VirtualMachineInstance, config PodConfig) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:            v1.LauncherPodName(vmi.Name, vmi.UID, v1.FirstPod),
			Namespace:       vmi.Namespace,
			Labels:          podLabels(vmi),
			Annotations:     podAnnotations(vmi, config),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vmi, v1.VirtualMachineInstanceGroupVersionKind)},
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: ptr.To(vmi.GracePeriodSeconds() + stopSeconds),
			AutomountServiceAccountToken:  ptr.To(false),
			EnableServiceLinks:            ptr.To(false),
			ReadinessGates:                []corev1.PodReadinessGate{{ConditionType: unpausedGate}},
			NodeSelector:                  nodeSelector(vmi, config),
			Affinity:                      vmi.Spec.Affinity.DeepCopy(),
			Tolerations:                   slices.Clone(vmi.Spec.Tolerations),
			TopologySpreadConstraints:     slices.Clone(vmi.Spec.TopologySpreadConstraints),
			PriorityClassName:             vmi.Spec.PriorityClassName,
			SchedulerName:                 vmi.Spec.SchedulerName,
			ServiceAccountName:            vmi.Spec.PodServiceAccount(),
			Hostname:                      vmi.GuestHostname(),
			Subdomain:                     vmi.Spec.Subdomain,
			DNSPolicy:                     vmi.Spec.DNSPolicy,
			DNSConfig:                     vmi.Spec.DNSConfig.DeepCopy(),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot:   ptr.To(true),
				RunAsUser:      ptr.To[int64](RuntimeUser),
				RunAsGroup:     ptr.To[int64](RuntimeUser),
				FSGroup:        ptr.To[int64](RuntimeUser),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{container(vmi, config)},
			Volumes: []corev1.Volume{
				// Sockets and the cloud-init seed are in memory, so that user data never
				// reaches the node's disk.
				{Name: "run", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
					Medium: corev1.StorageMediumMemory, SizeLimit: resource.NewQuantity(runDirSize(vmi), resource.BinarySI)}}},
				{Name: "overlays", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			},
		},
	}
	addFilesystems(pod, vmi, config)
	addPasst(pod, vmi, config)
	addImages(pod, vmi, config)
	addSecrets(pod, vmi)
	addConfigVolumes(pod, vmi)
	addClaims(pod, vmi)
	addState(pod, vmi)
	addHostDisks(pod, vmi, config.Cluster)
	avoidForbidden(pod, vmi)
	if config.Cluster != nil {
		applyCluster(pod, config.Cluster)
	}
	return pod
}

// targetPod renders the pod to which a migration moves the guest of a defaulted VMI. It differs from the guest's
// present pod only in its name, in what names the migration, in the nodes that it may be on, in the claims to which
// the migration copies disks, and in the files that it lacks.
func targetPod(vmi *v1.VirtualMachineInstance, migration *v1.VirtualMachineInstanceMigration,
	config PodConfig) *corev1.Pod {
	vmi = vmi.DeepCopy()
	vmi.Status.TakeDestinations()
	vmi.TakeState()
	pod := Pod(vmi, config)
	pod.Name = v1.LauncherPodName(vmi.Name, vmi.UID, migration.UID)
	pod.Labels[v1.MigrationJobLabel] = string(migration.UID)
	pod.Annotations[v1.MigrationJobNameAnnotation] = migration.Name
	for key, value := range migration.Spec.AddedNodeSelector {
		if _, ok := pod.Spec.NodeSelector[key]; !ok {
			pod.Spec.NodeSelector[key] = value
		}
	}
	leaveFilesOut(pod, vmi)
	admitObsolete(pod, vmi)
	maps.Copy(pod.Spec.NodeSelector, config.TargetCPU)
	if !migration.StaysOnNode() {
		keepApart(pod, vmi)
	}
	if config.PostCopy {
		one, r := *resource.NewQuantity(1, resource.DecimalSI), &pod.Spec.Containers[0].Resources
		r.Requests[FaultResource], r.Limits[FaultResource] = one, one
	}
	return pod
}

// keepApart keeps a pod off the nodes of the VMI's other pods. It names the nodes: an anti-affinity to the pods
// would also keep later pods off this pod's node, and an update may have to bring the guest to another pod
// there.
func keepApart(pod *corev1.Pod, vmi *v1.VirtualMachineInstance) {
	nodes := map[string]bool{vmi.Status.NodeName: true}
	for _, node := range vmi.Status.ActivePods {
		nodes[node] = true
	}
	delete(nodes, "")
	var off []corev1.NodeSelectorRequirement
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		off = append(off, corev1.NodeSelectorRequirement{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpNotIn,
			Values: []string{node}})
	}
	require(pod, nil, off)
}

func podLabels(vmi *v1.VirtualMachineInstance) map[string]string {
	labels := vmi.PodLabels()
	labels[v1.AppLabel] = "virt-launcher"
	labels[v1.CreatedByLabel] = string(vmi.UID)
	labels[v1.VirtualMachineInstanceIDLabel] = v1.LabelOfName(vmi.Name)
	labels[v1.VirtualMachineNameLabel] = vmi.GuestHostname()
	return labels
}

func podAnnotations(vmi *v1.VirtualMachineInstance, config PodConfig) map[string]string {
	annotations := map[string]string{}
	// Multus obeys some that are left out: only spec.networks may write them.
	maps.Copy(annotations, v1.WithoutReservedAnnotations(vmi.Annotations))
	delete(annotations, v1.TemplatePartsAnnotation) // nobody reads it there
	addNetworks(annotations, vmi)
	annotations[v1.DomainAnnotation] = vmi.Name
	annotations[v1.EvictOnlyAnnotation] = ""
	annotations[v1.MemoryOverheadAnnotation] = bookedBeside(vmi, config).String()
	annotations["kubectl.kubernetes.io/default-container"] = ContainerName
	return annotations
}

// nodeSelector returns the labels that the pod's node must have. It does not select kubevirt.io/schedulable. A
// kubelet that restarts ends pods whose selector its node no longer matches, and so would end guests that run
// well without virt-handler. A node without virt-handler has no slots, so that no VMI starts there.
func nodeSelector(vmi *v1.VirtualMachineInstance, config PodConfig) map[string]string {
	selector := map[string]string{}
	maps.Copy(selector, cpuSelector(vmi, config))
	maps.Copy(selector, vmi.Spec.NodeSelector)
	selector[corev1.LabelArchStable] = vmi.Spec.Architecture
	if config.Cluster != nil {
		selector[corev1.LabelArchStable] = config.Cluster.NodeArchitecture(vmi.Spec.Architecture)
	}
	if vmi.Spec.Domain.CPU.Dedicated() {
		selector[v1.CPUManagerLabel] = "true" // which stays while virt-handler is gone
	}
	if vmi.Spec.Domain.CPU != nil && vmi.Spec.Domain.CPU.Realtime != nil {
		selector[v1.RealtimeLabel] = "true" // likewise
	}
	if hasPasst(vmi) {
		selector[v1.PasstLabel] = yes // likewise
	}
	return selector
}

func container(vmi *v1.VirtualMachineInstance, config PodConfig) corev1.Container {
	c := corev1.Container{
		Name:            ContainerName,
		Image:           config.image(vmi),
		ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         []string{launcherBinary, "run"},
		Resources:       resources(vmi, config),
		LivenessProbe:   probe(vmi.Spec.LivenessProbe),
		ReadinessProbe:  probe(vmi.Spec.ReadinessProbe, "--readiness"),
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr.To(false),
			ReadOnlyRootFilesystem:   ptr.To(true),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "run", MountPath: layout.RunDir},
			{Name: "overlays", MountPath: layout.OverlayDir},
		},
	}
	c.Env = append([]corev1.EnvVar{launcherProcs()}, resourceVariables(vmi, config)...)
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		if !vmi.Spec.OnPods(nic.Name) {
			continue
		}
		for _, p := range nic.Ports {
			c.Ports = append(c.Ports, corev1.ContainerPort{Name: p.Name, ContainerPort: p.Port,
				Protocol: corev1.Protocol(p.Protocol)})
		}
	}
	return c
}

// launcherProcs returns the variable that says on how many CPUs virt-launcher's goroutines run at the same
// time. Go keeps memory for each such CPU: virt-launcher would have 2.6 MiB more on a node with 64 CPUs.
func launcherProcs() corev1.EnvVar { return corev1.EnvVar{Name: "GOMAXPROCS", Value: "2"} }

// addSecrets mounts the Secrets with cloud-init data, of which the launcher reads one key
// each, and the Secrets with SSH keys and passwords. No component reads these Secrets from the
// API.
func addSecrets(pod *corev1.Pod, vmi *v1.VirtualMachineInstance) {
	for _, s := range handover.Secrets(vmi) {
		mount(pod, s.Volume, s.Path, corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: s.Name}})
	}
}

func mount(pod *corev1.Pod, name, path string, source corev1.VolumeSource) {
	c := &pod.Spec.Containers[0]
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: true})
}

// groupDisk is the group "disk", which owns block devices on all distributions that run
// Kubernetes.
const groupDisk = 6

// addClaims mounts the volumes of PersistentVolumeClaims. Block volumes become devices of the
// container.
func addClaims(pod *corev1.Pod, vmi *v1.VirtualMachineInstance) {
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		source := vmi.Claim(v)
		if source == nil {
			continue
		}
		c, at := holder(pod, v.Name, layout.Claim(v.Name))
		name := layout.PodName("claim", v.Name)
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: source.Name,
				ReadOnly: source.ReadOnlyVolume}}})
		if info := vmi.Status.ClaimInfo(v.Name); info != nil && info.IsBlock() {
			c.VolumeDevices = append(c.VolumeDevices, corev1.VolumeDevice{Name: name, DevicePath: layout.BlockDevice(v.Name)})
			pod.Spec.SecurityContext.SupplementalGroups = []int64{groupDisk}
			continue
		}
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: at, ReadOnly: source.ReadOnly})
	}
}

// addHostDisks mounts the folders of host disks. The volume is the folder that the
// configuration permits, and the mount is a subPath of it. So the kubelet opens the path
// component by component, and no symbolic link can lead out of the folder.
func addHostDisks(pod *corev1.Pod, vmi *v1.VirtualMachineInstance, config *v1.KubeVirtConfiguration) {
	for _, v := range vmi.Spec.Volumes {
		if v.HostDisk == nil || config == nil {
			continue
		}
		folder, below, permitted := config.HostDiskFolder(v.HostDisk)
		if !permitted {
			continue // ValidateHostDisks has refused the volume
		}
		name := layout.PodName("host", v.Name)
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: folder, Type: ptr.To(corev1.HostPathDirectory)}}})
		mount := corev1.VolumeMount{Name: name, MountPath: layout.Claim(v.Name)}
		if sub := path.Dir(below); sub != "." {
			mount.SubPath = sub
		}
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, mount)
	}
}
