package v1

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestNotYetIsWhatIsRefused: the column "not yet" of docs/api.md names each field that a VMI may not have yet, and no other.
func TestNotYetIsWhatIsRefused(t *testing.T) {
	page, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## VirtualMachineInstance\n")
	section, _, _ = strings.Cut(section, "\n## ")
	said, word := map[string]bool{}, regexp.MustCompile("`([A-Za-z]+)`")
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 5 { // three cells between four bars
			continue
		}
		for _, match := range word.FindAllStringSubmatch(cells[3], -1) {
			said[match[1]] = true
		}
	}
	refused := map[string]bool{}
	laterFields(reflect.TypeFor[VirtualMachineInstanceSpec](), map[reflect.Type]bool{}, refused)
	if len(refused) < 10 {
		t.Fatalf("found %d refused fields alone", len(refused))
	}
	if got, want := slices.Sorted(maps.Keys(said)), slices.Sorted(maps.Keys(refused)); !slices.Equal(got, want) {
		t.Errorf("docs/api.md says that Kubeqemu lacks yet\n%q, and the code refuses\n%q", got, want)
	}
}

// laterFields adds the JSON names of the fields below a type that are not supported yet.
func laterFields(of reflect.Type, known map[reflect.Type]bool, found map[string]bool) {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || known[of] {
		return
	}
	known[of] = true
	for i := range of.NumField() {
		f := of.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		_, later := f.Tag.Lookup(laterTag)
		switch f.Type {
		case reflect.TypeFor[*Unsupported](), reflect.TypeFor[UnsupportedList](), reflect.TypeFor[UnsupportedString](), reflect.TypeFor[UnsupportedBool]():
			later = true
		}
		if later {
			found[name] = true
			continue
		}
		laterFields(f.Type, known, found)
	}
}

// TestNoPageAsksForCDI: Kubeqemu fills DataVolumes itself, so neither a page nor kubectl explain says that they need CDI alone.
func TestNoPageAsksForCDI(t *testing.T) {
	claims := regexp.MustCompile(`(?i)\b(needs CDI|CDI must be installed|requires CDI|only with CDI|install CDI first)\b`)
	seen := 0
	for _, root := range []string{"../../docs", "../../config/crd", "../../README.md", "../../CONTRIBUTING.md"} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !slices.Contains([]string{".md", ".yaml"}, filepath.Ext(path)) {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			seen++
			// A sentence may go on in the next line.
			if said := claims.FindString(strings.Join(strings.Fields(string(text)), " ")); said != "" {
				t.Errorf("%s says %q", path, said)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen < 30 {
		t.Errorf("read %d files alone", seen)
	}
}
