package parts

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/process"
)

// spy is a part that notes which verbs it has heard. Its verbs fail with err.
type spy struct {
	heard *[]string
	name  string
	err   error
}

func (s spy) hear(verb string) error {
	*s.heard = append(*s.heard, s.name+" "+verb)
	return s.err
}

func (s spy) Prepare(context.Context, *control.StartRequest, map[string]*os.File) error {
	return s.hear("prepares")
}
func (s spy) Start(*control.StartRequest, map[string]*os.File) error { return s.hear("starts") }
func (s spy) Attach(*control.StartRequest, *process.QEMU) error      { return s.hear("attaches") }
func (s spy) Arrive(context.Context, *control.StartRequest)          { _ = s.hear("arrives") }
func (s spy) Close() error                                           { return s.hear("closes") }

// TestListGoesThroughItsParts: each verb goes through the parts in their order. It ends with the first error, but each
// part is closed.
func TestListGoesThroughItsParts(t *testing.T) {
	failure := errors.New("b fails")
	for _, fails := range []error{nil, failure} {
		var heard []string
		list := List{spy{&heard, "a", nil}, None{}, spy{&heard, "b", fails}, spy{&heard, "c", nil}}
		errs := []error{list.Prepare(t.Context(), nil, nil), list.Start(nil, nil), list.Attach(nil, nil), list.Close()}
		list.Arrive(t.Context(), nil)
		for _, err := range errs {
			if !errors.Is(err, fails) {
				t.Errorf("%v, want %v", err, fails)
			}
		}
		want := []string{"a prepares", "b prepares", "c prepares", "a starts", "b starts", "c starts",
			"a attaches", "b attaches", "c attaches", "a closes", "b closes", "c closes", "a arrives", "b arrives", "c arrives"}
		if fails != nil {
			want = slices.DeleteFunc(want, func(verb string) bool {
				return verb == "c prepares" || verb == "c starts" || verb == "c attaches"
			})
		}
		if !slices.Equal(heard, want) {
			t.Errorf("heard %q, want %q", heard, want)
		}
	}
}

// TestNoPartKnowsAnother: no file names the type of a part that another file declares. A part embeds None.
func TestNoPartKnowsAnother(t *testing.T) {
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]string{} // the file of each part's type
	named := map[string][]string{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok && slices.ContainsFunc(s.Fields.List, embedsNone) {
					parts[n.Name.Name] = name
				}
			case *ast.SelectorExpr: // a field, or another package's name
				return false
			case *ast.Ident:
				named[n.Name] = append(named[n.Name], name)
			}
			return true
		})
	}
	if len(parts) < 5 {
		t.Errorf("only these parts were found: %v", parts)
	}
	for part, declared := range parts {
		for _, file := range named[part] {
			if file != declared {
				t.Errorf("%s names %s, the part in %s", file, part, declared)
			}
		}
	}
}

func embedsNone(f *ast.Field) bool {
	id, ok := f.Type.(*ast.Ident)
	return ok && len(f.Names) == 0 && id.Name == "None"
}
