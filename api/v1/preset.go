package v1

import (
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// VirtualMachineInstancePreset sets what new VirtualMachineInstances of its namespace leave out.
// KubeVirt has deprecated presets: use instancetypes and preferences.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=virtualmachineinstancepresets,shortName=vmipreset;vmipresets
// +kubebuilder:deprecatedversion:warning="VirtualMachineInstancePreset is deprecated; use VirtualMachineInstancetype and VirtualMachinePreference"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="metadata.name must have at most 63 characters: an annotation of each VirtualMachineInstance that the preset applies to has the name in its key"
type VirtualMachineInstancePreset struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VirtualMachineInstancePresetSpec `json:"spec"`
}

// VirtualMachineInstancePresetList is a list of VirtualMachineInstancePresets.
//
// +kubebuilder:object:root=true
type VirtualMachineInstancePresetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VirtualMachineInstancePreset `json:"items"`
}

// VirtualMachineInstancePresetSpec says what is set, and in which VirtualMachineInstances.
type VirtualMachineInstancePresetSpec struct {
	// Selector of the labels of VirtualMachineInstances. An empty selector selects all of the
	// namespace. A VirtualMachineInstance that exists is never changed.
	// +kubebuilder:validation:XValidation:rule="!has(self.matchLabels) || self.matchLabels.size() <= 64",message="matchLabels must have at most 64 labels"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.size() <= 16",message="matchExpressions must have at most 16 items"
	Selector metav1.LabelSelector `json:"selector"`
	// Domain is what is set. A value of the VirtualMachineInstance's own wins. Two presets that
	// select the same VirtualMachineInstance must not set different values.
	// +optional
	Domain *PresetDomain `json:"domain,omitempty"`
}

const (
	// MaxPresets is how many presets a namespace may have, and MaxPresetBytes how large they may
	// be together. All of them are read for each new VMI of the namespace.
	MaxPresets     = 64
	MaxPresetBytes = 512 << 10

	// These bound a preset's selector, which is compared with the labels of each new VMI.
	maxSelectorLabels      = 64
	maxSelectorExpressions = 16
	maxSelectorValues      = 64
)

// VirtualMachineInstancePresetResource names presets in the API.
var VirtualMachineInstancePresetResource = GroupVersion.WithResource("virtualmachineinstancepresets")

// The types below stand for fields of a VMI's domain that no preset sets. KubeVirt accepts them
// in a preset, and ignores them.

const notByPreset = "a preset cannot set it; set it in the VirtualMachineInstance"

// NotByPreset is a field that a preset cannot set.
//
// +kubebuilder:pruning:PreserveUnknownFields
// +kubebuilder:validation:XValidation:rule="false",message="a preset cannot set it; set it in the VirtualMachineInstance"
type NotByPreset struct{}

// UnmarshalJSON takes anything, as Unsupported's does.
func (*NotByPreset) UnmarshalJSON([]byte) error { return nil }

// NotByPresetList is a list that a preset cannot set.
//
// +listType=atomic
// +kubebuilder:validation:MaxItems=256
// +kubebuilder:validation:XValidation:rule="self.size() == 0",message="a preset cannot set it; set it in the VirtualMachineInstance"
type NotByPresetList []UnsupportedItem

// NotByPresetBool is a switch that a preset cannot set.
//
// +kubebuilder:validation:XValidation:rule="false",message="a preset cannot set it; set it in the VirtualMachineInstance"
type NotByPresetBool bool

// NotByPresetString is a text that a preset cannot set.
//
// +kubebuilder:validation:MaxLength=1024
// +kubebuilder:validation:XValidation:rule="self.size() == 0",message="a preset cannot set it; set it in the VirtualMachineInstance"
type NotByPresetString string

// PresetDomain has every field of a VMI's domain. A preset sets each of resources' quantities,
// cpu, memory, machine, firmware, clock.utc, clock.timezone, clock.timer, features, ioThreadsPolicy and devices.watchdog as a whole.
type PresetDomain struct {
	// Resources of the launcher pod. Each quantity is set by itself.
	// +optional
	Resources PresetResources `json:"resources,omitempty"`
	// CPU is set as a whole: if the VirtualMachineInstance says anything of its cpu, its own cpu
	// holds.
	// +optional
	CPU *CPU `json:"cpu,omitempty"`
	// Memory of the guest. If the VirtualMachineInstance requests or limits memory, its own memory
	// holds.
	// +optional
	Memory *Memory `json:"memory,omitempty"`
	// Machine is QEMU's machine type.
	// +optional
	Machine *Machine `json:"machine,omitempty"`
	// Firmware is set as a whole.
	// +optional
	Firmware *Firmware `json:"firmware,omitempty"`
	// Clock of the guest: utc, timezone and timer are set each as a whole.
	// +optional
	Clock *Clock `json:"clock,omitempty"`
	// Features are set as a whole.
	// +optional
	Features *Features `json:"features,omitempty"`
	// Devices: only the watchdog can be set.
	// +optional
	Devices PresetDevices `json:"devices,omitempty"`
	// IOThreadsPolicy is shared, auto or supplementalPool.
	// +optional
	// +kubebuilder:validation:Enum="";shared;auto;supplementalPool
	IOThreadsPolicy *IOThreadsPolicy `json:"ioThreadsPolicy,omitempty"`
	// IOThreads are refused: a preset cannot set them.
	// +optional
	IOThreads *NotByPreset `json:"ioThreads,omitempty"`

	// Chassis is refused: a preset does not set it.
	// +optional
	Chassis *NotByPreset `json:"chassis,omitempty"`
	// LaunchSecurity is refused: not supported yet.
	// +optional
	LaunchSecurity *Unsupported `json:"launchSecurity,omitempty"`
	// RebootPolicy is refused: a preset cannot set it.
	// +optional
	RebootPolicy NotByPresetString `json:"rebootPolicy,omitempty"`
}

// PresetResources are the resources that a preset sets.
type PresetResources struct {
	// Requests of the launcher pod.
	// +optional
	Requests ResourceList `json:"requests,omitempty"`
	// Limits of the launcher pod.
	// +optional
	Limits ResourceList `json:"limits,omitempty"`
	// OvercommitGuestOverhead is refused: a preset cannot set it.
	// +optional
	OvercommitGuestOverhead *NotByPresetBool `json:"overcommitGuestOverhead,omitempty"`
}

// PresetDevices has every field of a VMI's devices. A preset sets the watchdog alone.
type PresetDevices struct {
	// Watchdog resets or ends a guest that no longer feeds it.
	// +optional
	Watchdog *Watchdog `json:"watchdog,omitempty"`

	// Disks are refused: a preset cannot set them.
	// +optional
	Disks NotByPresetList `json:"disks,omitempty"`
	// Interfaces are refused: a preset cannot set them.
	// +optional
	Interfaces NotByPresetList `json:"interfaces,omitempty"`
	// Inputs are refused: a preset cannot set them.
	// +optional
	Inputs NotByPresetList `json:"inputs,omitempty"`
	// Rng is refused: a preset cannot set it.
	// +optional
	Rng *NotByPreset `json:"rng,omitempty"`
	// TPM is refused: a preset cannot set it.
	// +optional
	TPM *NotByPreset `json:"tpm,omitempty"`
	// Video is refused: a preset cannot set it.
	// +optional
	Video *NotByPreset `json:"video,omitempty"`
	// AutoattachPodInterface is refused: a preset cannot set it.
	// +optional
	AutoattachPodInterface *NotByPresetBool `json:"autoattachPodInterface,omitempty"`
	// AutoattachSerialConsole is refused: a preset cannot set it.
	// +optional
	AutoattachSerialConsole *NotByPresetBool `json:"autoattachSerialConsole,omitempty"`
	// LogSerialConsole is refused: a preset cannot set it.
	// +optional
	LogSerialConsole *NotByPresetBool `json:"logSerialConsole,omitempty"`
	// AutoattachGraphicsDevice is refused: a preset cannot set it.
	// +optional
	AutoattachGraphicsDevice *NotByPresetBool `json:"autoattachGraphicsDevice,omitempty"`
	// AutoattachMemBalloon is refused: a preset cannot set it.
	// +optional
	AutoattachMemBalloon *NotByPresetBool `json:"autoattachMemBalloon,omitempty"`
	// AutoattachInputDevice is refused: a preset cannot set it.
	// +optional
	AutoattachInputDevice *NotByPresetBool `json:"autoattachInputDevice,omitempty"`
	// NetworkInterfaceMultiQueue is refused: a preset cannot set it.
	// +optional
	NetworkInterfaceMultiQueue *NotByPresetBool `json:"networkInterfaceMultiqueue,omitempty"`
	// BlockMultiQueue is refused: a preset cannot set it.
	// +optional
	BlockMultiQueue *NotByPresetBool `json:"blockMultiQueue,omitempty"`
	// DisableHotplug is refused: a preset cannot set it.
	// +optional
	DisableHotplug *NotByPresetBool `json:"disableHotplug,omitempty"`

	// UseVirtioTransitional is refused: a preset cannot set it.
	// +optional
	UseVirtioTransitional *NotByPresetBool `json:"useVirtioTransitional,omitempty"`
	// AutoattachVSOCK is refused: not supported yet.
	// +optional
	AutoattachVSOCK UnsupportedBool `json:"autoattachVSOCK,omitempty"`
	// GPUs are refused: not supported yet.
	// +optional
	GPUs UnsupportedList `json:"gpus,omitempty"`
	// HostDevices are refused: not supported yet.
	// +optional
	HostDevices UnsupportedList `json:"hostDevices,omitempty"`
	// Filesystems are refused: a preset cannot set them.
	// +optional
	Filesystems NotByPresetList `json:"filesystems,omitempty"`
	// PanicDevices are refused: a preset cannot set them.
	// +optional
	PanicDevices NotByPresetList `json:"panicDevices,omitempty"`
	// Sound is refused: a preset cannot set it.
	// +optional
	Sound *NotByPreset `json:"sound,omitempty"`
	// ClientPassthrough is refused: not supported yet.
	// +optional
	ClientPassthrough *Unsupported `json:"clientPassthrough,omitempty"`
	// DownwardMetrics is refused: not supported yet.
	// +optional
	DownwardMetrics *Unsupported `json:"downwardMetrics,omitempty"`
}

// domain is a copy of what the preset sets, as a VMI has it.
func (p *VirtualMachineInstancePreset) domain() *DomainSpec {
	if p.Spec.Domain == nil {
		return &DomainSpec{}
	}
	d := p.Spec.Domain.DeepCopy()
	return &DomainSpec{
		Resources: ResourceRequirements{Requests: d.Resources.Requests, Limits: d.Resources.Limits},
		CPU:       d.CPU, Memory: d.Memory, Machine: d.Machine, Firmware: d.Firmware, Clock: d.Clock, Features: d.Features,
		Devices: Devices{Watchdog: d.Devices.Watchdog}, IOThreadsPolicy: d.IOThreadsPolicy,
	}
}

// ValidatePreset returns every error of a preset at once, with exact paths. A preset is valid if
// a VMI with nothing but the preset's values is.
func ValidatePreset(p *VirtualMachineInstancePreset) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateSelectorSize(&p.Spec.Selector, path.Child("selector"))
	if len(errs) == 0 { // otherwise there could be an error for each value
		errs = validation.ValidateLabelSelector(&p.Spec.Selector, validation.LabelSelectorValidationOptions{}, path.Child("selector"))
	}
	if len(p.Name) > maxPresetName {
		errs = append(errs, field.TooLong(field.NewPath("metadata", "name"), p.Name, maxPresetName))
	}
	if p.Spec.Domain != nil {
		errs = append(errs, validateUnsupported(reflect.ValueOf(*p.Spec.Domain), path.Child("domain"))...)
		errs = append(errs, validateExponents(&p.Spec.Domain.Resources, path.Child("domain", "resources"))...)
	}
	vmi := &VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{UID: anyUID}, Spec: VirtualMachineInstanceSpec{Domain: *p.domain()}}
	if d := &vmi.Spec.Domain; (d.Memory == nil || d.Memory.Guest == nil) && !saysMemory(&d.Resources) {
		d.Memory = &Memory{Guest: resource.NewQuantity(1<<30, resource.BinarySI)}
	}
	Default(vmi)
	for _, err := range validateSpec(&vmi.Spec, path) {
		// validateUnsupported has named each unsupported field already.
		if !slices.ContainsFunc(errs, func(named *field.Error) bool { return named.Field == err.Field }) {
			errs = append(errs, err)
		}
	}
	return InOrder(errs)
}

// validateExponents refuses quantities such as 1e9. For a VMI the CRD has this rule; that of presets
// has no rules (tools/crd).
func validateExponents(r *PresetResources, path *field.Path) (errs field.ErrorList) {
	for child, list := range map[string]ResourceList{"requests": r.Requests, "limits": r.Limits} {
		for name, quantity := range list {
			if quantity.Format == resource.DecimalExponent {
				errs = append(errs, field.Invalid(path.Child(child).Key(string(name)), quantity.String(), "quantities with exponents are refused"))
			}
		}
	}
	return errs
}

func validateSelectorSize(s *metav1.LabelSelector, path *field.Path) (errs field.ErrorList) {
	if n := len(s.MatchLabels); n > maxSelectorLabels {
		errs = append(errs, field.TooMany(path.Child("matchLabels"), n, maxSelectorLabels))
	}
	expressions := path.Child("matchExpressions")
	if n := len(s.MatchExpressions); n > maxSelectorExpressions {
		return append(errs, field.TooMany(expressions, n, maxSelectorExpressions))
	}
	for i, e := range s.MatchExpressions {
		if n := len(e.Values); n > maxSelectorValues {
			errs = append(errs, field.TooMany(expressions.Index(i).Child("values"), n, maxSelectorValues))
		}
	}
	return errs
}

// maxPresetName is the longest name in the key of an annotation.
const maxPresetName = 63
