package filler

import (
	"encoding/json"
	"fmt"
	"path"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/images"
	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

const (
	containerName  = "importer"
	importerBinary = "/usr/bin/virt-importer"
	// importerUser is the user and group ID of the importer: QEMU's, which the launcher has too.
	importerUser = 107
	// groupDisk is the group that owns block devices.
	groupDisk = 6
	// restartsAnnotation of an importer pod is how often earlier pods of the DataVolume failed.
	restartsAnnotation = "kubeqemu.io/restarts"
	// claimAnnotation of an importer pod is the UID of the claim that the pod fills. Another claim of the
	// same name may come while the pod is still there.
	claimAnnotation = "kubeqemu.io/claim-uid"
	// componentLabel with the value containerName is CDI's label of importer pods.
	componentLabel = "cdi.kubevirt.io"
)

// Config is what importer pods need besides their DataVolumes.
type Config struct {
	// Image has virt-importer: the launcher's image.
	Image string
	// Images is how the image of a registry comes to a pod. Empty is images.Volumes.
	Images images.Way
	// Forbidden and Permitted are blocks of addresses of sources, as in importer.Task.
	Forbidden, Permitted []string
}

// podName is the name of a DataVolume's importer pod.
func podName(volume string) string { return importer.PodName(volume) }

// podOf renders the importer pod of a DataVolume. A namespace that enforces the restricted Pod
// Security Standard admits the pod. The pod runs on whatever node its claim permits.
func podOf(volume *cdi.DataVolume, claim *corev1.PersistentVolumeClaim, config Config, restarts int32) (*corev1.Pod, error) {
	task, err := json.Marshal(importer.Task{Source: sourceOf(&volume.Spec), Target: importer.Target{Block: isBlock(claim),
		Bytes: diskBytes(volume, claim), Preallocate: ptr.Deref(volume.Spec.Preallocation, false)},
		Forbidden: config.Forbidden, Permitted: config.Permitted})
	if err != nil {
		return nil, fmt.Errorf("encode the importer's task: %w", err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: volume.Namespace, Name: podName(volume.Name),
			Labels: podLabels(),
			// A sidecar would outlive the importer.
			Annotations: map[string]string{restartsAnnotation: strconv.Itoa(int(restarts)), claimAnnotation: string(claim.UID),
				"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(volume, cdi.DataVolumeGroupVersionKind)},
		},
		Spec: podSpec(config.Image, string(task)),
	}
	pod.Spec.PriorityClassName = volume.Spec.PriorityClassName
	addClaim(pod, claim)
	source := volume.Spec.Source
	if source != nil && source.HTTP != nil {
		addFiles(pod, source.HTTP)
	}
	if source != nil && source.Registry != nil {
		addImage(pod, source.Registry, config.Images)
	}
	return pod, nil
}

// podLabels are what importer pods and source pods are known by.
func podLabels() map[string]string {
	return map[string]string{v1.AppLabel: importerName, componentLabel: containerName, "app": "containerized-data-importer",
		cdi.ManagedByLabel: cdi.ManagedByKubeqemu}
}

// podSpec is what importer pods and source pods have in common.
func podSpec(image, task string) corev1.PodSpec {
	return corev1.PodSpec{
		RestartPolicy:                 corev1.RestartPolicyOnFailure,
		TerminationGracePeriodSeconds: ptr.To[int64](10),
		AutomountServiceAccountToken:  ptr.To(false),
		EnableServiceLinks:            ptr.To(false),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot:        ptr.To(true),
			RunAsUser:           ptr.To[int64](importerUser),
			RunAsGroup:          ptr.To[int64](importerUser),
			FSGroup:             ptr.To[int64](importerUser),
			FSGroupChangePolicy: ptr.To(corev1.FSGroupChangeOnRootMismatch),
			SeccompProfile:      &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Containers: []corev1.Container{container(image, task)},
		Volumes: []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: resource.NewQuantity(16*mebibyte, resource.BinarySI)}}}},
	}
}

// container is the importer's. Its memory is booked as a whole, so that an import takes no guest's.
func container(image, task string) corev1.Container {
	bounded := func(cpu bool, memory, storage int64) corev1.ResourceList {
		list := corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI),
			corev1.ResourceEphemeralStorage: *resource.NewQuantity(storage, resource.BinarySI)}
		if cpu {
			list[corev1.ResourceCPU] = *resource.NewMilliQuantity(50, resource.DecimalSI)
		}
		return list
	}
	return corev1.Container{
		Name:            containerName,
		Image:           image,
		ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         []string{importerBinary},
		Env: []corev1.EnvVar{
			{Name: importer.TaskVariable, Value: images.Literal(task)},
			{Name: importer.HostAddressesVariable, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "status.hostIPs"}}},
		},
		Resources: corev1.ResourceRequirements{
			Requests: bounded(true, 96*mebibyte, 16*mebibyte),
			Limits:   bounded(false, 96*mebibyte, 128*mebibyte),
		},
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr.To(false),
			ReadOnlyRootFilesystem:   ptr.To(true),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		VolumeMounts: []corev1.VolumeMount{{Name: "tmp", MountPath: "/tmp"}},
	}
}

// sourceOf is the importer's source of a valid DataVolume.
func sourceOf(spec *cdi.DataVolumeSpec) importer.Source {
	if spec.Copies() {
		return importer.Source{Claim: &importer.Claim{}}
	}
	source := spec.Source
	http := source.HTTP
	switch {
	case source.Registry != nil:
		return importer.Source{Image: &importer.Image{}}
	case source.Upload != nil:
		return importer.Source{Upload: &importer.Upload{}}
	case http == nil:
		return importer.Source{Blank: &importer.Blank{}}
	}
	return importer.Source{HTTP: &importer.HTTP{URL: http.URL, Checksum: http.Checksum, Headers: http.ExtraHeaders,
		Certificates: http.CertConfigMap != "", Credentials: http.SecretRef != "", SecretHeaders: len(http.SecretExtraHeaders)}}
}

// addClaim gives the pod its disk.
func addClaim(pod *corev1.Pod, claim *corev1.PersistentVolumeClaim) {
	const name = "disk"
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name}}})
	c := &pod.Spec.Containers[0]
	if isBlock(claim) {
		c.VolumeDevices = []corev1.VolumeDevice{{Name: name, DevicePath: importer.DiskDevice}}
		pod.Spec.SecurityContext.SupplementalGroups = []int64{groupDisk}
		return
	}
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path.Dir(importer.DiskFile)})
}

// addImage gives the pod a container disk, which the node pulls.
func addImage(pod *corev1.Pod, registry *cdi.DataVolumeSourceRegistry, way images.Way) {
	if way == images.Containers {
		images.AddDisk(pod, images.Image{Container: importer.ImageName, Reference: registry.Reference(),
			Policy: corev1.PullIfNotPresent, At: layout.ImageFolder(importer.ImageName),
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(1, resource.DecimalSI),
					corev1.ResourceMemory: *resource.NewQuantity(4*mebibyte, resource.BinarySI)},
				Limits: corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(40*mebibyte, resource.BinarySI)},
			}}, "")
	} else {
		mount(pod, importer.ImageName, importer.ImageFolder, corev1.VolumeSource{
			Image: &corev1.ImageVolumeSource{Reference: registry.Reference(), PullPolicy: corev1.PullIfNotPresent}})
	}
	if registry.Platform != nil && registry.Platform.Architecture != "" {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelArchStable: registry.Platform.Architecture}
	}
}

// addFiles gives the pod the certificates, the credentials and the headers of its source. The kubelet
// reads them: virt-controller may read no Secret.
func addFiles(pod *corev1.Pod, http *cdi.DataVolumeSourceHTTP) {
	secret := func(name string) corev1.VolumeSource {
		return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}
	}
	if name := http.CertConfigMap; name != "" {
		mount(pod, "certificates", importer.CertificatesFolder, corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}})
	}
	if http.SecretRef != "" {
		mount(pod, "credentials", importer.CredentialsFolder, secret(http.SecretRef))
	}
	for i, name := range http.SecretExtraHeaders {
		mount(pod, "headers-"+strconv.Itoa(i), path.Join(importer.HeadersFolder, strconv.Itoa(i)), secret(name))
	}
}

func mount(pod *corev1.Pod, name, path string, source corev1.VolumeSource) {
	c := &pod.Spec.Containers[0]
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: true})
}

// restartsOf is how often the import of a pod's DataVolume failed, in earlier pods and in this one.
func restartsOf(pod *corev1.Pod) int32 {
	earlier, err := strconv.ParseInt(pod.Annotations[restartsAnnotation], 10, 32)
	if err != nil || earlier < 0 {
		earlier = 0 // somebody changed the annotation
	}
	own := int64(0)
	if c := containerOf(pod); c != nil {
		own = int64(max(c.RestartCount, 0))
	}
	return int32(min(earlier+own, maxRestarts))
}

// maxRestarts bounds what the status counts.
const maxRestarts = 1 << 20

// containerOf is the status of the importer's container, or nil.
func containerOf(pod *corev1.Pod) *corev1.ContainerStatus {
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].Name == containerName {
			return &pod.Status.ContainerStatuses[i]
		}
	}
	return nil
}
