// Package hostcpu says which CPUs an accelerator of a node can give guests. It is pure: it reads what a QEMU of that
// node answered (query-cpu-definitions, query-cpu-model-expansion).
package hostcpu

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Base is QEMU's CPU model without features. An expansion of the type static is this model and properties, and means
// the same on each node and in each later QEMU.
const Base = "base"

// Definition is a CPU model that QEMU knows (query-cpu-definitions).
type Definition struct {
	Name string `json:"name"`
	// Alias is another name of the same model; empty for a model's own name.
	Alias string `json:"alias-of"`
	// Unavailable are the features of the model that the node cannot give.
	Unavailable []string `json:"unavailable-features"`
}

// Props are the properties of an expanded CPU model: a bool, a json.Number or a string each.
type Props map[string]any

// Answers are what a QEMU said.
type Answers struct {
	// QEMUVersion is such as 11.1.0.
	QEMUVersion string
	Definitions []Definition
	// Own is all that the accelerator offers: the model host under KVM, and max under TCG.
	Own Props
	// Unmovable is Own with the features that keep a guest on its node, such as invtsc. It may be empty.
	Unmovable Props
	// Models are the models that the node can give, by name.
	Models map[string]Props
	// PhysBits is the width of the node's physical addresses; 0 for a guest that is emulated, which has QEMU's.
	PhysBits int
}

// CPU is what a node can give guests.
type CPU struct {
	// QEMUVersion of the QEMU that said so.
	QEMUVersion string
	// Flags make the model Base the accelerator's own.
	Flags []string
	Told
}

// Told is what the node's labels say.
type Told struct {
	// Accelerator is kvm or tcg: all below is of guests that have it.
	Accelerator string `json:"accelerator,omitempty"`
	// Vendor is Intel, AMD or another name.
	Vendor string `json:"vendor,omitempty"`
	// Models that the node can give, and all features, sorted.
	Models   []string `json:"models,omitempty"`
	Features []string `json:"features,omitempty"`
	// HostModel is the named model that comes nearest to the node's own, and Required what the node's own has besides.
	HostModel string   `json:"hostModel,omitempty"`
	Required  []string `json:"required,omitempty"`
	// HyperV are the interfaces of Hyper-V that KVM has, by KubeVirt's names.
	HyperV []string `json:"hyperv,omitempty"`
	// TSC is unset where guests are emulated.
	TSC *TSC `json:"tsc,omitempty"`
}

// TSC is the time stamp counter of a node.
type TSC struct {
	// Hertz is its frequency.
	Hertz int64 `json:"hertz"`
	// Scalable: the node can give guests another frequency.
	Scalable bool `json:"scalable,omitempty"`
}

// name is what is believed to be the name of a model's feature or property.
var name = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$`)

// printable are the characters of a text that have no meaning in QEMU's arguments, or in the paths of package qemuargs.
var printable = regexp.MustCompile(`[^ -+\--Z^-~]`)

// maxProps bounds what a QEMU is believed: QEMU 11.1 has 415 properties.
const maxProps = 2000

// Read makes a CPU of the answers.
func Read(a Answers) (CPU, error) {
	cpu := CPU{QEMUVersion: a.QEMUVersion}
	if len(a.Own) == 0 || len(a.Own) > maxProps || len(a.Definitions) > maxProps {
		return cpu, fmt.Errorf("QEMU tells of %d properties and %d CPU models", len(a.Own), len(a.Definitions))
	}
	var err error
	if cpu.Flags, err = flags(a.Own); err != nil {
		return cpu, err
	}
	if a.PhysBits != 0 {
		cpu.Flags = append(cpu.Flags, "phys-bits="+strconv.Itoa(a.PhysBits))
	}
	cpu.Vendor = vendor(a.Own)
	own := features(a.Own)
	cpu.Features = union(own, features(a.Unmovable))
	for _, d := range a.Definitions {
		if len(d.Unavailable) == 0 && name.MatchString(d.Name) {
			cpu.Models = append(cpu.Models, d.Name)
		}
	}
	slices.Sort(cpu.Models)
	cpu.HostModel = nearest(a)
	cpu.Required = minus(own, features(a.Models[cpu.HostModel]))
	return cpu, nil
}

// flags returns the properties that differ from Base's, which has no features. They are sorted.
func flags(props Props) (out []string, err error) {
	for key, value := range props {
		if !name.MatchString(key) {
			return nil, fmt.Errorf("QEMU tells of a property %.64q", key)
		}
		switch v := value.(type) {
		case bool:
			if v {
				out = append(out, key+"=on")
			}
		case json.Number:
			n, err := v.Int64()
			if err != nil {
				return nil, fmt.Errorf("read the property %s: %w", key, err)
			}
			out = append(out, key+"="+strconv.FormatInt(n, 10))
		case string:
			if v = printable.ReplaceAllString(v, ""); len(v) <= 64 && v != "" {
				out = append(out, key+"="+v)
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

// features returns the names of the properties that are on, sorted.
func features(props Props) (out []string) {
	for key, value := range props {
		if on, ok := value.(bool); ok && on && name.MatchString(key) {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}

// vendors are libvirt's names, and so KubeVirt's, of what CPUID says.
var vendors = map[string]string{"GenuineIntel": "Intel", "AuthenticAMD": "AMD", "HygonGenuine": "Hygon", "  Shanghai  ": "Zhaoxin", "CentaurHauls": "Centaur"}

func vendor(props Props) string {
	said, _ := props["vendor"].(string)
	return vendors[said]
}

// nearest returns the model that comes nearest to the node's own, of those that the node can give: it has 64 bits if
// the node's own has. Then the vendor counts, family and model, for kernels and users know a processor by these, and
// then how many of the features it has. It has no version where the same model has a name without.
func nearest(a Answers) string {
	best, bestScore := "", [5]int{-1}
	const long = "lm" // the feature of 64 bits
	for _, d := range a.Definitions {
		props, ok := a.Models[d.Name]
		if !ok || len(d.Unavailable) > 0 || d.Name == Base || d.Name == "host" || d.Name == "max" {
			continue
		}
		score := [5]int{0, 0, 0, len(features(props)), 0}
		if same(props, a.Own, long) {
			score[0] = 1
		}
		if same(props, a.Own, "vendor") {
			score[1] = 1
		}
		if same(props, a.Own, "family") {
			score[2]++
			if same(props, a.Own, "model") {
				score[2]++
			}
		}
		if d.Alias != "" {
			score[4] = 1
		}
		c := slices.Compare(score[:], bestScore[:])
		if c > 0 || c == 0 && d.Name < best {
			best, bestScore = d.Name, score
		}
	}
	return best
}

func same(a, b Props, key string) bool {
	return fmt.Sprint(a[key]) == fmt.Sprint(b[key])
}

// union and minus are of sorted lists.
func union(a, b []string) []string {
	out := slices.Concat(a, b)
	slices.Sort(out)
	return slices.Compact(out)
}

func minus(a, b []string) (out []string) {
	for _, s := range a {
		if _, has := slices.BinarySearch(b, s); !has {
			out = append(out, s)
		}
	}
	return out
}

// MaxTold bounds the text of a Told, in bytes: 250 models and 300 features have 10,000.
const MaxTold = 32 << 10

// ReadTold reads the text of a Told, which a node wrote that may be in others' hands.
func ReadTold(text string) (Told, error) {
	var told Told
	if len(text) > MaxTold {
		return told, fmt.Errorf("%d bytes, at most %d are read", len(text), MaxTold)
	}
	if err := json.NewDecoder(strings.NewReader(text)).Decode(&told); err != nil {
		return Told{}, fmt.Errorf("decode: %w", err)
	}
	return told, nil
}
