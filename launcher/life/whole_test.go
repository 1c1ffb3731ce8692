package life

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestListsAreWhole: what is declared in this package and missing in the lists of states and events would be stepped by
// no test. Each type of event has a row in the table too.
func TestListsAreWhole(t *testing.T) {
	eventTypes, constants := declared(t)
	var listed, looked []string
	for _, e := range events() {
		listed = append(listed, strings.TrimPrefix(fmt.Sprintf("%T", e.value), "life."))
	}
	for _, topic := range topics {
		for _, l := range topic.looks {
			for event := range strings.SplitSeq(l.events, ", ") {
				looked = append(looked, strings.TrimPrefix(fmt.Sprintf("%T", find(t, events(), event)), "life."))
			}
		}
	}
	for _, name := range eventTypes {
		if !slices.Contains(listed, name) {
			t.Errorf("no event of type %s is in the list", name)
		}
		if !slices.Contains(looked, name) {
			t.Errorf("no event of type %s is in the table", name)
		}
	}
	reached := map[string]bool{}
	for _, s := range states() {
		s := reach(s.value)
		for _, name := range []string{phaseNames[s.Phase], powerNames[s.Power], trialNames[s.Storage.Trial],
			silenceNames[s.Silence], wishNames[s.Wish], causeNames[s.Cause.Kind], leavingNames[s.Leaving], memoryNames[s.Memory],
			lettingNames[s.Letting], holdingNames[s.Hold.How]} {
			reached[name] = true
		}
	}
	for kind, names := range map[string][]string{"Phase": phaseNames, "Power": powerNames, "Trial": trialNames,
		"Silence": silenceNames, "Wish": wishNames, "CauseKind": causeNames, "Leaving": leavingNames, "Memory": memoryNames,
		"Letting": lettingNames, "Holding": holdingNames} {
		if !slices.Equal(constants[kind], names) {
			t.Errorf("the constants of %s are %v, the test has %v", kind, constants[kind], names)
		}
		for _, name := range names {
			if !reached[name] {
				t.Errorf("no state of the list has %s %s", kind, name)
			}
		}
	}
}

// declared returns the package's types that are events, and the constants of its enumerations.
func declared(t *testing.T) (eventTypes []string, constants map[string][]string) {
	t.Helper()
	constants = map[string][]string{}
	files := token.NewFileSet()
	for _, name := range sources(t) {
		file, err := parser.ParseFile(files, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil && d.Name.Name == "hear" {
					eventTypes = append(eventTypes, d.Recv.List[0].Type.(*ast.Ident).Name)
				}
			case *ast.GenDecl:
				kind := ""
				for _, spec := range d.Specs {
					v, ok := spec.(*ast.ValueSpec)
					if d.Tok != token.CONST || !ok {
						continue
					}
					if id, ok := v.Type.(*ast.Ident); ok {
						kind = id.Name
					}
					constants[kind] = append(constants[kind], v.Names[0].Name)
				}
			}
		}
	}
	if len(eventTypes) < 20 {
		t.Fatalf("only %d types of events were found", len(eventTypes))
	}
	return eventTypes, constants
}

// sources returns the names of the files of the package, without those of its tests.
func sources(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return strings.HasSuffix(name, "_test.go") })
	if len(names) < 5 {
		t.Fatalf("only these sources were found: %v", names)
	}
	return names
}

// TestTimeComesWithTheEvents: no source of the package reads a clock, because time comes with the events.
func TestTimeComesWithTheEvents(t *testing.T) {
	for _, name := range sources(t) {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if p, ok := s.X.(*ast.Ident); ok && p.Name == "time" &&
					!slices.Contains([]string{"Time", "Duration", "Second", "Minute"}, s.Sel.Name) {
					t.Errorf("%s uses time.%s", name, s.Sel.Name)
				}
			}
			return true
		})
	}
}
