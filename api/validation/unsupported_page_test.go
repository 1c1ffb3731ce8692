package validation

import (
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestNotYetIsWhatIsRefused: the column "not yet" of docs/api.md names each field that a VMI may not have yet in the
// row of its place, and no other field.
func TestNotYetIsWhatIsRefused(t *testing.T) {
	page, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## VirtualMachineInstance\n")
	section, _, _ = strings.Cut(section, "\n## ")
	said, word := map[string]bool{}, regexp.MustCompile("`([A-Za-z]+)`")
	for line := range strings.Lines(section) {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 5 { // three cells between four bars
			t.Fatalf("a row of %d cells: %s", len(cells)-2, line)
		}
		for _, match := range word.FindAllStringSubmatch(cells[3], -1) {
			said[strings.Trim(cells[1], " `")+": "+match[1]] = true
		}
	}
	refused := map[string]bool{}
	laterFields(reflect.TypeFor[v1.VirtualMachineInstanceSpec](), nil, func(path []string) {
		refused[rowOf(path)+": "+path[len(path)-1]] = true
	})
	if len(refused) < 10 {
		t.Fatalf("found %d refused fields alone", len(refused))
	}
	if got, want := slices.Sorted(maps.Keys(said)), slices.Sorted(maps.Keys(refused)); !slices.Equal(got, want) {
		t.Errorf("docs/api.md says that Kubeqemu lacks yet\n%q, and the code refuses\n%q", got, want)
	}
}

// rowOf returns the row of docs/api.md that a field of a VMI's spec belongs to.
func rowOf(path []string) string {
	switch {
	case path[0] == "resourceClaims":
		return "placement"
	case path[0] == "utilityVolumes":
		return "volumes"
	case path[0] != "domain":
		return path[0]
	case path[1] != "devices":
		return "domain." + path[1]
	case len(path) > 3:
		return "devices." + path[2]
	}
	return "other devices"
}

// laterFields calls found with the path of each field below a type that is not supported yet, by its JSON names.
func laterFields(of reflect.Type, path []string, found func(path []string)) {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || of.PkgPath() != reflect.TypeFor[v1.Disk]().PkgPath() {
		return
	}
	for i := range of.NumField() {
		f := of.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		here := append(slices.Clone(path), name)
		if strings.Contains(options, "inline") {
			here = path
		}
		_, later := f.Tag.Lookup(laterTag)
		switch f.Type {
		case reflect.TypeFor[*v1.Unsupported](), reflect.TypeFor[v1.UnsupportedList](),
			reflect.TypeFor[v1.UnsupportedString](), reflect.TypeFor[v1.UnsupportedBool]():
			later = true
		}
		if later {
			found(here)
			continue
		}
		laterFields(f.Type, here, found)
	}
}
