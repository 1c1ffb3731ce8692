package resolve

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/compare"
)

// argumentsPage is written from the same cases as the goldens, for the newest host.
const argumentsPage = "../../docs/arguments.md"

// shown is what a case shows: the fields, in words, its arguments, and the case that it is
// compared with.
type shown struct {
	name, words, against string
	fields               []string
	args                 []compare.Argument
}

func readShown(t *testing.T, dir string) shown {
	t.Helper()
	s := shown{name: filepath.Base(dir), against: "minimal"}
	text, err := os.ReadFile(filepath.Join(dir, "vmi.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		comment, ok := strings.CutPrefix(lines.Text(), "# ")
		if !ok {
			break
		}
		if field, ok := strings.CutPrefix(comment, "field: "); ok {
			s.fields = append(s.fields, field)
		} else if name, ok := strings.CutPrefix(comment, "against: "); ok {
			s.against = name
		} else {
			s.words = comment
		}
	}
	machine, errs := Machine(load(t, dir, hosts[len(hosts)-1]))
	if len(errs) > 0 || s.words == "" {
		t.Fatalf("%s says nothing of what it shows, or is refused: %v", dir, errs.ToAggregate())
	}
	s.args = compare.Arguments(machine.Args())
	return s
}

// changes returns what a case changes of another's arguments. The guest's name is in all.
func (s shown) changes(other shown) (out []string) {
	for _, c := range compare.Diff(other.args, s.args) {
		if !strings.HasPrefix(c.Part, "name") {
			out = append(out, strings.Split(strings.TrimSpace(c.String()), "\n")...)
		}
	}
	return out
}

// TestArgumentsPageIsUpToDate: docs/arguments.md is what the goldens say.
func TestArgumentsPageIsUpToDate(t *testing.T) {
	var all []shown
	for _, dir := range cases(t, machineCases) {
		all = append(all, readShown(t, dir))
	}
	slices.SortStableFunc(all, func(a, b shown) int { return strings.Compare(strings.Join(a.fields, " "), strings.Join(b.fields, " ")) })
	named := map[string]shown{}
	for _, s := range all {
		named[s.name] = s
	}
	minimal := named["minimal"]
	var page strings.Builder
	fmt.Fprintf(&page, argumentsHead, hosts[len(hosts)-1], block(lines(minimal.args)))
	heading := ""
	for _, s := range all {
		if s.name == minimal.name {
			continue
		}
		other, ok := named[s.against]
		if !ok {
			t.Fatalf("%s is against %q, which is no case", s.name, s.against)
		}
		if next := title(s.fields); next != heading {
			heading = next
			fmt.Fprintf(&page, "## %s\n\n", heading)
		}
		fmt.Fprintf(&page, "%s (%s%s)\n\n", s.words, link(s), beside(other))
		if changes := s.changes(other); len(changes) > 0 {
			fmt.Fprintf(&page, "%s\n\n", block(changes))
		} else {
			fmt.Fprint(&page, "No argument changes.\n\n")
		}
	}
	page.WriteString(fieldTable(t, all))
	golden.Compare(t, argumentsPage, page.String())
}

// argumentsHead is how the page begins: QEMU's release, and the smallest VMI's arguments.
const argumentsHead = `# Fields and QEMU's arguments

<!-- written by go test ./qemuargs/resolve -update -->

Each field stands here with the change that it makes to QEMU's arguments, as "qemuargs diff" prints it: "-" marks an argument that goes, "+" one
that comes, and "~" one of which some properties change. The change is against the smallest VMI with a disk, unless another case is named. The
name of each case leads to its whole command line; the manifest is beside it. The host has QEMU %s.

## The smallest VMI

%s

`

func link(s shown) string {
	return fmt.Sprintf("[%s](../qemuargs/resolve/testdata/machines/%s/%s.args)", s.name, s.name, hosts[len(hosts)-1])
}

// beside names the case that another is compared with.
func beside(s shown) string {
	if s.name == "minimal" {
		return ""
	}
	return ", against " + link(s)
}

func lines(args []compare.Argument) (out []string) {
	for _, a := range args {
		out = append(out, string(a))
	}
	return out
}

func title(fields []string) string {
	if len(fields) == 0 {
		return "Choices of the node"
	}
	return "`" + strings.Join(fields, "`, `") + "`"
}

func block(lines []string) string {
	return "```\n" + strings.Join(lines, "\n") + "\n```"
}
