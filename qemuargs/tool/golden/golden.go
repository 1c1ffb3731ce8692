// Package golden holds the manifests of a folder against the QEMU arguments that were recorded
// of them. The golden of web.yaml is web.args, beside it: for each VMI of the file a heading
// and one argument a line.
package golden

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kubeqemu/kubeqemu/qemuargs/tool/compare"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/manifest"
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

// String returns the result as a reviewer reads it.
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

// Side is the manifests of a file or folder, and the host that resolves them. Instancetypes and preferences may
// stand in any file of a folder.
type Side struct {
	name string
	host manifest.Host
	set  manifest.Set
}

// Open reads the manifests of a file or folder. manifest.Stdin stands for stdin, unless stdin is nil.
func Open(name string, host manifest.Host, stdin io.Reader) (Side, error) {
	set, err := manifest.Open([]string{name}, stdin)
	return Side{name: name, host: host, set: set}, err
}

// Warnings returns what the manifests hold and nobody reads.
func (s Side) Warnings() []string { return s.set.Warnings() }

// Check resolves all manifests of a side, and returns the objects that differ from their goldens.
func Check(side Side) ([]Result, error) {
	now, err := side.render()
	if err != nil {
		return nil, err
	}
	before, broken, err := read(side.name)
	if err != nil {
		return nil, err
	}
	if len(now)+len(before) == 0 {
		return nil, fmt.Errorf("%s: %w", side.name, manifest.ErrNone)
	}
	var results []Result
	for _, file := range slices.Sorted(maps.Keys(union(now, before))) {
		if err := broken[file]; err != nil && now[file] != nil {
			return nil, err
		}
		results = append(results, differences(file, before[file], now[file])...)
	}
	return results, nil
}

// Compare resolves the manifests of two sides, and returns the objects that differ. Objects are the same by kind,
// namespace and name; of several such objects those whose files have the same path are compared first.
// Where both sides have one object, the two are compared, whatever their names.
func Compare(a, b Side) ([]Result, error) {
	before, err := a.objects()
	if err != nil {
		return nil, err
	}
	now, err := b.objects()
	if err != nil {
		return nil, err
	}
	if len(before) == 1 && len(now) == 1 {
		before[0].object, before[0].file = now[0].object, now[0].file
	}
	return differences(b.name, before, now), nil
}

// objects returns the arguments of all objects of a side.
func (s Side) objects() (sections, error) {
	rendered, err := s.render()
	var all sections
	for _, file := range slices.Sorted(maps.Keys(rendered)) {
		// Both are made from name, so that one is below the other.
		relative, _ := filepath.Rel(s.name, file)
		for _, one := range rendered[file] {
			one.file = relative
			all = append(all, one)
		}
	}
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("%s: %w", s.name, manifest.ErrNone)
	}
	return all, err
}

// Update writes the goldens that Check finds to differ or cannot read, and removes goldens
// without a manifest. It returns the files that have changed.
func Update(side Side) ([]string, error) {
	now, err := side.render()
	if err != nil {
		return nil, err
	}
	before, broken, err := read(side.name)
	if err != nil {
		return nil, err
	}
	var changed []string
	for _, file := range slices.Sorted(maps.Keys(union(now, before))) {
		switch {
		case len(now[file]) == 0 && !before[file].ours():
			continue // somebody else's file
		case len(now[file]) == 0:
			err = os.Remove(file)
		case broken[file] == nil && len(differences(file, before[file], now[file])) == 0:
			continue
		default:
			err = os.WriteFile(file, now[file].text(), 0o644)
		}
		if err != nil {
			return changed, err
		}
		changed = append(changed, file)
	}
	return changed, nil
}

// section is the arguments of one object.
type section struct {
	object string
	file   string // of Compare: the path below the folder
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

// ours reports whether the sections are of objects, as in a golden.
func (s sections) ours() bool {
	return len(s) > 0 && !slices.ContainsFunc(s, func(one section) bool { return !manifest.IsObject(one.object) })
}

func union(a, b map[string]sections) map[string]sections {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

func differences(file string, before, now sections) []Result {
	left := slices.Clone(before)
	take := func(same func(section) bool) (section, bool) {
		i := slices.IndexFunc(left, same)
		if i < 0 {
			return section{}, false
		}
		found := left[i]
		left = slices.Delete(left, i, i+1)
		return found, true
	}
	old := make(map[int]section, len(now))
	for i, n := range now {
		if s, ok := take(func(s section) bool { return s.object == n.object && s.file == n.file }); ok {
			old[i] = s
		}
	}
	var results []Result
	for i, n := range now {
		o, ok := old[i]
		if !ok {
			o, ok = take(func(s section) bool { return s.object == n.object })
		}
		r := Result{Golden: file, Object: n.object, New: !ok}
		if ok {
			r.Changes = compare.Diff(o.args, n.args)
		}
		if r.New || len(r.Changes) > 0 {
			results = append(results, r)
		}
	}
	for _, o := range left {
		results = append(results, Result{Golden: file, Object: o.object, Gone: true})
	}
	return results
}

// render returns the goldens as they would be written now, by file.
func (s Side) render() (map[string]sections, error) {
	instances, err := s.set.Instances()
	problems := []error{err}
	found := map[string]sections{}
	seen := map[string]bool{}
	for _, i := range instances {
		machine, err := i.Machine(s.host)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		file := of(i.Document.File)
		if key := file + "\n" + i.Object(); !seen[key] {
			seen[key] = true
		} else {
			problems = append(problems, fmt.Errorf("%s: %s stands there twice", i.Document.File, i.Object()))
			continue
		}
		found[file] = append(found[file], section{object: i.Object(), args: compare.Arguments(machine.Args())})
	}
	return found, errors.Join(problems...)
}

// read returns the goldens of a folder, or of a manifest's file, and the errors of those that
// cannot be parsed, by file.
func read(name string) (goldens map[string]sections, broken map[string]error, err error) {
	goldens, broken = map[string]sections{}, map[string]error{}
	err = files(name, func(file string) error {
		data, err := manifest.ReadBounded(file)
		if err != nil {
			return fmt.Errorf("read golden: %w", err)
		}
		sections, err := parse(string(data))
		if err != nil {
			broken[file] = fmt.Errorf("read golden %s: %w; --update writes it anew", file, err)
		}
		goldens[file] = sections
		return nil
	})
	return goldens, broken, err
}

// files calls do for the goldens of a folder, or for the golden of a manifest's file.
func files(name string, do func(file string) error) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return manifest.Walk(name, []string{Extension}, do)
	}
	if _, err := os.Stat(of(name)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return do(of(name))
}

// of returns the name of a manifest's golden.
func of(file string) string { return strings.TrimSuffix(file, filepath.Ext(file)) + Extension }

func parse(text string) (sections, error) {
	var out sections
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		object, heading := strings.CutPrefix(line, "# ")
		switch {
		case line == "":
		case heading && seen[object]:
			return nil, fmt.Errorf("%q stands there twice", line)
		case heading:
			seen[object] = true
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
