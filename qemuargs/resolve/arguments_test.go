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

	"github.com/kubeqemu/kubeqemu/internal/golden"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// argumentsPage is written from the same cases as the goldens, for the newest host.
const argumentsPage = "../../docs/arguments.md"

// shown is what a case shows: the fields, in words, and its arguments.
type shown struct {
	name, words string
	fields      []string
	args        []string
}

func readShown(t *testing.T, dir string) shown {
	t.Helper()
	s := shown{name: filepath.Base(dir)}
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
		} else {
			s.words = comment
		}
	}
	machine, errs := Machine(load(t, dir, hosts[len(hosts)-1]))
	if len(errs) > 0 || s.words == "" {
		t.Fatalf("%s says nothing of what it shows, or is refused: %v", dir, errs.ToAggregate())
	}
	for line := range strings.Lines(qemuargs.Quote("qemu-system-x86_64", machine.Args())) {
		s.args = append(s.args, strings.TrimSuffix(strings.TrimSpace(line), ` \`))
	}
	return s
}

// changes are the arguments that a case lacks of the minimal one's, and those that
// it has in their place or more. The guest's name is in all.
func (s shown) changes(minimal shown) (out []string) {
	differs := func(sign string, from, other []string) {
		for _, a := range from {
			if !slices.Contains(other, a) && !strings.HasPrefix(a, "-name ") {
				out = append(out, sign+" "+a)
			}
		}
	}
	differs("-", minimal.args, s.args)
	differs("+", s.args, minimal.args)
	return out
}

// TestArguments: docs/arguments.md is what the goldens say.
func TestArguments(t *testing.T) {
	var all []shown
	for _, dir := range cases(t, machineCases) {
		all = append(all, readShown(t, dir))
	}
	slices.SortStableFunc(all, func(a, b shown) int { return strings.Compare(strings.Join(a.fields, " "), strings.Join(b.fields, " ")) })
	at := slices.IndexFunc(all, func(s shown) bool { return s.name == "minimal" })
	minimal := all[at]
	var page strings.Builder
	fmt.Fprintf(&page, `# Fields and QEMU's arguments

<!-- written by go test ./qemuargs/resolve -update -->

Each field stands here with the change that it makes to QEMU's arguments, against the smallest VMI with a disk. "-" marks an argument of the smallest VMI
that goes, "+" one that comes. The name of each golden leads to the whole command line; the manifest is beside it. The host has QEMU %s.

## The smallest VMI

%s

`, hosts[len(hosts)-1], block(minimal.args))
	heading := ""
	for _, s := range all {
		if s.name == minimal.name {
			continue
		}
		if next := title(s.fields); next != heading {
			heading = next
			fmt.Fprintf(&page, "## %s\n\n", heading)
		}
		fmt.Fprintf(&page, "%s ([%s](../qemuargs/resolve/testdata/machines/%s/%s.args))\n\n", s.words, s.name, s.name, hosts[len(hosts)-1])
		if changes := s.changes(minimal); len(changes) > 0 {
			fmt.Fprintf(&page, "%s\n\n", block(changes))
		} else {
			fmt.Fprint(&page, "No argument changes.\n\n")
		}
	}
	golden.Compare(t, argumentsPage, strings.TrimRight(page.String(), "\n")+"\n")
}

func title(fields []string) string {
	if len(fields) == 0 {
		return "Choices of the node"
	}
	return "`" + strings.Join(fields, "`, `") + "`"
}

func block(lines []string) string {
	return "```diff\n" + strings.Join(lines, "\n") + "\n```"
}
