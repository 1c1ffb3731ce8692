package v1

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Instance returns the VirtualMachineInstance that a VM is started as, with the cluster's
// configuration and without presets. If paused, the guest's CPUs do not run yet. Instance is
// pure, and does not change the VM.
func (vm *VirtualMachine) Instance(config *KubeVirtConfiguration, paused bool) *VirtualMachineInstance {
	vmi := vm.Draft(paused)
	vm.Identify(vmi, config)
	return vmi
}

// Draft returns the VirtualMachineInstance that a VM is started as, before presets and Identify fill
// in what the template leaves out.
func (vm *VirtualMachine) Draft(paused bool) *VirtualMachineInstance {
	template := vm.Spec.Template.DeepCopy()
	dropAbsent(&template.Spec)
	vmi := &VirtualMachineInstance{
		TypeMeta: metav1.TypeMeta{APIVersion: GroupVersion.String(), Kind: "VirtualMachineInstance"},
		ObjectMeta: metav1.ObjectMeta{
			Name:            vm.Name,
			Namespace:       vm.Namespace,
			Labels:          WithoutReservedLabels(template.ObjectMeta.Labels),
			Annotations:     map[string]string{},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, VirtualMachineGroupVersionKind)},
		},
		Spec: template.Spec,
	}
	maps.Copy(vmi.Annotations, WithoutReservedAnnotations(template.ObjectMeta.Annotations))
	vmi.Annotations[VMGenerationAnnotation] = strconv.FormatInt(vm.Generation, 10)
	vmi.Annotations[TemplateHashAnnotation] = vm.TemplateHash()
	vmi.Annotations[PlacementHashAnnotation] = vm.PlacementHash()
	vmi.Annotations[MetadataHashAnnotation] = vm.MetadataHash()
	delete(vmi.Annotations, ClaimsAnnotation)
	if held := vm.claimsAnnotation(); held != "" {
		vmi.Annotations[ClaimsAnnotation] = held
	}
	if paused {
		vmi.Spec.StartStrategy = StartStrategyPaused
	}
	// The machine type of the first start is the VM's own, and no preset changes it.
	if !vm.NamesMachine() && vm.Annotations[MachineTypeAnnotation] != "" {
		vmi.Spec.Domain.Machine = &Machine{Type: vm.Annotations[MachineTypeAnnotation]}
	}
	return vmi
}

// TemplateHash returns a hash of the template's spec without its placement, the names of its claims and the states of
// links, and of the instancetype and preference that the VM names. It covers what the user wrote, without defaults:
// later versions may default more fields, and must leave a running guest as it is.
func (vm *VirtualMachine) TemplateHash() string {
	spec := vm.Spec.Template.Spec
	spec.Domain.Devices.Interfaces = withoutLinkStates(spec.Domain.Devices.Interfaces)
	spec.Domain.withoutFalse()
	spec.Place(Placement{})
	spec.Volumes = slices.Clone(spec.Volumes)
	for i := range spec.Volumes {
		if spec.Volumes[i].updatable() {
			spec.Volumes[i] = spec.Volumes[i].withoutClaim()
		}
	}
	said := []any{&spec}
	if vm.Spec.Instancetype != nil || vm.Spec.Preference != nil {
		said = append(said, vm.Spec.Instancetype, vm.Spec.Preference)
	}
	return hashOf(said...)
}

// withoutFalse leaves out the switches by whose false a user says what holds anyway.
func (d *DomainSpec) withoutFalse() {
	for _, off := range []**bool{&d.Devices.DisableHotplug, &d.Resources.OvercommitGuestOverhead} {
		if *off != nil && !**off {
			*off = nil
		}
	}
}

// DeschedulerAnnotations returns the annotations of a template that follow into running guests' objects, as in
// KubeVirt: the descheduler reads them on the launcher pod.
func DeschedulerAnnotations() []string {
	return []string{"descheduler.alpha.kubernetes.io/evict", "descheduler.alpha.kubernetes.io/prefer-no-eviction"}
}

// MetadataHash returns a hash of the template's labels and annotations. It leaves out the annotations that follow into
// running guests' objects, and the label of a pool's revision, which changes with all of the pool's template, and so
// with what guests have nothing of.
func (vm *VirtualMachine) MetadataHash() string {
	meta := &vm.Spec.Template.ObjectMeta
	labels := map[string]string{}
	maps.Copy(labels, meta.Labels)
	delete(labels, PoolRevisionLabel)
	annotations := map[string]string{}
	maps.Copy(annotations, meta.Annotations)
	for _, key := range DeschedulerAnnotations() {
		delete(annotations, key)
	}
	return hashOf(labels, annotations)
}

// HasMetadata reports whether a VirtualMachineInstance was made with the labels and annotations that the VM's template
// has now. A VirtualMachineInstance without the annotation passes.
func (vm *VirtualMachine) HasMetadata(vmi *VirtualMachineInstance) bool {
	made := vmi.Annotations[MetadataHashAnnotation]
	return made == "" || made == vm.MetadataHash()
}

// hashOf returns a hash of objects as JSON.
func hashOf(said ...any) string {
	var text []byte
	for _, s := range said {
		// Quantities are written in one form: 1Gi is 1024Mi.
		part, err := json.Marshal(s)
		if err != nil {
			return "" // it came as JSON
		}
		text = append(text, part...)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}
