package v1

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

const (
	// PresetAnnotation and a preset's name are the key of an annotation of each VMI that the
	// preset applies to. Its value is the API version.
	PresetAnnotation = "virtualmachinepreset.kubevirt.io/"
	// ExcludePresetsAnnotation keeps all presets from a VMI, if its value is "true".
	ExcludePresetsAnnotation = "virtualmachineinstancepresets.admission.kubevirt.io/exclude"
	// PresetsAdvice is what a user can always do about presets that cannot be applied.
	PresetsAdvice = `or exclude this object from presets with the annotation ` + ExcludePresetsAnnotation + `: "true"`
)

// PresetsExcluded reports whether an object keeps presets away. A VMI's template says so for the VMI.
func PresetsExcluded(object metav1.Object) bool {
	return object.GetAnnotations()[ExcludePresetsAnnotation] == "true"
}

// Selects reports whether the preset is for VMIs with these labels.
func (p *VirtualMachineInstancePreset) Selects(of map[string]string) (bool, error) {
	selector, err := metav1.LabelSelectorAsSelector(&p.Spec.Selector)
	if err != nil {
		return false, fmt.Errorf("read selector of VirtualMachineInstancePreset %q: %s", p.Name, shortened(err.Error()))
	}
	return selector.Matches(labels.Set(of)), nil
}

// ApplyPresets sets what a new VMI leaves out from those presets of its namespace that select it.
// It is called before ApplyClusterDefaults and Default. overridden are the values of presets that
// the VMI's own values win over, one sentence each. With errors, the VMI must not start.
func ApplyPresets(vmi *VirtualMachineInstance, presets []VirtualMachineInstancePreset) (
	overridden []string, errs field.ErrorList) {
	if PresetsExcluded(vmi) {
		return nil, nil
	}
	chosen, errs := selecting(vmi.Labels, presets)
	if len(errs) > 0 {
		return nil, errs
	}
	all, errs := joined(chosen)
	if len(errs) > 0 {
		return nil, errs
	}
	own := &vmi.Spec.Domain
	// Otherwise a preset would give another amount of memory to a VMI that says only its request.
	if own.Resources.SaysMemory() && isUnset(own.Memory) && !isUnset(all.domain.Memory) {
		overridden = append(overridden,
			all.overridden("spec.domain.memory", "spec.domain.resources", asJSON(own.Resources), asJSON(all.domain.Memory)))
		all.domain.Memory = nil
	}
	for _, p := range parts(own, &all.domain) {
		switch p.had {
		case "":
			p.take()
		case p.wanted:
		default:
			overridden = append(overridden, all.overridden(p.path, p.path, p.had, p.wanted))
		}
	}
	for i := range chosen {
		if chosen[i].holdsIn(own) {
			metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, PresetAnnotation+chosen[i].Name, GroupVersion.String())
		}
	}
	return overridden, nil
}

// SaysMemory reports whether resources say how much memory the guest has, if nothing else does.
func (r *ResourceRequirements) SaysMemory() bool {
	_, requested := r.Requests[corev1.ResourceMemory]
	_, limited := r.Limits[corev1.ResourceMemory]
	return requested || limited
}

// selecting returns the presets that select a VMI with these labels, by name.
func selecting(of map[string]string, presets []VirtualMachineInstancePreset) (
	found []VirtualMachineInstancePreset, errs field.ErrorList) {
	for i := range presets {
		p := &presets[i]
		selects, err := p.Selects(of)
		switch {
		case err != nil:
			// Nobody knows whether the preset is meant for this VMI.
			errs = append(errs, field.Invalid(field.NewPath("metadata", "labels"), shortened(labels.Set(of).String()),
				err.Error()+"; correct or delete it, "+PresetsAdvice))
		case selects && len(p.Name) > MaxPresetName:
			errs = append(errs, field.Invalid(field.NewPath("metadata", "annotations"), shortened(p.Name),
				fmt.Sprintf("the name of this VirtualMachineInstancePreset has more than %d characters; delete it, %s",
					MaxPresetName, PresetsAdvice)))
		case selects:
			found = append(found, *p)
		}
	}
	slices.SortFunc(found, func(a, b VirtualMachineInstancePreset) int { return strings.Compare(a.Name, b.Name) })
	return found, errs[:min(len(errs), maxConflicts)]
}

// joint is what several presets set together.
type joint struct {
	domain DomainSpec
	by     map[string]string // the first preset that sets a part, by the part's path
}

// maxConflicts bounds how many conflicts are named: a status holds them.
const maxConflicts = 8

// joined joins presets. Presets that set a part to different values are an error.
func joined(presets []VirtualMachineInstancePreset) (*joint, field.ErrorList) {
	all := &joint{by: map[string]string{}}
	var errs field.ErrorList
	for i := range presets {
		for _, p := range parts(&all.domain, presets[i].Sets()) {
			switch {
			case p.had == "":
				p.take()
				all.by[p.path] = presets[i].Name
			case p.had != p.wanted && len(errs) < maxConflicts:
				errs = append(errs, field.Invalid(field.NewPath(p.path), shortened(p.had),
					fmt.Sprintf("the VirtualMachineInstancePresets %q and %q both select this object, and %q sets %s; change a "+
						"preset or its selector, %s",
						all.by[p.path], presets[i].Name, presets[i].Name, shortened(p.wanted), PresetsAdvice)))
			}
		}
	}
	return all, errs
}

// overridden returns the sentence that a value of the VMI's own, at another path perhaps, wins over a
// preset's.
func (j *joint) overridden(path, ownPath, own, preset string) string {
	return fmt.Sprintf("The object's own %s %s overrides %s %s of VirtualMachineInstancePreset %q", ownPath,
		shortened(own), path, shortened(preset), j.by[path])
}

// holdsIn reports whether a value of the preset's is a domain's.
func (p *VirtualMachineInstancePreset) holdsIn(d *DomainSpec) bool {
	return slices.ContainsFunc(parts(d, p.Sets()), func(p part) bool { return p.had == p.wanted })
}

// part is a part of a domain that a preset sets as a whole.
type part struct {
	path string
	// had is the domain's own value as JSON, or empty if there is none. wanted is the preset's.
	had, wanted string
	// take makes the preset's value the domain's.
	take func()
}

// parts returns the parts that a preset sets, beside a domain's own. preset is a copy: a part that is taken is the
// domain's.
func parts(own, preset *DomainSpec) (all []part) {
	was := own.DeepCopy()
	for _, path := range PresetFields() {
		had, wanted := fieldAt(was, path).Interface(), fieldAt(preset, path).Interface()
		list, isList := wanted.(ResourceList)
		switch {
		case path == "clock.utc":
			all = append(all, clockOffset(own, preset.Clock)...)
		case path == "clock.timezone": // clock.utc's part has it
		case isList:
			all = append(all, quantities(path, fieldAt(own, path).Addr().Interface().(*ResourceList), list)...)
		case !isUnset(wanted):
			p := part{path: "spec.domain." + path, wanted: asJSON(wanted)}
			p.take = func() { fieldAt(own, path).Set(reflect.ValueOf(wanted)) }
			if !isUnset(had) {
				p.had = asJSON(had)
			}
			all = append(all, p)
		}
	}
	return all
}

// fieldAt returns a field of a domain by its path. It makes the structs on the way that are not there.
func fieldAt(d *DomainSpec, path string) reflect.Value {
	value := reflect.ValueOf(d)
	for name := range strings.SplitSeq(path, ".") {
		if value.Kind() == reflect.Pointer {
			if value.IsNil() {
				value.Set(reflect.New(value.Type().Elem()))
			}
			value = value.Elem()
		}
		i := 0
		for jsonName(value.Type().Field(i)) != name {
			i++
		}
		value = value.Field(i)
	}
	return value
}

// clockOffset returns the part of a clock that utc and timezone say together: a clock has one of them. An empty utc
// wins over a time zone, because it says that the clock shows UTC; otherwise it is no value.
func clockOffset(domain *DomainSpec, preset *Clock) []part {
	if isUnset(preset.UTC) && preset.Timezone == "" {
		return nil
	}
	p := part{path: "spec.domain.clock", wanted: asJSON(Clock{UTC: preset.UTC, Timezone: preset.Timezone}), take: func() {
		domain.Clock = cmp.Or(domain.Clock, &Clock{})
		domain.Clock.UTC, domain.Clock.Timezone = preset.UTC, preset.Timezone
	}}
	own := ptr.Deref(domain.Clock, Clock{})
	if !isUnset(own.UTC) || own.Timezone != "" || own.UTC != nil && preset.Timezone != "" {
		p.had = asJSON(Clock{UTC: own.UTC, Timezone: own.Timezone})
	}
	return []part{p}
}

// jsonName returns a field's name in JSON.
func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// isUnset reports whether a value is no value: an empty object is none.
func isUnset(value any) bool {
	v := reflect.ValueOf(value)
	return v.IsZero() || v.Kind() == reflect.Pointer && v.Elem().IsZero()
}

// quantities returns the parts of a list of resources.
func quantities(path string, own *ResourceList, preset ResourceList) []part {
	var all []part
	for _, name := range slices.Sorted(maps.Keys(preset)) {
		wanted := preset[name]
		p := part{path: fmt.Sprintf("spec.domain.%s[%s]", path, name), wanted: wanted.String(), take: func() {
			if *own == nil {
				*own = ResourceList{}
			}
			(*own)[name] = wanted
		}}
		if had, ok := (*own)[name]; ok {
			p.had = had.String()
		}
		all = append(all, p)
	}
	return all
}

// asJSON returns a value as JSON, in which equal quantities are equal.
func asJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // it came as JSON
	}
	return string(text)
}

// shortened bounds a value of a tenant's in a message.
func shortened(text string) string {
	const most = 100
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}
