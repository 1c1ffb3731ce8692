// Package golden holds the manifests of a folder against the QEMU arguments that were recorded
// of them. The golden of web.yaml is web.args, beside it: for each VMI of the file a heading
// and one argument a line.
package golden

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kubeqemu/kubeqemu/qemuargs/compare"
	"github.com/kubeqemu/kubeqemu/qemuargs/manifest"
)

// Extension is that of a golden file.
const Extension = ".args"

// Result is how one object differs from its golden.
type Result struct {
	Golden string // the file
	Object string // such as VirtualMachine default/web
	// New: the golden has nothing of the object. Gone: the manifests have no such object.
	New, Gone bool
	Changes   []compare.Change
}

// String is the result as a reviewer reads it.
func (r Result) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s: %s\n", r.Golden, r.Object)
	switch {
	case r.New:
		s.WriteString("  is new: there is no golden of it\n")
	case r.Gone:
		s.WriteString("  is gone: there is a golden of it, and no manifest\n")
	}
	for _, c := range r.Changes {
		for line := range strings.Lines(c.String()) {
			s.WriteString("  " + line)
		}
	}
	return s.String()
}

// Check resolves all manifests below dir on a host, and returns the objects that differ from
// their goldens. Instancetypes and preferences may stand in any file below dir.
func Check(dir string, host manifest.Host) ([]Result, error) {
	now, err := render(dir, host)
	if err != nil {
		return nil, err
	}
	before, err := read(dir)
	if err != nil {
		return nil, err
	}
	if len(now)+len(before) == 0 {
		return nil, fmt.Errorf("%s: %w", dir, manifest.ErrNone)
	}
	var results []Result
	for _, file := range slices.Sorted(maps.Keys(union(now, before))) {
		results = append(results, differences(file, before[file], now[file])...)
	}
	return results, nil
}

// Compare resolves the manifests of a file or folder on a host, and those of another on
// another host, and returns the objects that differ. Objects are the same by kind, namespace
// and name. Where both sides have one object, the two are compared, whatever their names.
func Compare(a string, hostA manifest.Host, b string, hostB manifest.Host) ([]Result, error) {
	before, err := objects(a, hostA)
	if err != nil {
		return nil, err
	}
	now, err := objects(b, hostB)
	if err != nil {
		return nil, err
	}
	if len(before) == 1 && len(now) == 1 {
		before[0].object = now[0].object
	}
	return differences(b, before, now), nil
}

// objects returns the arguments of all objects of a file or folder.
func objects(name string, host manifest.Host) (sections, error) {
	rendered, err := render(name, host)
	var all sections
	for _, file := range slices.Sorted(maps.Keys(rendered)) {
		all = append(all, rendered[file]...)
	}
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("%s: %w", name, manifest.ErrNone)
	}
	return all, err
}

// Update writes the goldens of all manifests below dir, and removes goldens without a
// manifest. It returns the files that have changed.
func Update(dir string, host manifest.Host) ([]string, error) {
	now, err := render(dir, host)
	if err != nil {
		return nil, err
	}
	before, err := read(dir)
	if err != nil {
		return nil, err
	}
	var changed []string
	for _, file := range slices.Sorted(maps.Keys(union(now, before))) {
		text := now[file].text()
		switch old, err := os.ReadFile(file); {
		case len(now[file]) == 0 && !before[file].ours():
			continue // somebody else's file
		case len(now[file]) == 0:
			if err := os.Remove(file); err != nil {
				return changed, err
			}
		case err == nil && bytes.Equal(old, text):
			continue
		case err == nil || errors.Is(err, fs.ErrNotExist):
			if err := os.WriteFile(file, text, 0o644); err != nil {
				return changed, err
			}
		default:
			return changed, err
		}
		changed = append(changed, file)
	}
	return changed, nil
}

// section is the arguments of one object.
type section struct {
	object string
	args   []compare.Argument
}

type sections []section

func (s sections) text() []byte {
	var b bytes.Buffer
	for i, one := range s {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "# %s\n", one.object)
		for _, a := range one.args {
			fmt.Fprintln(&b, a)
		}
	}
	return b.Bytes()
}

// ours says whether the sections are of objects, as in a golden.
func (s sections) ours() bool {
	return len(s) > 0 && !slices.ContainsFunc(s, func(one section) bool { return !manifest.IsObject(one.object) })
}

func (s sections) of(object string) (section, bool) {
	i := slices.IndexFunc(s, func(one section) bool { return one.object == object })
	if i < 0 {
		return section{}, false
	}
	return s[i], true
}

func union(a, b map[string]sections) map[string]sections {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

func differences(file string, before, now sections) []Result {
	var results []Result
	for _, n := range now {
		old, ok := before.of(n.object)
		if r := (Result{Golden: file, Object: n.object, New: !ok}); r.New {
			results = append(results, r)
		} else if r.Changes = compare.Diff(old.args, n.args); len(r.Changes) > 0 {
			results = append(results, r)
		}
	}
	for _, old := range before {
		if _, ok := now.of(old.object); !ok {
			results = append(results, Result{Golden: file, Object: old.object, Gone: true})
		}
	}
	return results
}

// render returns the goldens as they would be written now, by file.
func render(dir string, host manifest.Host) (map[string]sections, error) {
	set, err := manifest.Open([]string{dir}, nil)
	if err != nil {
		return nil, err
	}
	instances, err := set.Instances()
	problems := []error{err}
	found := map[string]sections{}
	for _, i := range instances {
		machine, err := i.Machine(host)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		file := strings.TrimSuffix(i.Document.File, filepath.Ext(i.Document.File)) + Extension
		if _, twice := found[file].of(i.Object()); twice {
			problems = append(problems, fmt.Errorf("%s: %s stands there twice", i.Document.File, i.Object()))
			continue
		}
		found[file] = append(found[file], section{i.Object(), compare.Arguments(machine.Args())})
	}
	return found, errors.Join(problems...)
}

// read returns the goldens below dir, by file.
func read(dir string) (map[string]sections, error) {
	found := map[string]sections{}
	err := filepath.WalkDir(dir+string(filepath.Separator), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != Extension {
			return err
		}
		data, err := os.ReadFile(path)
		if err == nil {
			found[path], err = parse(string(data))
		}
		if err != nil {
			return fmt.Errorf("read golden %s: %w", path, err)
		}
		return nil
	})
	return found, err
}

func parse(text string) (sections, error) {
	var out sections
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		object, heading := strings.CutPrefix(line, "# ")
		switch {
		case line == "":
		case heading:
			out = append(out, section{object: object})
		case len(out) == 0 || !strings.HasPrefix(line, "-"):
			return nil, fmt.Errorf("%q is neither an argument nor a heading", line)
		default:
			last := &out[len(out)-1]
			last.args = append(last.args, compare.Argument(line))
		}
	}
	return out, nil
}
