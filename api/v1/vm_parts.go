package v1

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// TemplatePartsAnnotation of a VirtualMachineInstance holds the Parts of its VirtualMachine that the guest has: a JSON
// list of PATH=HASH.
const TemplatePartsAnnotation = "kubeqemu.io/template-parts"

// maxParts is how many bytes the annotation may have: those of 250 disks and as many other entries are 26 KiB.
const maxParts = 64 << 10

// Parts are the parts that a guest is made from, in their order: those of the template, the instancetype and the
// preference. Each part has a path, such as domain.cpu.cores or domain.devices.disks[data], and a hash of what the user
// wrote, without defaults. Later versions may default more fields, and must leave a running guest as it is.
//
// +kubebuilder:object:generate=false
type Parts struct {
	paths  []string
	hashes map[string]string
}

// Paths of parts that are not the spec's.
const (
	partLabels       = "metadata.labels"
	partAnnotations  = "metadata.annotations"
	partInstancetype = "instancetype"
	partPreference   = "preference"
)

// Parts returns the VirtualMachine's parts.
func (vm *VirtualMachine) Parts() Parts {
	parts := Parts{hashes: map[string]string{}}
	for _, part := range vm.Spec.Template.Spec.split() {
		parts.set(part.path, shortHash(part.value))
	}
	labels, annotations := vm.madeMetadata()
	if len(labels) > 0 {
		parts.set(partLabels, shortHash(labels))
	}
	if len(annotations) > 0 {
		parts.set(partAnnotations, shortHash(annotations))
	}
	if vm.Spec.Instancetype != nil {
		parts.set(partInstancetype, shortHash(vm.Spec.Instancetype))
	}
	if vm.Spec.Preference != nil {
		parts.set(partPreference, shortHash(vm.Spec.Preference))
	}
	return parts
}

// madeMetadata returns the template's labels and annotations that a guest keeps until its next start. It leaves out the
// annotations that follow into running guests' objects, and the label of a pool's revision, which changes with all of
// the pool's template, and so with what guests have nothing of.
func (vm *VirtualMachine) madeMetadata() (labels, annotations map[string]string) {
	meta := &vm.Spec.Template.ObjectMeta
	labels, annotations = maps.Clone(meta.Labels), maps.Clone(meta.Annotations)
	delete(labels, PoolRevisionLabel)
	for _, key := range DeschedulerAnnotations() {
		delete(annotations, key)
	}
	return labels, annotations
}

// DeschedulerAnnotations returns the annotations of a template that follow into running guests' objects, as in
// KubeVirt: the descheduler reads them on the launcher pod.
func DeschedulerAnnotations() []string {
	return []string{"descheduler.alpha.kubernetes.io/evict", "descheduler.alpha.kubernetes.io/prefer-no-eviction"}
}

// madeFrom returns the parts that the guest of a VirtualMachineInstance has, and reports whether its annotation names
// them.
func (vmi *VirtualMachineInstance) madeFrom() (Parts, bool) {
	parts := Parts{hashes: map[string]string{}}
	var list []string
	// A user who may change the VirtualMachineInstance may write the annotation. So its length is checked first.
	if len(vmi.Annotations[TemplatePartsAnnotation]) > maxParts {
		return parts, false
	}
	if json.Unmarshal([]byte(vmi.Annotations[TemplatePartsAnnotation]), &list) != nil || list == nil {
		return parts, false
	}
	for _, entry := range list {
		at := strings.LastIndexByte(entry, '=')
		if at < 0 {
			return parts, false
		}
		parts.set(entry[:at], entry[at+1:])
	}
	return parts, true
}

// String returns the parts as TemplatePartsAnnotation has them.
func (p Parts) String() string {
	list := make([]string, len(p.paths))
	for i, path := range p.paths {
		list[i] = path + "=" + p.hashes[path]
	}
	text, err := json.Marshal(list)
	if err != nil {
		return "" // a list of strings always has a JSON text
	}
	return string(text)
}

func (p *Parts) set(path, hash string) {
	if _, has := p.hashes[path]; !has {
		p.paths = append(p.paths, path)
	}
	p.hashes[path] = hash
}

// with returns the parts, of which some are as newer ones have them. A new part stands behind the one that is before it
// there.
func (p Parts) with(newer Parts, paths []string) Parts {
	next := Parts{hashes: map[string]string{}}
	for _, path := range p.paths {
		if !slices.Contains(paths, path) {
			next.set(path, p.hashes[path])
		} else if hash, has := newer.hashes[path]; has {
			next.set(path, hash)
		}
	}
	behind := 0
	for _, path := range newer.paths {
		if at := slices.Index(next.paths, path); at >= 0 {
			behind = at + 1
		} else if slices.Contains(paths, path) {
			next.paths = slices.Insert(next.paths, behind, path)
			next.hashes[path] = newer.hashes[path]
			behind++
		}
	}
	return next
}

// since returns the paths of the parts that are not as in older parts. The path of a list, such as
// domain.devices.disks, stands for entries that have changed places.
func (p Parts) since(old Parts) []string {
	var out []string
	for _, path := range p.paths {
		if hash, had := old.hashes[path]; !had || hash != p.hashes[path] {
			out = append(out, path)
		}
	}
	for _, path := range old.paths {
		if _, has := p.hashes[path]; !has {
			out = append(out, path)
		}
	}
	now, before := p.lists(old), old.lists(p)
	for _, list := range slices.Sorted(maps.Keys(now)) {
		if !slices.Equal(now[list], before[list]) {
			out = append(out, list)
		}
	}
	return out
}

// lists returns the entries of each list, in their order. It leaves out those that other parts lack.
func (p Parts) lists(other Parts) map[string][]string {
	out := map[string][]string{}
	for _, path := range p.paths {
		list, entry, isEntry := strings.Cut(path, "[")
		if _, both := other.hashes[path]; both && isEntry && strings.HasSuffix(entry, "]") {
			out[list] = append(out[list], entry)
		}
	}
	return out
}

// specPart is a part of a spec as the user wrote it.
type specPart struct {
	path  string
	value any
}

// split returns the parts of a spec. The claim of a volume is no part, if the volume may go to another one: the status
// says where its disk is (VolumeUpdates). A link's state is a part of its own.
func (s *VirtualMachineInstanceSpec) split() []specPart {
	spec := *s
	spec.Domain.withoutFalse()
	spec.Volumes = slices.Clone(spec.Volumes)
	for i := range spec.Volumes {
		if spec.Volumes[i].updatable() {
			spec.Volumes[i] = spec.Volumes[i].withoutClaim()
		}
	}
	nics := slices.Clone(spec.Domain.Devices.Interfaces)
	for i := range nics {
		if nics[i].State == LinkUp {
			nics[i].State = ""
		}
	}
	spec.Domain.Devices.Interfaces = nics
	return splitTree("", treeOf(&spec))
}

// withoutFalse leaves out the switches by whose false a user says what holds anyway.
func (d *DomainSpec) withoutFalse() {
	for _, off := range []**bool{&d.Devices.DisableHotplug, &d.Resources.OvercommitGuestOverhead} {
		if *off != nil && !**off {
			*off = nil
		}
	}
}

// splitTree returns the parts of a tree of JSON: the fields of the objects that hold others, and the entries of lists
// that have names.
func splitTree(path string, value any) []specPart {
	fields, isObject := value.(map[string]any)
	var out []specPart
	switch {
	case splits(path):
		for _, key := range slices.Sorted(maps.Keys(fields)) {
			out = append(out, splitTree(strings.TrimPrefix(path+"."+key, "."), fields[key])...)
		}
		return out
	case isObject && strings.HasPrefix(path, interfacesPath+"["):
		fields = maps.Clone(fields)
		if state, has := fields["state"]; has {
			out = append(out, specPart{path + linkSuffix, state})
		}
		delete(fields, "state")
		return append(out, specPart{path, fields})
	}
	for _, entry := range named(value) {
		out = append(out, splitTree(path+"["+entry.path+"]", entry.value)...)
	}
	if out == nil {
		out = []specPart{{path, value}}
	}
	return out
}

// splits reports whether each field of the object at a path is a part of its own.
func splits(path string) bool {
	return slices.Contains([]string{"", "domain", "domain.cpu", "domain.memory", "domain.resources", "domain.devices"},
		path)
}

// named returns the entries of a list by their names, or nothing if one has none, or another's.
func named(value any) []specPart {
	list, _ := value.([]any)
	var out []specPart
	for _, entry := range list {
		fields, _ := entry.(map[string]any)
		name, has := fields["name"].(string)
		if !has || slices.ContainsFunc(out, func(p specPart) bool { return p.path == name }) {
			return nil
		}
		out = append(out, specPart{name, entry})
	}
	return out
}

// treeOf returns an object as a tree of JSON. Quantities have one form in it: 1Gi is 1024Mi. Numbers keep their digits.
func treeOf(object any) any {
	text, err := json.Marshal(object)
	if err != nil {
		return nil // it came as JSON
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var tree any
	if decoder.Decode(&tree) != nil {
		return nil
	}
	return tree
}

// shortHash returns a hash of an object as JSON, of 8 hexadecimal digits.
func shortHash(object any) string {
	text, err := json.Marshal(object)
	if err != nil {
		return "" // it came as JSON
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:4])
}
