//go:build long

package resolve

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	kjson "sigs.k8s.io/json"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// breeder makes manifests out of the catalogue's: it crosses two, and changes values.
type breeder struct {
	*rand.Rand
	vmis  []map[string]any
	hosts []Host // of the VMI with the same index
}

func newBreeder(t *testing.T, seed uint64) *breeder {
	b := &breeder{Rand: rand.New(rand.NewPCG(seed, 0))}
	for _, dir := range cases(t, machineCases) {
		tree := map[string]any{}
		_, host := load(t, dir, hosts[0])
		read(t, filepath.Join(dir, "vmi.yaml"), &tree)
		b.vmis, b.hosts = append(b.vmis, tree), append(b.hosts, host)
	}
	return b
}

// child returns a manifest with something of two, and at most two values changed; and the facts of
// both.
func (b *breeder) child() (map[string]any, Host) {
	mother, father := b.IntN(len(b.vmis)), b.IntN(len(b.vmis))
	tree := clone(b.vmis[mother]).(map[string]any)
	b.cross(tree, clone(b.vmis[father]).(map[string]any), 0)
	for range b.IntN(3) {
		b.change(tree)
	}
	host := b.hosts[mother]
	host.ContainerDisks = union(b.hosts[father].ContainerDisks, host.ContainerDisks)
	host.Claims = union(b.hosts[father].Claims, host.Claims)
	host.NICs = union(b.hosts[father].NICs, host.NICs)
	if host.Kernel == nil {
		host.Kernel = b.hosts[father].Kernel
	}
	return tree, host
}

func union[V any](a, b map[string]V) map[string]V {
	all := map[string]V{}
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}

func clone(value any) any {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // it was read from YAML
	}
	var copied any
	if err := json.Unmarshal(text, &copied); err != nil {
		panic(err)
	}
	return copied
}

// cross takes some fields of from into a tree. Lists of both are put together, now and then.
func (b *breeder) cross(into, from map[string]any, depth int) {
	for _, key := range slices.Sorted(maps.Keys(from)) {
		ours, isMap := into[key].(map[string]any)
		theirs, both := from[key].(map[string]any)
		list, isList := into[key].([]any)
		more, _ := from[key].([]any)
		switch {
		case isMap && both && depth < 4:
			b.cross(ours, theirs, depth+1)
		case isList && b.IntN(2) == 0:
			into[key] = joined(list, more)
		case b.IntN(3) == 0:
			into[key] = from[key]
		}
	}
}

// joined returns a list and those elements of another whose names it does not have.
func joined(list, more []any) []any {
	name := func(element any) any {
		fields, _ := element.(map[string]any)
		return fields["name"]
	}
	for _, element := range more {
		if !slices.ContainsFunc(list, func(other any) bool { return name(other) == name(element) }) {
			list = append(list, element)
		}
	}
	return list
}

// change changes one value, somewhere below the spec.
func (b *breeder) change(tree map[string]any) {
	spec, ok := tree["spec"].(map[string]any)
	for ok && len(spec) > 0 {
		keys := slices.Sorted(maps.Keys(spec))
		key := keys[b.IntN(len(keys))]
		next := spec[key]
		if list, isList := next.([]any); isList && len(list) > 0 {
			i := b.IntN(len(list))
			if below, isMap := list[i].(map[string]any); isMap && b.IntN(5) > 0 {
				spec = below
				continue
			}
			list[i] = b.value(list[i])
			return
		}
		if below, isMap := next.(map[string]any); isMap && b.IntN(5) > 0 {
			spec = below
			continue
		}
		if b.IntN(4) == 0 {
			delete(spec, key)
		} else {
			spec[key] = b.value(next)
		}
		return
	}
}

// value returns another value than old: mostly of the same type.
func (b *breeder) value(old any) any {
	texts := []string{"", "a,b", "x\n-y", "virtio", "sata", "scsi", "usb", "q35", "pc-q35-7.2", "host-model", "Haswell", "64Mi", "1", "-1", "9Ei", "0.5",
		strings.Repeat("long", 20), "00:00:00:00:00:00", "../..", "Ünï", "\x00", "default"}
	numbers := []float64{0, 1, 2, 3, 5, 64, 255, 256, 4096, -1, 1 << 31, 1 << 32, 1 << 53, 1.5}
	switch old := old.(type) {
	case string:
		if b.IntN(8) > 0 {
			return texts[b.IntN(len(texts))]
		}
	case bool:
		return !old
	case float64:
		if b.IntN(8) > 0 {
			return numbers[b.IntN(len(numbers))]
		}
	}
	return []any{nil, "", 1.0, true, []any{}, map[string]any{}, []any{old, old}, map[string]any{"name": old}}[b.IntN(8)]
}

// TestManyManifests: each of 100,000 manifests gets errors that name a field, or arguments. QEMU
// takes the arguments of 200 of them. This QEMU can start no machine of arm64 and none that needs a
// device of the node: of these the goldens are tested, by TestARM64Starts and TestGoldensStart.
func TestManyManifests(t *testing.T) {
	const inputs, starts = 100_000, 200
	b := newBreeder(t, 20261123)
	both := qemus(t)
	var refused, undecoded, resolved, startable, started int
	for n := range inputs {
		tree, host := b.child()
		text, err := json.Marshal(tree)
		if err != nil {
			t.Fatal(err)
		}
		vmi := &v1.VirtualMachineInstance{}
		if strict, err := kjson.UnmarshalStrict(text, vmi); err != nil || len(strict) > 0 {
			undecoded++ // package manifest's errors name the field
			continue
		}
		q := both[n%len(both)]
		host.Accelerator, host.QEMUVersion = qemuargs.TCG, q.version
		machine, errs := Machine(vmi, host)
		for _, err := range errs {
			if !strings.HasPrefix(err.Field, "spec.") && !strings.HasPrefix(err.Field, "metadata.") {
				t.Fatalf("an error that names no field: %v\n%s", err, text)
			}
		}
		if len(errs) > 0 {
			refused++
			continue
		}
		resolved++
		if isForeign(machine) || lacksDevice(machine) != "" {
			continue
		}
		startable++
		// Not the first 200, which may be alike.
		if started < starts && startable%50 == 0 {
			started++
			ok := t.Run(fmt.Sprint(n), func(t *testing.T) { startStopped(t, q, machine) })
			if !ok {
				t.Logf("the manifest was %s", text)
			}
		}
	}
	t.Logf("%d manifests: %d are no VMI, %d refused, %d have arguments, QEMU started with %d", inputs, undecoded, refused, resolved, started)
	if started < starts || refused < inputs/20 || resolved < inputs/20 {
		t.Error("the manifests are too much alike")
	}
}
