package explain

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// write prints arguments, grouped by the parts of the machine, as a person reads them: below
// each argument its properties, and beside each property the rule and the sources that made it.
func write(out io.Writer, arguments []Argument) error {
	var s strings.Builder
	groups := grouped(arguments)
	for n := 0; n < len(groups); {
		last := n + 1
		for last < len(groups) && alike(groups[n], groups[last]) {
			last++
		}
		if n > 0 {
			s.WriteByte('\n')
		}
		writeAlike(&s, groups[n:last])
		n = last
	}
	_, err := io.WriteString(out, s.String())
	return err
}

// grouped returns the arguments of each part, in the order in which the parts come.
func grouped(arguments []Argument) [][]Argument {
	var groups [][]Argument
	for _, a := range arguments {
		n := slices.IndexFunc(groups, func(group []Argument) bool { return group[0].Part == a.Part })
		if n < 0 {
			n, groups = len(groups), append(groups, nil)
		}
		groups[n] = append(groups[n], a)
	}
	return groups
}

// alike reports whether two parts have one argument each, with nothing to say of but the reason,
// which is the same.
func alike(a, b []Argument) bool {
	return len(a) == 1 && len(b) == 1 && len(a[0].Properties)+len(b[0].Properties) == 0 && a[0].Flag == b[0].Flag && a[0].ID != "" && a[0].Reason.same(b[0].Reason)
}

// writeAlike prints one part, or several that are alike.
func writeAlike(s *strings.Builder, groups [][]Argument) {
	var parts, ids []string
	for _, group := range groups {
		parts, ids = append(parts, group[0].Part), append(ids, group[0].ID)
	}
	s.WriteString(strings.Join(parts, ", ") + "\n")
	if len(groups) > 1 {
		a := groups[0][0]
		a.ID = strings.Join(ids, ", ")
		a.write(s)
		return
	}
	for _, a := range groups[0] {
		a.write(s)
	}
}

func (a Argument) write(s *strings.Builder) {
	if len(a.Properties) == 1 && a.Properties[0].Name == "" {
		p := a.Properties[0]
		p.write(s, "  ", a.Flag+" "+plain(p.Value))
		return
	}
	a.Reason.write(s, "  ", strings.TrimSpace(a.Flag+" "+a.ID))
	for i := 0; i < len(a.Properties); {
		p, last := a.Properties[i], i+1
		text := p.text()
		// What is made by the same stands on one line.
		for ; last < len(a.Properties) && a.Properties[last].Reason.same(p.Reason); last++ {
			text += ", " + a.Properties[last].text()
		}
		if p.Reason.same(a.Reason) {
			s.WriteString("    " + text + "\n")
		} else {
			p.write(s, "    ", text)
		}
		i = last
	}
}

func (p Property) text() string {
	if p.Name == "" {
		return plain(p.Value)
	}
	return p.Name + "=" + plain(p.Value)
}

// plain returns a value without the quotes that it needs in JSON alone.
func plain(value string) string {
	var text string
	if json.Unmarshal([]byte(value), &text) == nil && text != "" && strings.IndexFunc(text, func(r rune) bool { return r < ' ' }) < 0 {
		return text
	}
	return strings.NewReplacer("\n", `\n`, "\r", `\r`).Replace(value)
}

func (r Reason) same(other Reason) bool {
	return slices.Equal(r.Rules, other.Rules) && slices.EqualFunc(r.shown(), other.shown(), func(a, b Source) bool { return a.Field == b.Field && a.Fact == b.Fact })
}

// shown returns the sources that a person wants to see: fields that are not set are of interest
// where none is.
func (r Reason) shown() []Source {
	isSet := func(s Source) bool { return s.Set }
	if !slices.ContainsFunc(r.Sources, isSet) {
		return r.Sources
	}
	return slices.DeleteFunc(slices.Clone(r.Sources), func(s Source) bool { return !s.Set })
}

// write prints what has the reason, then the rules, then the sources.
func (r Reason) write(s *strings.Builder, indent, what string) {
	sources := r.shown()
	s.WriteString(indent + what)
	if len(r.Rules) == 0 && len(sources) == 1 {
		fmt.Fprintf(s, " ← %s\n", sources[0])
		return
	}
	if len(r.Rules) > 0 {
		s.WriteString(" — " + strings.Join(r.Rules, "; "))
	}
	s.WriteByte('\n')
	for _, source := range sources {
		fmt.Fprintf(s, "%s  ← %s\n", indent, source)
	}
}

// String returns a text such as "spec.domain.cpu.cores: 2 (vm.yaml:7)".
func (s Source) String() string {
	name := s.Field
	if s.Fact != "" {
		name = "host." + s.Fact
	}
	switch {
	case !s.Set:
		return name + " is not set"
	case s.Value == nil:
		return name
	}
	value := plain(string(s.Value))
	if strings.HasPrefix(value, "{") || strings.HasPrefix(value, "[") {
		value = "" // of many fields
	} else {
		value = ": " + value
	}
	by := s.By
	for i, from := range s.From {
		word := []string{", made of ", " and "}[min(i, 1)]
		if !from.Set {
			word = []string{", as ", " and "}[min(i, 1)]
		}
		by += word + from.String()
	}
	if s.File != "" {
		by = strings.TrimPrefix(fmt.Sprintf("%s, %s:%d", by, s.File, s.Line), ", ")
	}
	return fmt.Sprintf("%s%s (%s)", name, value, by)
}
