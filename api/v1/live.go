package v1

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Live says what a running guest does about the changes of its VirtualMachine.
//
// +kubebuilder:object:generate=false
type Live struct {
	// Taken are the paths of the parts that the guest takes over.
	Taken []string
	// Staged are the changes that wait for the next start.
	Staged FieldChanges
	// OldMetadata: the template has other labels or annotations than the guest was made with. The next start brings
	// them. As in KubeVirt, they need no restart.
	OldMetadata bool
	// Behind: something else is not as the VirtualMachine says, and neither follows now nor waits for a restart: the
	// guest ends, or what it would take over is not known.
	Behind bool
}

// follower is a kind of parts that a running guest follows.
type follower interface {
	// owns reports whether a part is of the kind.
	owns(path string) bool
	// stays returns why the guest of a VirtualMachineInstance does not follow a part now; empty if the guest does.
	stays(vm *VirtualMachine, vmi *VirtualMachineInstance, path string) string
	// take gives a spec a part as a template has it.
	take(spec, template *VirtualMachineInstanceSpec, path string)
	// told returns what an event says of parts that a VirtualMachineInstance has taken over.
	told(vmi *VirtualMachineInstance, paths []string) string
	// how returns how the guest follows, for docs.
	how() string
}

// followers returns all followers.
func followers() []follower { return []follower{placementFollower{}, linkFollower{}} }

// followerOf returns the follower of a part, or nil.
func followerOf(path string) follower {
	all := followers()
	if i := slices.IndexFunc(all, func(f follower) bool { return f.owns(path) }); i >= 0 {
		return all[i]
	}
	return nil
}

// Live returns what the guest of a VirtualMachineInstance does about the changes of the VirtualMachine since it was
// started. config is the cluster's configuration. A VirtualMachineInstance whose annotation does not name its parts
// follows nothing.
func (vm *VirtualMachine) Live(vmi *VirtualMachineInstance, config *KubeVirtConfiguration) Live {
	if vmi == nil {
		return Live{}
	}
	live := vm.liveOf(vmi, config)
	if vmi.IsFinal() || vmi.DeletionTimestamp != nil || vm.DeletionTimestamp != nil {
		return Live{Behind: !live.IsCurrent()}
	}
	return live
}

// liveOf returns what Live returns for a guest that does not end.
func (vm *VirtualMachine) liveOf(vmi *VirtualMachineInstance, config *KubeVirtConfiguration) Live {
	var live Live
	var plain, waits []string
	why := map[string]string{}
	if made, known := vmi.madeFrom(); known {
		for _, path := range vm.Parts().since(made) {
			f := followerOf(path)
			switch {
			case path == partLabels || path == partAnnotations:
				live.OldMetadata = true
			case f == linkFollower{} && vm.leavesOut(vmi, entryName(path)):
			case f == nil:
				plain = append(plain, path)
			default:
				if why[path] = stays(f, vm, vmi, path, config); why[path] == "" {
					live.Taken = append(live.Taken, path)
				} else {
					waits = append(waits, path)
				}
			}
		}
	}
	live.Staged = append(vm.changes(vmi, config, plain), vm.stagedClaims(vmi, config.Rollout())...)
	for _, path := range waits {
		live.Staged = append(live.Staged, FieldChange{Path: path, Why: why[path]})
	}
	return live
}

// stays returns why a guest does not follow a part now; empty if it does.
func stays(f follower, vm *VirtualMachine, vmi *VirtualMachineInstance, path string,
	config *KubeVirtConfiguration) string {
	if config.Rollout() == RolloutStage {
		return isStage
	}
	return f.stays(vm, vmi, path)
}

// stagedClaims returns the volumes that the template puts on other claims, and that no migration copies.
func (vm *VirtualMachine) stagedClaims(vmi *VirtualMachineInstance, rollout RolloutStrategy) FieldChanges {
	_, staged := vm.VolumeUpdates(vmi, rollout)
	var out FieldChanges
	for _, s := range staged {
		path := "volumes[" + s.VolumeName + "].persistentVolumeClaim.claimName"
		if v := vm.Spec.Template.Spec.Volume(s.VolumeName); v != nil && v.DataVolume != nil {
			path = "volumes[" + s.VolumeName + "].dataVolume.name"
		}
		out = append(out, FieldChange{Path: path, Was: strconv.Quote(s.From()), Is: strconv.Quote(s.To()),
			Why: vm.keepsClaims(vmi, rollout)})
	}
	return out
}

// keepsClaims returns why no migration copies a disk of the guest to the claim that the template names.
func (vm *VirtualMachine) keepsClaims(vmi *VirtualMachineInstance, rollout RolloutStrategy) string {
	switch {
	case rollout == RolloutStage:
		return isStage
	case !vm.MovesVolumes(rollout):
		return "nothing is copied; see spec.updateVolumesStrategy"
	case !vmi.hasRun():
		return "the guest has not run yet"
	}
	return "no migration can copy this disk"
}

// isStage is why a guest follows nothing.
const isStage = "the cluster's vmRolloutStrategy is Stage"

// IsCurrent reports whether the guest is as the VirtualMachine says.
func (l Live) IsCurrent() bool {
	return len(l.Taken) == 0 && len(l.Staged) == 0 && !l.OldMetadata && !l.Behind
}

// HasParts reports whether a VirtualMachineInstance has all that the VM says now, but for the names of claims. A
// VirtualMachineInstance without the annotation passes.
func (vm *VirtualMachine) HasParts(vmi *VirtualMachineInstance) bool {
	made, known := vmi.madeFrom()
	return !known || len(vm.Parts().since(made)) == 0
}

// HasMetadata reports whether a VirtualMachineInstance was made with the labels and annotations that the VM's template
// has now. A VirtualMachineInstance without the annotation passes.
func (vm *VirtualMachine) HasMetadata(vmi *VirtualMachineInstance) bool {
	made, known := vmi.madeFrom()
	now := vm.Parts()
	return !known || now.hashes[partLabels] == made.hashes[partLabels] &&
		now.hashes[partAnnotations] == made.hashes[partAnnotations]
}

// IsOfTemplate reports whether a VirtualMachineInstance was made from what the VM's template says now, but for what a
// running guest follows, and for labels and annotations. A VirtualMachineInstance without the annotation passes.
func (vm *VirtualMachine) IsOfTemplate(vmi *VirtualMachineInstance) bool {
	made, known := vmi.madeFrom()
	return !known || !slices.ContainsFunc(vm.Parts().since(made), func(path string) bool {
		return followerOf(path) == nil && path != partLabels && path != partAnnotations
	})
}

// NeedsExpansion reports whether what the guest takes over may come from an instancetype or a preference, too.
func (l Live) NeedsExpansion() bool { return slices.ContainsFunc(l.Taken, placementFollower{}.owns) }

// WithoutExpanded returns what the guest does about the changes to which no instancetype and no preference belongs.
func (l Live) WithoutExpanded() Live {
	l.Behind = l.Behind || l.NeedsExpansion()
	l.Taken = slices.DeleteFunc(slices.Clone(l.Taken), placementFollower{}.owns)
	return l
}

// Follow returns the VirtualMachineInstance with what its guest takes over. expanded is the VirtualMachine with its
// instancetype and preference.
func (l Live) Follow(vm, expanded *VirtualMachine, vmi *VirtualMachineInstance) *VirtualMachineInstance {
	next := vmi.DeepCopy()
	template := expanded.Spec.Template.DeepCopy().Spec
	for _, path := range l.Taken {
		followerOf(path).take(&next.Spec, &template, path)
	}
	made, _ := vmi.madeFrom()
	parts := made.with(vm.Parts(), l.Taken)
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, TemplatePartsAnnotation, parts.String())
	if len(l.Staged) == 0 && !l.OldMetadata && !l.Behind {
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, VMGenerationAnnotation, strconv.FormatInt(vm.Generation, 10))
	}
	return next
}

// Told returns what events say of what a VirtualMachineInstance has taken over: a sentence for each follower.
func (l Live) Told(next *VirtualMachineInstance) []string {
	var out []string
	for _, f := range followers() {
		own := slices.DeleteFunc(slices.Clone(l.Taken), func(path string) bool { return !f.owns(path) })
		if len(own) > 0 {
			out = append(out, f.told(next, own))
		}
	}
	return out
}

// RestartRequired returns what the condition RestartRequired says of the changes that wait for the next start of the
// VirtualMachine's guest; empty if none does.
func (l Live) RestartRequired(vm *VirtualMachine) string {
	if len(l.Staged) == 0 {
		return ""
	}
	return fmt.Sprintf("the template was changed: %s; this holds from the next start on: %s", l.Staged, vm.RestartAdvice())
}

// Since returns the changes since the VirtualMachine was old that no running guest follows.
func (vm *VirtualMachine) Since(old *VirtualMachine, config *KubeVirtConfiguration) FieldChanges {
	return vm.Live(old.willing(config), config).Staged
}

// willing returns a VirtualMachineInstance of the VirtualMachine, whose guest runs and follows all that guests can
// follow.
func (vm *VirtualMachine) willing(config *KubeVirtConfiguration) *VirtualMachineInstance {
	if config == nil {
		config = &KubeVirtConfiguration{}
	}
	vmi := vm.Instance(config, false)
	Default(vmi)
	vmi.Status.Phase = Running
	vmi.Status.PhaseTransitionTimestamps = []PhaseTransitionTimestamp{{Phase: Running}}
	vmi.Status.Conditions = []VirtualMachineInstanceCondition{
		{Type: ConditionLiveMigratable, Status: metav1.ConditionTrue}}
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		vmi.Status.Interfaces = append(vmi.Status.Interfaces,
			NetworkInterfaceStatus{Name: nic.Name, LinkState: nic.Link()})
	}
	for i := range vmi.Spec.Volumes {
		if claim := vmi.Claim(&vmi.Spec.Volumes[i]); claim != nil {
			vmi.Status.VolumeStatus = append(vmi.Status.VolumeStatus, VolumeStatus{Name: vmi.Spec.Volumes[i].Name,
				PersistentVolumeClaimInfo: &PersistentVolumeClaimInfo{ClaimName: claim.Name}})
		}
	}
	return vmi
}

// entryName returns the name of the list's entry that a path names, such as data of domain.devices.disks[data].serial.
func entryName(path string) string {
	_, rest, _ := strings.Cut(path, "[")
	name, _, _ := strings.Cut(rest, "]")
	return name
}
