package resolve

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// ofPlatform are the lists and pointers of a Machine that the arguments of board, CPUs and memory are made of.
var ofPlatform = []string{"numa", "memory"}

// TestEachDeviceOfAMachineHasArguments: what the Machine of a case has, QEMU gets: a device that is no line of
// (*Machine).parts would be lost without a word.
func TestEachDeviceOfAMachineHasArguments(t *testing.T) {
	cases, err := filepath.Glob("testdata/machines/*")
	if err != nil || len(cases) < 50 {
		t.Fatalf("%d cases: %v", len(cases), err)
	}
	for _, dir := range cases {
		vmi, host := load(t, dir, hosts[0])
		m, errs := Machine(vmi, host)
		if len(errs) > 0 {
			continue // the host refuses it
		}
		for _, name := range missingParts(m) {
			t.Errorf("%s: the Machine has %s, and QEMU gets no argument of it", filepath.Base(dir), name)
		}
	}
}

// missingParts returns the devices of a Machine that have no arguments, by their paths.
func missingParts(m *qemuargs.Machine) (missing []string) {
	has := map[string]bool{}
	for _, part := range m.Parts() {
		has[part.Name] = true
	}
	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		var wanted []string
		switch f := v.Field(i); {
		case slices.Contains(ofPlatform, name):
		case f.Kind() == reflect.Pointer && !f.IsNil():
			wanted = append(wanted, name)
		case f.Kind() == reflect.Slice:
			for n := range f.Len() {
				wanted = append(wanted, fmt.Sprintf("%s[%s]", name, nameOf(f.Index(n))))
			}
		}
		for _, part := range wanted {
			if !has[part] {
				missing = append(missing, part)
			}
		}
	}
	return missing
}

// nameOf returns the name of an entry of a list of the Machine.
func nameOf(entry reflect.Value) string {
	for _, field := range []string{"Name", "ID"} {
		if f := entry.FieldByName(field); f.IsValid() {
			return f.String()
		}
	}
	return ""
}

// TestNoTwoDevicesHaveOneSlot: each constant of a slot on the root bus is another slot, and in nobody's range.
func TestNoTwoDevicesHaveOneSlot(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "pciallocator.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	// Slots of which a device takes several.
	last := map[string]int64{"rootPortSlot": 0x05, "ahciSlot": 0x0f, "integratedSlot": lastIntegrated}
	taken := map[int64]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 || !strings.HasSuffix(spec.Names[0].Name, "Slot") {
			return true
		}
		name := spec.Names[0].Name
		first, err := strconv.ParseInt(spec.Values[0].(*ast.BasicLit).Value, 0, 64)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for slot := first; slot <= max(first, last[name]); slot++ {
			if other := taken[slot]; other != "" {
				t.Errorf("%s and %s have the slot %#x", other, name, slot)
			}
			taken[slot] = name
		}
		return true
	})
	if len(taken) < 20 {
		t.Errorf("only %d slots are taken: the constants were not found", len(taken))
	}
}
