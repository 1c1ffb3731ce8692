package qemuargs

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// catalogue are the Machines of the goldens.
func catalogue(t *testing.T) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("resolve/testdata/machines/*/machine.json")
	if err != nil || len(files) < 50 {
		t.Fatalf("%d machines: %v", len(files), err)
	}
	found := map[string][]byte{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found[filepath.Base(filepath.Dir(file))] = data
	}
	return found
}

func decode(t *testing.T, data []byte) *Machine {
	t.Helper()
	m := &Machine{}
	if err := json.Unmarshal(data, m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestNoArgumentIsWithoutOrigin: every argument of the catalogue, and every property of one, comes
// from a part of the Machine or has a rule.
func TestNoArgumentIsWithoutOrigin(t *testing.T) {
	for name, data := range catalogue(t) {
		for _, a := range decode(t, data).Args() {
			if from, rule := a.Because(); len(from) == 0 && rule == "" {
				t.Errorf("%s: nothing says why there is %q", name, Strings([]Arg{a}))
			}
			for _, p := range a.Properties() {
				if len(p.From) == 0 && p.Rule == "" {
					t.Errorf("%s: nothing says where %q of %q comes from", name, p.Name, Strings([]Arg{a}))
				}
			}
		}
	}
}

// TestPropertiesAreComplete: the properties together are what QEMU gets.
func TestPropertiesAreComplete(t *testing.T) {
	for name, data := range catalogue(t) {
		for _, a := range decode(t, data).Args() {
			var parts []string
			for _, p := range a.Properties() {
				switch a.Value.(type) {
				case string:
					parts = append(parts, p.Value)
				case Options:
					parts = append(parts, Options{{Key: p.Name, Value: p.Value}}.String())
				default:
					parts = append(parts, fmt.Sprintf("%q:%s", p.Name, p.Value))
				}
			}
			got := strings.Join(parts, ",")
			if a.Value != nil && got != strings.TrimSuffix(strings.TrimPrefix(a.value(), "{"), "}") {
				t.Errorf("%s: %s has the properties %s", name, a.value(), got)
			}
		}
	}
}

// change is one leaf of a Machine that gets another value.
type change struct {
	path        string
	words       string // of what changes, and in what field of the Machine
	apply, undo func()
}

// otherTexts are the values that make a difference to the builder, by type.
var otherTexts = map[string][]string{
	"qemuargs.DiskDriver":      {string(VirtioBlk), string(IDECD), string(SCSIDisk)},
	"qemuargs.ImageFormat":     {string(Raw), string(QCOW2)},
	"qemuargs.VolumeMode":      {"", string(FileVolume), string(BlockVolume)},
	"qemuargs.Accelerator":     {string(KVM), string(TCG)},
	"qemuargs.Display":         {string(VGA), string(Bochs)},
	"qemuargs.BootRestriction": {string(BootStrict)},
	"driver":                   {"e1000", "virtio-net-pci-non-transitional"},
}

// changes are all that can be changed in a part of a Machine. The functions change the value.
func changes(path string, v reflect.Value) []change {
	becomes := func(to reflect.Value) change {
		old := reflect.ValueOf(v.Interface())
		if v.Kind() == reflect.Pointer {
			old = reflect.New(v.Type()).Elem()
			old.Set(v)
		}
		words := fmt.Sprintf("%s: %v to %v", inBraces.ReplaceAllString(path, "[]"), v, to)
		if v.Kind() == reflect.Pointer {
			words = path + " comes or goes"
		}
		return change{path, words, func() { v.Set(to) }, func() { v.Set(old) }}
	}
	set := func(to any) change { return becomes(reflect.ValueOf(to).Convert(v.Type())) }
	switch v.Kind() {
	case reflect.Bool:
		return []change{set(!v.Bool())}
	case reflect.String:
		out := []change{set(v.String() + "x"), set("")}
		field := path[strings.LastIndexByte(path, '.')+1:]
		for _, text := range slices.Concat(otherTexts[v.Type().String()], otherTexts[field]) {
			out = append(out, set(text))
		}
		return out
	case reflect.Int:
		return []change{set(v.Int() + 1), set(0)}
	case reflect.Int64:
		return []change{set(v.Int() + 1<<20), set(0)} // bytes
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		return []change{set(v.Uint() + 1), set(0)}
	case reflect.Pointer:
		if v.IsNil() {
			return []change{becomes(reflect.New(v.Type().Elem()))}
		}
		return append(changes(path, v.Elem()), becomes(reflect.Zero(v.Type())))
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.String && v.Len() > 0 {
			return []change{becomes(reflect.Zero(v.Type()))}
		}
		var out []change
		if path == "numa" && v.Len() > 0 { // the whole memory is one object without nodes
			out = append(out, becomes(reflect.Zero(v.Type())))
		}
		for i := range v.Len() {
			out = append(out, changes(path+"["+entryName(v.Index(i))+"]", v.Index(i))...)
		}
		return out
	case reflect.Struct:
		var out []change
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			below := changes(strings.TrimPrefix(path+"."+name, "."), v.Field(i))
			if text, err := json.Marshal(v.Field(i).Interface()); err == nil && path == "" {
				for j := range below {
					below[j].words += " in " + string(text)
				}
			}
			out = append(out, below...)
		}
		return out
	}
	panic(fmt.Sprintf("%s is of %v", path, v.Type()))
}

// entryName is what a list's entry is named by.
func entryName(v reflect.Value) string {
	for _, field := range []string{"Name", "ID"} {
		if f := v.FieldByName(field); f.IsValid() {
			return f.String()
		}
	}
	panic("no name in " + v.Type().String())
}

// names says whether what comes from a part comes from a field too: the part is the field, or
// one is in the other.
func names(from []string, field string) bool {
	within := func(a, b string) bool { return a == b || strings.HasPrefix(a, b+".") || strings.HasPrefix(a, b+"[") }
	return slices.ContainsFunc(from, func(part string) bool { return within(field, part) || within(part, field) })
}

var (
	// inherits is a socket that QEMU inherits: that of passt.
	inherits = regexp.MustCompile(`^{"type":"fd","str":"\d+"}$`)
	numbers  = regexp.MustCompile(`^((vhost)?fds?|set)$`)
	fdset    = regexp.MustCompile(`/dev/fdset/\d+`)
	digits   = regexp.MustCompile(`\d+`)
	inBraces = regexp.MustCompile(`\[[^]]*\]`)
)

// unnumbered is the property's value without descriptor numbers, which move whenever a device
// comes or goes.
func unnumbered(p Property) string {
	if numbers.MatchString(p.Name) || inherits.MatchString(p.Value) {
		return digits.ReplaceAllString(p.Value, "N")
	}
	return fdset.ReplaceAllString(p.Value, "/dev/fdset/N")
}

// byKey are the arguments by flag, kind and part.
func byKey(args []Arg) map[string]Arg {
	out := map[string]Arg{}
	for _, a := range args {
		key := fmt.Sprintf("%s %T %s %s %s", a.Flag, a.Value, a.Of, a.From, a.Rule)
		if _, twice := out[key]; twice {
			panic(key + " stands there twice")
		}
		out[key] = a
	}
	return out
}

// differences calls say for each argument that comes or goes, and for each property that
// changes, with what both sides say of where it comes from.
func differences(before, after []Arg, say func(what string, from []string)) {
	if len(before) == len(after) && slices.EqualFunc(before, after, func(x, y Arg) bool { return x.Flag == y.Flag }) {
		for i := range before { // a name may have changed
			different(before[i], after[i], say)
		}
		return
	}
	a, b := byKey(before), byKey(after)
	for key := range union(a, b) {
		x, inA := a[key]
		y, inB := b[key]
		if inA && inB {
			different(x, y, say)
			continue
		}
		from, _ := x.Because()
		more, _ := y.Because()
		say(key, append(from, more...))
	}
}

func union[V any](a, b map[string]V) map[string]V {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

func different(x, y Arg, say func(what string, from []string)) {
	if reflect.DeepEqual(x, y) {
		return
	}
	properties := func(a Arg) map[string]Property {
		out := map[string]Property{}
		for _, p := range a.Properties() {
			key := p.Name
			if key == "" && a.Flag == "-cpu" && len(out) > 0 {
				key = p.Value
			}
			out[key] = p
		}
		return out
	}
	a, b := properties(x), properties(y)
	for name := range union(a, b) {
		if unnumbered(a[name]) != unnumbered(b[name]) {
			say(fmt.Sprintf("%s %T %s", x.Flag, x.Value, name), append(a[name].From, b[name].From...))
		}
	}
}

// claims are what the properties of arguments say they come from, with the lists' entries as
// one.
func claims(args []Arg) map[string]bool {
	out := map[string]bool{}
	for _, a := range args {
		for _, p := range a.Properties() {
			for _, from := range p.From {
				out[claim(a.Flag, p.Name, from)] = true
			}
		}
	}
	return out
}

func claim(flag, property, from string) string {
	if flag == "-cpu" && strings.Contains(from, "flags") {
		property = ""
	}
	return flag + " " + property + " from " + inBraces.ReplaceAllString(from, "[]")
}

// TestOriginsAreTrue changes each field of each Machine of the catalogue. Whatever changes of
// the arguments says that it comes from the field; and whatever says that it comes from a field
// changes with that field, in some machine.
func TestOriginsAreTrue(t *testing.T) {
	claimed, seen, done := map[string]bool{}, map[string]bool{}, map[string]int{}
	machines := catalogue(t)
	for _, name := range slices.Sorted(maps.Keys(machines)) {
		m := decode(t, machines[name])
		before := m.Args()
		maps.Copy(claimed, claims(before))
		for _, c := range changes("", reflect.ValueOf(m).Elem()) {
			// The machines have much in common.
			const often = 3
			if c.path == "arch" { // with another architecture the machine has another board, and nothing of it is the same
				continue
			}
			if done[c.words]++; done[c.words] > often {
				continue
			}
			c.apply()
			after := m.Args()
			c.undo()
			differences(before, after, func(what string, from []string) {
				if !names(from, c.path) {
					t.Errorf("%s: with %s, %s changes, which comes from %q", name, c.path, what, from)
				}
				words := strings.Split(what, " ")
				for _, part := range from {
					if names([]string{part}, c.path) {
						seen[claim(words[0], words[len(words)-1], part)] = true
					}
				}
			})
		}
	}
	for _, c := range slices.Sorted(maps.Keys(claimed)) {
		if !seen[c] {
			t.Errorf("nothing shows that it is true: %s", c)
		}
	}
	if len(claimed) < 50 {
		t.Errorf("only %d claims", len(claimed))
	}
}
