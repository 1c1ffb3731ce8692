package vmi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// resourceAnnotation of a NetworkAttachmentDefinition names the resource of the network cards that are on the network.
const resourceAnnotation = "k8s.v1.cni.cncf.io/resourceName"

// errNoResource means that it is not known which resource a network's cards are, and that somebody has to
// change the cluster.
var errNoResource = errors.New("no resource of network cards")

// +kubebuilder:rbac:groups=k8s.cni.cncf.io,resources=network-attachment-definitions,verbs=get

// cardResources returns the resources of the VMI's interfaces with sriov, by interface. It reads only the
// metadata of the networks' NetworkAttachmentDefinitions. Their names are a tenant's, and the annotation may
// be. The pod asks for the resource as a pod of the tenant's own would, and scheduler, quota and device plugin
// decide.
func (r *Reconciler) cardResources(ctx context.Context, vmi *v1.VirtualMachineInstance) (map[string]string, error) {
	out, read := map[string]string{}, map[client.ObjectKey]*metav1.PartialObjectMetadata{}
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		network := vmi.Spec.Network(nic.Name)
		if nic.SRIOV == nil || network == nil || network.Multus == nil {
			continue
		}
		namespace, name := network.Multus.Definition(vmi.Namespace)
		key := client.ObjectKey{Namespace: namespace, Name: name}
		definition, err := read[key], error(nil)
		if definition == nil {
			definition, err = r.definition(ctx, key)
		}
		read[key] = definition
		switch {
		case meta.IsNoMatchError(err):
			return nil, fmt.Errorf("%w: the cluster has no NetworkAttachmentDefinitions: install Multus", errNoResource)
		case apierrors.IsNotFound(err) && namespace != vmi.Namespace:
			definition = &metav1.PartialObjectMetadata{}
		case apierrors.IsNotFound(err):
			return nil, fmt.Errorf("%w: the NetworkAttachmentDefinition %s/%s of network %q does not exist", errNoResource,
				namespace, name, nic.Name)
		case err != nil:
			return nil, fmt.Errorf("get NetworkAttachmentDefinition %s/%s: %w", namespace, name, err)
		}
		if why := wrongResource(definition.Annotations[resourceAnnotation]); why != "" {
			if namespace != vmi.Namespace { // neither what it says nor whether it exists may be for this namespace to know
				return nil, fmt.Errorf("%w: there is no NetworkAttachmentDefinition %s/%s, of network %q, whose annotation %s names a resource of a device plugin",
					errNoResource, namespace, name, nic.Name, resourceAnnotation)
			}
			return nil, fmt.Errorf("%w: the annotation %s of the NetworkAttachmentDefinition %s/%s of network %q %s",
				errNoResource, resourceAnnotation, namespace, name, nic.Name, why)
		}
		out[nic.Name] = definition.Annotations[resourceAnnotation]
	}
	return out, nil
}

// definition reads the metadata of a NetworkAttachmentDefinition.
func (r *Reconciler) definition(ctx context.Context, key client.ObjectKey) (*metav1.PartialObjectMetadata, error) {
	definition := &metav1.PartialObjectMetadata{}
	definition.SetGroupVersionKind(schema.GroupVersionKind{Group: "k8s.cni.cncf.io", Version: "v1",
		Kind: "NetworkAttachmentDefinition"})
	return definition, r.Live.Get(ctx, key, definition)
}

// wrongResource returns why a name is not that of a resource of a device plugin, or "" if it is. A pod's slot
// and the node's memory and CPU are not a network's to name: the pod has them from its VMI.
func wrongResource(name string) string {
	domain, _, qualified := strings.Cut(name, "/")
	within := func(d string) bool { return domain == d || strings.HasSuffix(domain, "."+d) }
	switch {
	case name == "":
		return "is missing: it names the resource of the SR-IOV device plugin"
	case !qualified || len(validation.IsQualifiedName(name)) > 0 || strings.HasPrefix(name, "requests."):
		return fmt.Sprintf("is %.64q, and no name of a device plugin's resource", name)
	case within("kubernetes.io") || within("kubevirt.io"):
		return fmt.Sprintf("is %.64q: resources of %s are not a network's", name, domain)
	}
	return ""
}

// bookCards requests one card of the node for each interface with sriov.
func bookCards(r corev1.ResourceRequirements, vmi *v1.VirtualMachineInstance, config PodConfig) {
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		name := corev1.ResourceName(config.Resources[nic.Name])
		if nic.SRIOV == nil || name == "" {
			continue
		}
		count := r.Requests[name]
		count.Add(*resource.NewQuantity(1, resource.DecimalSI))
		r.Requests[name], r.Limits[name] = count, count
	}
}

// resourceVariables returns the variables that tell the launcher the resource of each interface with sriov.
func resourceVariables(vmi *v1.VirtualMachineInstance, config PodConfig) (out []corev1.EnvVar) {
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		if name := config.Resources[nic.Name]; nic.SRIOV != nil && name != "" {
			out = append(out, corev1.EnvVar{Name: layout.ResourceVariable(nic.Name), Value: name})
		}
	}
	return out
}

// networkStatus is an element of Multus' annotation on a pod.
type networkStatus struct {
	Interface  string `json:"interface"`
	DeviceInfo struct {
		PCI struct {
			Address string `json:"pci-address"`
		} `json:"pci"`
	} `json:"device-info"`
}

// observeDevices notes which network cards of the node Multus gave the pod for which interface. A user who may
// change the pod's annotations can mix up the cards of this pod, and no others.
func observeDevices(vmi *v1.VirtualMachineInstance, pod *corev1.Pod) {
	at := slices.IndexFunc(vmi.Status.LauncherPods, func(p v1.LauncherPod) bool { return p.Name == pod.Name })
	if at < 0 || !vmi.Spec.Domain.Devices.HasSRIOV() {
		return
	}
	var said []networkStatus
	if json.Unmarshal([]byte(pod.Annotations[networkStatusAnnotation]), &said) != nil {
		said = nil // not written yet, or not Multus' words
	}
	var devices map[string]v1.PCIAddress
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		network := vmi.Spec.Network(nic.Name)
		if nic.SRIOV == nil || network == nil {
			continue
		}
		i := slices.IndexFunc(said, func(s networkStatus) bool { return s.Interface == network.Link() })
		if i < 0 {
			continue
		}
		if address := strings.ToLower(said[i].DeviceInfo.PCI.Address); qemuargs.IsPCIAddress(address) {
			if devices == nil {
				devices = map[string]v1.PCIAddress{}
			}
			devices[nic.Name] = v1.PCIAddress(address)
		}
	}
	vmi.Status.LauncherPods[at].Devices = devices
}
