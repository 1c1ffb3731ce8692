package virtctl

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const introduction = `# virtctl with Kubeqemu

<!-- written by make virtctl UPDATE=-update -->

` + "`make virtctl`" + ` builds KubeVirt's own virtctl (%s), and runs each of its %d commands against a cluster with guests. This page is what the run
saw. The run fails if a command succeeds without its effect, or if this page says something else.

**%d commands work, %d work in part, %d are refused.** [api.md](api.md#what-virtctl-can-do) says what the commands do, and how virt-api is used without virtctl.

- A command **works** if every line of it below does.
- A command that needs what Kubeqemu does not have is **refused**: it ends with an error that names what is missing, and changes nothing in the cluster
  but what its row says.
- Because the versions differ, virtctl prints both after every error: "You are using a client virtctl version that is different from the KubeVirt version
  running in the cluster". The page leaves this warning out.

`

// render writes the page.
func render(version string, table []command, seen []outcome) string {
	name := regexp.MustCompile(`GitVersion:"([^"]*)"`).FindStringSubmatch(version)
	if name == nil {
		name = []string{"", strings.TrimSpace(version)}
	}
	var summary, rows strings.Builder
	counts := map[string]int{}
	for _, c := range table {
		var works, lacks int
		fmt.Fprintf(&rows, "\n## %s\n\n| line | result | |\n|---|---|---|\n", c.name)
		for _, o := range seen {
			if o.command != c.name {
				continue
			}
			result, text := "works", o.effect.text
			switch {
			case o.refused && o.same:
				result, text = "refused, as in KubeVirt", "says: "+code(o.said)
			case o.same && !o.refused:
				result = "does nothing, as in KubeVirt"
			case o.waits:
				result, text = "waits in vain", ""
				lacks++
			case o.refused:
				result, text = "refused", "says: "+code(o.said)
				lacks++
			case o.lacks:
				result = "works in part"
				works++
				lacks++
			default:
				works++
			}
			if text != "" && o.note != "" {
				text += ". "
			}
			text += o.note
			fmt.Fprintf(&rows, "| %s | %s | %s |\n", code(o.line.line), result, strings.ReplaceAll(text, "\n", " "))
		}
		verdict := "works"
		switch {
		case works == 0:
			verdict = "refused"
		case lacks > 0:
			verdict = "works in part"
		}
		counts[verdict]++
		fmt.Fprintf(&summary, "| [%s](#%s) | %s | %s |\n", c.name, strings.ReplaceAll(c.name, " ", "-"), verdict, c.about)
	}
	return fmt.Sprintf(introduction, name[1], len(table), counts["works"], counts["works in part"], counts["refused"]) +
		"| command | result | |\n|---|---|---|\n" + summary.String() + rows.String()
}

// code is a text in a table's cell, as it is.
func code(text string) string {
	text = strings.ReplaceAll(text, "|", `\|`)
	if strings.Contains(text, "`") {
		return "`` " + text + " ``"
	}
	return "`" + text + "`"
}

// TestVerdictsFollowFromTheLines: what the verdicts follow from.
func TestVerdictsFollowFromTheLines(t *testing.T) {
	lines := []line{{line: "virtctl a | b"}, {line: "virtctl c", note: "A note."}, {line: "virtctl d", lacks: true}}
	for _, c := range []struct {
		seen []outcome
		want string
	}{
		{[]outcome{{line: lines[0], command: "a"}}, "**1 commands work, 0 work in part, 0 are refused.**"},
		{[]outcome{{line: lines[0], command: "a", refused: true, said: "no"}}, "**0 commands work, 0 work in part, 1 are refused.**"},
		{[]outcome{{line: lines[0], command: "a"}, {line: lines[1], command: "a", refused: true}}, "**0 commands work, 1 work in part, 0 are refused.**"},
		{[]outcome{{line: lines[2], command: "a"}}, "**0 commands work, 1 work in part, 0 are refused.**"},
		{[]outcome{{line: lines[0], command: "a"}, {line: line{same: true}, command: "a", refused: true}}, "**1 commands work, 0 work in part, 0 are refused.**"},
		{[]outcome{{line: lines[0], command: "a", refused: true, said: "no | `x`"}}, "| `virtctl a \\| b` | refused | says: `` no \\| `x` `` |\n"},
		{[]outcome{{line: lines[1], command: "a", refused: true, said: "no"}}, "| `virtctl c` | refused | says: `no`. A note. |\n"},
	} {
		if text := render(`GitVersion:"v1"`, []command{{name: "a"}}, c.seen); !strings.Contains(text, c.want) {
			t.Errorf("no %q in\n%s", c.want, text)
		}
	}
}

// TestNormalizeTakesOutWhatPasses: what passes is taken out, and nothing else.
func TestNormalizeTakesOutWhatPasses(t *testing.T) {
	for said, want := range map[string]string{
		"You are using a client virtctl version that is different\nClient Version: x\nServer Version: y {z}\n\nno such thing\n": "no such thing",
		"open /tmp/x/1/key: no":                           "open key: no",
		"uid 0f8fad5b-d9cb-469f-a165-70867728950e is not": "uid UID is not",
		"Get \"https://10.199.0.1:6443/api\": refused":    `Get "https://SERVER/api": refused`,
		"2026-11-24T05:34:24Z 127.0.0.1:4711":             "TIME 127.0.0.1:PORT",
		"  a\n\tb  ":                                      "a b",
	} {
		if got := normalize(said, "/tmp/x/1"); got != want {
			t.Errorf("%q becomes %q, want %q", said, got, want)
		}
	}
}

// TestEachLineHasAnEffectOrAReason: a line has an effect, or says what is missing, and is named once.
func TestEachLineHasAnEffectOrAReason(t *testing.T) {
	var names []string
	for _, c := range commands() {
		if slices.Contains(names, c.name) || len(c.lines) == 0 {
			t.Errorf("%s is there twice, or has no lines", c.name)
		}
		names = append(names, c.name)
		for _, l := range c.lines {
			if (l.effect.before == nil) == (l.missing == "") {
				t.Errorf("%s: it must have either an effect or what is missing", l.line)
			}
			if !strings.Contains(l.line, "virtctl "+c.name) {
				t.Errorf("%s is a line of %s", l.line, c.name)
			}
		}
	}
}
