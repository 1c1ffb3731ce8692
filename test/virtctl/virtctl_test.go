// Package virtctl runs every command of KubeVirt's own virtctl against a cluster with guests, looks at the effect of
// each that succeeds, and keeps what it saw in docs/virtctl.md. `make virtctl` brings the cluster up.
//
// It is a module of its own, so that the product needs nothing of KubeVirt's.
package virtctl

import (
	"flag"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	update = flag.Bool("update", false, "write docs/virtctl.md as it was seen")
	only   = flag.String("only", "", "run the commands whose names match this pattern, and look at no page")
)

const page = "../../docs/virtctl.md"

// TestCommandsOfTheTable runs the table. A line that succeeds without its effect fails the test, and so does a page that says
// something else than was seen.
func TestCommandsOfTheTable(t *testing.T) {
	b := newBench(t)
	started := time.Now()
	var seen []outcome
	chosen := regexp.MustCompile(*only)
	for _, c := range commands() {
		if !chosen.MatchString(c.name) {
			continue
		}
		for _, l := range c.lines {
			t.Logf("[%3.0fs] %s", time.Since(started).Seconds(), l.line)
			o := b.run(l)
			o.command = c.name
			seen = append(seen, o)
		}
	}
	if t.Failed() || *only != "" {
		return
	}
	text := render(b.must("virtctl version -c"), commands(), seen)
	if *update {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	old, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	is, want := strings.Split(string(old), "\n"), strings.Split(text, "\n")
	for i := range max(len(is), len(want)) {
		if i >= len(is) || i >= len(want) || is[i] != want[i] {
			t.Fatalf("%s:%d is not what was seen; look at what `make virtctl UPDATE=-update` writes\nthere: %s\nseen:  %s", page, i+1,
				strings.Join(is[min(i, len(is)):min(i+1, len(is))], ""), strings.Join(want[min(i, len(want)):min(i+1, len(want))], ""))
		}
	}
}

// outcome is what was seen of a line.
type outcome struct {
	line
	command string
	refused bool
	said    string // of a line that is refused
}

// limit is for a line that neither serves nor waits for a guest.
const limit = 3 * time.Minute

func (b *bench) run(l line) outcome {
	b.t.Helper()
	o := outcome{line: l}
	if l.prepare != nil {
		if err := l.prepare(b); err != nil {
			b.t.Errorf("%s: prepare it: %v", l.line, err)
			return o
		}
	}
	var look after
	if l.effect.before != nil {
		var err error
		if look, err = l.effect.before(b); err != nil {
			b.t.Errorf("%s: before it is run: %v", l.line, err)
			return o
		}
	}
	p, err := b.start(l.line, l.terminal)
	if err != nil {
		b.t.Errorf("%s: %v", l.line, err)
		return o
	}
	if l.serves {
		err = look(p)
		ended := !p.running()
		if !ended {
			if e := p.end(); e != nil {
				b.t.Logf("%s: %v", l.line, e)
			}
		}
		if !ended || p.cmd.ProcessState.ExitCode() == 0 {
			if err != nil {
				b.t.Errorf("%s: it serves without its effect: %v\n%s%s", l.line, err, p.out.String(), p.errors.String())
			}
			return o
		}
	} else {
		p.input.Close()
		code, err := p.wait(limit)
		if err != nil {
			_ = p.end()
			b.t.Errorf("%s: %v", l.line, err)
			return o
		}
		if code == 0 {
			b.succeeded(l, look, p)
			return o
		}
	}
	p.input.Close()
	o.refused, o.said = true, normalize(p.errors.String(), b.folder)
	if l.terminal {
		o.said = normalize(p.out.String(), b.folder)
	}
	const timedOut = 124 // timeout's
	switch {
	case l.waits && p.cmd.ProcessState.ExitCode() == timedOut:
	case l.effect.before != nil:
		b.t.Errorf("%s: it is refused: %s%s", l.line, p.out.String(), o.said)
	case !strings.Contains(o.said, l.missing) || l.missing == "":
		b.t.Errorf("%s: what it says does not name %q: %s", l.line, l.missing, o.said)
	}
	return o
}

func (b *bench) succeeded(l line, look after, p *program) {
	b.t.Helper()
	if look == nil {
		b.t.Errorf("%s: it succeeds, and nothing says what its effect is: %s%s", l.line, p.out.String(), p.errors.String())
	} else if err := look(p); err != nil {
		b.t.Errorf("%s: it succeeds without its effect: %v\n%s%s", l.line, err, p.out.String(), p.errors.String())
	}
}

// Of what is said, these are other each time.
var passing = []struct {
	pattern *regexp.Regexp
	instead string
}{
	// After every error virtctl compares the versions.
	{regexp.MustCompile(`(?s)You are using a client virtctl version.*?Server Version: [^\n]*\n`), ""},
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
	{regexp.MustCompile(`https://[0-9.]+:[0-9]+`), "https://SERVER"},
	{regexp.MustCompile(`"timestamp":"[^"]*"`), `"timestamp":"TIME"`},
	{regexp.MustCompile(`\b[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}[T ][0-9:.]+Z?`), "TIME"},
	{regexp.MustCompile(`127\.0\.0\.1:[0-9]+`), "127.0.0.1:PORT"},
}

// normalize returns what is said in one line, and the same each time.
func normalize(said, folder string) string {
	for _, p := range passing {
		said = p.pattern.ReplaceAllString(said, p.instead)
	}
	said = strings.ReplaceAll(said, folder+"/", "")
	return strings.Join(strings.Fields(said), " ")
}

// flags are the flags of each command of virtctl that does something by itself, as the shell's completion is told. A
// command with commands below it does if it has flags.
func (b *bench) flags(t *testing.T, global []string, above string) map[string][]string {
	t.Helper()
	all, below := map[string][]string{}, 0
	for _, name := range completions(t, b, above+" ''") {
		if strings.HasPrefix(name, "-") || name == "help" || name == "completion" {
			continue
		}
		below++
		maps.Copy(all, b.flags(t, global, strings.TrimSpace(above+" "+name)))
	}
	var own []string
	for _, flag := range completions(t, b, above+" --") {
		if flag != "--help" && !slices.Contains(global, flag) {
			own = append(own, flag)
		}
	}
	if below == 0 || len(own) > 0 {
		all[above] = own
	}
	return all
}

func completions(t *testing.T, b *bench, words string) []string {
	t.Helper()
	out, err := b.shell("virtctl __complete " + words)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, line := range strings.Split(out, "\n") {
		name, _, described := strings.Cut(line, "\t")
		if described && !strings.HasPrefix(line, ":") {
			all = append(all, name)
		}
	}
	return all
}

// TestEachCommandAndFlagIsInTheTable: every command of virtctl is in the table, with each of its flags.
func TestEachCommandAndFlagIsInTheTable(t *testing.T) {
	b := &bench{t: t, folder: t.TempDir()}
	global := completions(t, b, "-")
	if len(global) < 10 {
		t.Fatalf("the global flags are %v", global)
	}
	known := map[string]string{}
	for _, c := range commands() {
		for _, l := range c.lines {
			known[c.name] += l.line + " "
		}
	}
	found := b.flags(t, global, "")
	if len(found) < 35 {
		t.Errorf("virtctl has the commands %v", found)
	}
	for name, flags := range found {
		lines, ok := known[name]
		if !ok {
			t.Errorf("%s is not in the table", name)
			continue
		}
		delete(known, name)
		for _, flag := range flags {
			if !strings.Contains(lines, " "+flag+" ") && !strings.Contains(lines, " "+flag+"=") {
				t.Errorf("%s: no line has the flag %s", name, flag)
			}
		}
	}
	for name := range known {
		t.Errorf("%s is in the table, and virtctl has no such command", name)
	}
}
