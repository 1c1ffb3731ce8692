package manifest

import (
	"fmt"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/api/validation"
)

// preset is a VirtualMachineInstancePreset, and its document.
type preset struct {
	v1.VirtualMachineInstancePreset
	document Document
}

// presets returns the presets of a namespace that select VMIs with these labels, in the order of the
// documents.
func (s Set) presets(namespace string, labels map[string]string) ([]preset, error) {
	var found []preset
	for _, d := range s {
		if d.presentKind() != v1.GroupVersion.WithKind("VirtualMachineInstancePreset") || d.namespace() != namespace {
			continue
		}
		p := preset{document: d}
		if err := d.decode(&p.VirtualMachineInstancePreset); err != nil {
			return nil, err
		}
		if errs := validation.ValidateVirtualMachineInstancePreset(&p.VirtualMachineInstancePreset); len(errs) > 0 {
			return nil, d.invalid(errs)
		}
		selects, err := p.Selects(labels)
		if err != nil {
			return nil, d.problem("spec.selector", err.Error())
		}
		if selects {
			found = append(found, p)
		}
	}
	if len(found) > v1.MaxPresets {
		return nil, fmt.Errorf("%d VirtualMachineInstancePresets of the namespace %q select the same object: a namespace may have %d", len(found), namespace, v1.MaxPresets)
	}
	return found, nil
}

// fill applies the presets of the documents to a VMI that is made of the document d, whose spec is at
// the path spec. It returns a stage for each preset.
func (s Set) fill(d Document, vmi *v1.VirtualMachineInstance, spec string) ([]stage, error) {
	if v1.PresetsExcluded(vmi) {
		return nil, nil
	}
	selecting, err := s.presets(d.namespace(), vmi.Labels)
	if err != nil {
		return nil, err
	}
	var stages []stage
	var applied []v1.VirtualMachineInstancePreset
	plain := vmi.DeepCopy()
	for _, p := range selecting {
		applied = append(applied, p.VirtualMachineInstancePreset)
		plain.DeepCopyInto(vmi)
		if _, errs := v1.ApplyPresets(vmi, applied); len(errs) > 0 {
			return nil, Instance{Document: d, spec: spec}.Invalid(errs)
		}
		stages = append(stages, p.document.stage("preset", vmi.DeepCopy()))
	}
	return stages, nil
}

// filled applies presets to the VMI of an instance that has no stages yet, and returns its stages.
func (s Set) filled(i Instance) ([]stage, error) {
	written := i.VirtualMachineInstance.DeepCopy()
	stages, err := s.fill(i.Document, i.VirtualMachineInstance, i.spec)
	return append([]stage{{vmi: written}}, stages...), err
}

// withMetadataOf returns stages whose VMIs have the metadata of another VMI.
func withMetadataOf(vmi *v1.VirtualMachineInstance, stages []stage) []stage {
	for i := range stages {
		vmi.ObjectMeta.DeepCopyInto(&stages[i].vmi.ObjectMeta)
	}
	return stages
}
