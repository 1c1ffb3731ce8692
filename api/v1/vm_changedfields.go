package v1

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// FieldChange is a field of a VirtualMachine's template that is not as the running guest has it.
//
// +kubebuilder:object:generate=false
type FieldChange struct {
	// Path below the template's spec, such as domain.cpu.cores or domain.devices.disks[data].serial. An entry of a list is
	// named if it has a name.
	Path string
	// Was is what the guest has, and Is what the template says, as JSON; empty where there is nothing.
	Was, Is string
	// Why the guest does not follow, where it follows other changes of the field; else empty.
	Why string
}

// FieldChanges are several of them.
//
// +kubebuilder:object:generate=false
type FieldChanges []FieldChange

// String returns the first of the changes, and how many more there are.
func (all FieldChanges) String() string {
	const most = 8
	var texts []string
	why := ""
	for _, c := range all[:min(len(all), most)] {
		if c.Why != "" && c.Why == why {
			c.Why = "likewise"
		} else {
			why = c.Why
		}
		texts = append(texts, c.String())
	}
	if more := len(all) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

// String returns the change as a person reads it. Values are left out that may be secrets: a volume may hold a script
// with a password, and the kernel's arguments a key.
func (c FieldChange) String() string {
	if c.Why != "" {
		return c.values() + " (" + cutText(c.Why, maxWhy) + ")"
	}
	return c.values()
}

// maxWhy is how many bytes a reason may have: part of it may be a node's word.
const maxWhy = 256

// cutText returns a text, of which it cuts off what exceeds most bytes.
func cutText(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// values returns the path with both values, where they may be shown.
func (c FieldChange) values() string {
	switch {
	case c.Was == "" && c.Is == "":
		return c.Path
	case c.Was == "":
		return c.Path + " is new"
	case c.Is == "":
		return c.Path + " is gone"
	case !c.isPublic(c.Was) || !c.isPublic(c.Is):
		return c.Path
	}
	return fmt.Sprintf("%s: %s → %s", c.Path, strings.Trim(c.Was, `"`), strings.Trim(c.Is, `"`))
}

// isPublic reports whether a value may be shown: numbers and switches, and short words of a few fields.
func (c FieldChange) isPublic(value string) bool {
	const longest = 40
	var number json.Number
	if value == "true" || value == "false" || json.Unmarshal([]byte(value), &number) == nil && value[0] != '"' {
		return true
	}
	if len(value) > longest || value[0] != '"' {
		return false
	}
	for _, prefix := range []string{"domain.cpu.", "domain.memory.", "domain.resources.", "domain.machine."} {
		if strings.HasPrefix(c.Path, prefix) {
			return true
		}
	}
	for _, suffix := range []string{".bus", ".model", ".cache", ".claimName", ".dataVolume.name"} {
		if strings.HasSuffix(c.Path, suffix) {
			return true
		}
	}
	return false
}

// changes returns the fields in which parts of the guest that would be started now differ from those of the
// VirtualMachineInstance that runs. A part that only says in other words what the guest has is left out. config is the
// cluster's configuration. changes does not know which fields an instancetype, a preference or a preset fills in. With
// one of them, it compares only the fields that the template itself sets, and names a part without one.
func (vm *VirtualMachine) changes(vmi *VirtualMachineInstance, config *KubeVirtConfiguration,
	paths []string) FieldChanges {
	if len(paths) == 0 {
		return nil
	}
	// With absent interfaces alone, Draft says that the guest gets no other one in their place.
	const autoattach = "domain.devices.autoattachPodInterface"
	isOfInterface := func(path string) bool { return strings.HasPrefix(path, interfacesPath) }
	if slices.ContainsFunc(paths, isOfInterface) && !slices.Contains(paths, autoattach) {
		paths = append(slices.Clone(paths), autoattach)
	}
	made := vm.Draft(false)
	if !vm.NamesMachine() && !vmi.namedMachine() {
		made.Spec.Domain.Machine = vmi.Spec.Domain.Machine // the VM's own, which its first start has found out
	}
	partly := vm.Spec.Instancetype != nil || vm.Spec.Preference != nil || vmi.hasPresets()
	if !partly {
		if config == nil {
			config = &KubeVirtConfiguration{}
		}
		vm.Identify(made, config)
		Default(made)
	}
	was, is, tree := vmi.Spec.values(), made.Spec.values(), treeOf(&made.Spec)
	var changes FieldChanges
	for _, path := range paths {
		before := len(changes)
		old, had := was[path]
		now, has := is[path]
		if had || has {
			compareTrees(path, old, now, partly, &changes)
		}
		switch {
		case len(changes) > before, !partly && (had || has), had && has && reflect.DeepEqual(old, now):
		case had || has, path == partInstancetype, path == partPreference:
			changes = append(changes, FieldChange{Path: path})
		case len(named(lookup(tree, strings.Split(path, ".")))) > 0:
			changes = append(changes, FieldChange{Path: path, Why: "the order of its entries"})
		}
	}
	return changes
}

// namedMachine reports whether the template named a machine type when the guest was started.
func (vmi *VirtualMachineInstance) namedMachine() bool {
	made, _ := vmi.madeFrom()
	hash := made.hashes["domain.machine"]
	return hash != "" && hash != shortHash(treeOf(&Machine{}))
}

// values returns the parts of a spec by their paths.
func (s *VirtualMachineInstanceSpec) values() map[string]any {
	out := map[string]any{}
	for _, part := range s.split() {
		out[part.path] = part.value
	}
	return out
}

// RestartAdvice returns the command that starts the VirtualMachine's guest anew. It advises to delete the
// VirtualMachineInstance only where the run strategy makes another one; elsewhere the guest would stay stopped.
func (vm *VirtualMachine) RestartAdvice() string {
	advice := "virtctl restart " + vm.Name
	if s := vm.Strategy(); s == RunStrategyAlways || s == RunStrategyOnce {
		advice += ", or kubectl delete vmi " + vm.Name
	}
	return advice
}

// hasPresets reports whether presets were applied to the VirtualMachineInstance.
func (vmi *VirtualMachineInstance) hasPresets() bool {
	for key := range vmi.Annotations {
		if strings.HasPrefix(key, PresetAnnotation) {
			return true
		}
	}
	return false
}

// compareTrees adds the differences of two trees. partly leaves out what only the old one has.
func compareTrees(path string, was, is any, partly bool, changes *FieldChanges) {
	old, now, both := objects(was, is)
	before, list := was.([]any)
	after, listed := is.([]any)
	switch {
	case reflect.DeepEqual(was, is):
	case !both && list && listed && len(before) == len(after): // entries without names
		for i := range before {
			compareTrees(fmt.Sprintf("%s[%d]", path, i), before[i], after[i], partly, changes)
		}
	case !both:
		// The name of a claim is compared elsewhere (VolumeUpdates), and empty here on one side.
		named := !strings.HasSuffix(path, ".claimName") || was != "" && is != ""
		if (is != nil || !partly) && named {
			*changes = append(*changes, FieldChange{Path: path, Was: leaf(was), Is: leaf(is)})
		}
	default:
		keys := map[string]bool{}
		for key := range old {
			keys[key] = true
		}
		for key := range now {
			keys[key] = true
		}
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			below := strings.TrimPrefix(path+"."+key, ".")
			if strings.HasPrefix(key, "[") {
				below = path + key
			}
			compareTrees(below, old[key], now[key], partly, changes)
		}
	}
}

// objects returns two values as objects. A list whose entries have names is an object by these names.
func objects(was, is any) (old, now map[string]any, both bool) {
	old, was1 := object(was)
	now, is1 := object(is)
	return old, now, was1 && is1
}

func object(value any) (map[string]any, bool) {
	switch v := value.(type) {
	case map[string]any:
		return v, true
	case []any:
		out := map[string]any{}
		for _, entry := range v {
			fields, ok := entry.(map[string]any)
			name, named := fields["name"].(string)
			if !ok || !named {
				return nil, false
			}
			out["["+name+"]"] = entry
		}
		return out, true
	}
	return nil, false
}

// leaf returns a value as JSON, or an empty text for none.
func leaf(value any) string {
	text, err := json.Marshal(value)
	if err != nil || string(text) == "null" {
		return ""
	}
	return string(text)
}
