package golden

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/qemuargs/tool/manifest"
)

const vmi = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: NAME}\nspec: {domain: {memory: {guest: 64Mi}}}\n---\n"

func named(names ...string) string {
	var text strings.Builder
	for _, name := range names {
		text.WriteString(strings.ReplaceAll(vmi, "NAME", name))
	}
	return text.String()
}

// folder makes a folder with files.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		write(t, filepath.Join(dir, name), text)
	}
	return dir
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func side(t *testing.T, name, host string) Side {
	t.Helper()
	h, err := manifest.ParseHost(host)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(name, h, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// said returns the results in short: the object, and + (new), - (gone) or the changed parts.
func said(results []Result) []string {
	var out []string
	for _, r := range results {
		line := r.Object
		switch {
		case r.New:
			line += " +"
		case r.Gone:
			line += " -"
		}
		for _, c := range r.Changes {
			line += " " + c.Part
		}
		out = append(out, line)
	}
	return out
}

// TestUpdateAgreesWithCheck: Update writes the files that Check complains of, and no others;
// after it Check is content.
func TestUpdateAgreesWithCheck(t *testing.T) {
	for name, c := range map[string]struct {
		edit    func(text string) string // of the golden of a.yaml
		broken  bool                     // Check cannot read the golden
		written bool
	}{
		"as it was":                {edit: func(s string) string { return s }},
		"line ends of Windows":     {edit: func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }},
		"empty lines":              {edit: func(s string) string { return strings.ReplaceAll(s, "\n", "\n\n") }},
		"empty":                    {edit: func(string) string { return "" }, written: true},
		"another argument":         {edit: func(s string) string { return strings.Replace(s, "-S\n", "", 1) }, written: true},
		"an object twice":          {edit: func(s string) string { return s + s }, broken: true, written: true},
		"another object":           {edit: func(s string) string { return strings.ReplaceAll(s, "default/a", "default/b") }, written: true},
		"marks of a merge's fight": {edit: func(s string) string { return "<<<<<<< HEAD\n" + s + "=======\n" + s + ">>>>>>> other\n" }, broken: true, written: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := folder(t, map[string]string{"a.yaml": named("a"), "notes.args": "of somebody else\n"})
			if _, err := Update(side(t, dir, "kvm")); err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join(dir, "a.args")
			text, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			write(t, golden, c.edit(string(text)))
			results, err := Check(side(t, dir, "kvm"))
			if (err != nil) != c.broken || err == nil && (len(results) > 0) != c.written {
				t.Errorf("Check: %v, %v", said(results), err)
			}
			changed, err := Update(side(t, dir, "kvm"))
			if err != nil || slices.Contains(changed, golden) != c.written || len(changed) > 1 {
				t.Errorf("Update wrote %v, %v", changed, err)
			}
			if results, err := Check(side(t, dir, "kvm")); err != nil || len(results) > 0 {
				t.Errorf("Check after Update: %v, %v", said(results), err)
			}
			if notes, err := os.ReadFile(filepath.Join(dir, "notes.args")); err != nil || string(notes) != "of somebody else\n" {
				t.Errorf("notes.args: %q, %v", notes, err)
			}
		})
	}
}

// TestFileIsComparedLikeAFolder: a manifest's file is held against its golden as a folder is.
func TestFileIsComparedLikeAFolder(t *testing.T) {
	dir := folder(t, map[string]string{"a.yaml": named("a"), "b.yaml": named("b")})
	file := filepath.Join(dir, "a.yaml")
	if results, err := Check(side(t, file, "kvm")); err != nil || !slices.Equal(said(results), []string{"VirtualMachineInstance default/a +"}) {
		t.Errorf("no golden: %v, %v", said(results), err)
	}
	if changed, err := Update(side(t, file, "kvm")); err != nil || !slices.Equal(changed, []string{filepath.Join(dir, "a.args")}) {
		t.Errorf("Update: %v, %v", changed, err)
	}
	if results, err := Check(side(t, file, "kvm")); err != nil || len(results) > 0 {
		t.Errorf("its golden: %v, %v", said(results), err)
	}
	if results, err := Check(side(t, file, "tcg")); err != nil || len(results) != 1 || len(results[0].Changes) == 0 {
		t.Errorf("another host: %v, %v", said(results), err)
	}
}

// TestObjectsArePairedByName: objects are paired by kind, namespace and name; of several such objects, those
// of the same file first.
func TestObjectsArePairedByName(t *testing.T) {
	more := func(text string) string { return strings.Replace(text, "64Mi", "128Mi", 1) }
	for name, c := range map[string]struct {
		a, b map[string]string
		want []string
	}{
		"equal":        {a: map[string]string{"x.yaml": named("a", "b")}, b: map[string]string{"x.yaml": named("a", "b")}},
		"moved":        {a: map[string]string{"x.yaml": named("a", "b")}, b: map[string]string{"y.yaml": named("b"), "z.yaml": named("a")}},
		"single":       {a: map[string]string{"x.yaml": named("a")}, b: map[string]string{"y.yaml": more(named("b"))}, want: []string{"VirtualMachineInstance default/b name memory"}},
		"new and gone": {a: map[string]string{"x.yaml": named("a", "b")}, b: map[string]string{"x.yaml": named("b", "c")}, want: []string{"VirtualMachineInstance default/c +", "VirtualMachineInstance default/a -"}},
		"base and overlay": {
			a:    map[string]string{"base/x.yaml": named("a"), "overlay/x.yaml": more(named("a"))},
			b:    map[string]string{"base/x.yaml": named("a"), "overlay/x.yaml": more(named("a")), "other/x.yaml": named("a")},
			want: []string{"VirtualMachineInstance default/a +"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			results, err := Compare(side(t, folder(t, c.a), "kvm"), side(t, folder(t, c.b), "kvm"))
			if err != nil || !slices.Equal(said(results), c.want) {
				t.Errorf("%q, %v; want %q", said(results), err, c.want)
			}
		})
	}
}

// TestLargeGoldenIsNotRead: a golden of any size is not read.
func TestLargeGoldenIsNotRead(t *testing.T) {
	dir := folder(t, map[string]string{"a.yaml": named("a")})
	write(t, filepath.Join(dir, "a.args"), "# "+strings.Repeat("x", 5<<20)+"\n")
	if _, err := Check(side(t, dir, "kvm")); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("%.200v", err)
	}
}
