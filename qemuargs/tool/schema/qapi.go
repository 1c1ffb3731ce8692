package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// arguments returns the commands whose arguments have the types of an option: -blockdev, -netdev, -object, -chardev,
// -numa and
// -action. results are those whose results have: -display and -audiodev.
func arguments() []string {
	return []string{"blockdev-add", "netdev_add", "object-add", "chardev-add", "set-numa-node", "set-action"}
}

func results() []string { return []string{"query-display-options", "query-audiodevs"} }

// entity is an entry of query-qmp-schema (qapi/introspect.json).
type entity struct {
	Name     string `json:"name"`
	MetaType string `json:"meta-type"`
	JSONType string `json:"json-type"`
	ArgType  string `json:"arg-type"`
	RetType  string `json:"ret-type"`
	Element  string `json:"element-type"`
	Tag      string `json:"tag"`
	Values   []string
	Members  []struct {
		Name     string
		Type     string
		Features []string
		Default  json.RawMessage // there, even as null, if the member is optional
	}
	Variants []struct{ Case, Type string }
}

// types keeps the types that the commands reach.
func (c *capturer) types() error {
	var all []entity
	if err := c.ask("query-qmp-schema", nil, &all); err != nil {
		return err
	}
	if len(all) > maxTypes {
		return fmt.Errorf("QEMU says that it has %d types, more than %d", len(all), maxTypes)
	}
	types, reached := map[string]entity{}, map[string]bool{}
	for _, e := range all {
		switch {
		case e.MetaType == "command" && slices.Contains(arguments(), e.Name):
			c.s.Commands[e.Name], reached[e.ArgType] = e.ArgType, true
		case e.MetaType == "command" && slices.Contains(results(), e.Name):
			c.s.Commands["returns "+e.Name], reached[e.RetType] = e.RetType, true
		case e.MetaType != "command" && e.MetaType != "event":
			types[e.Name] = e
		}
	}
	for len(reached) > 0 {
		next := map[string]bool{}
		for _, name := range slices.Sorted(maps.Keys(reached)) {
			if _, done := c.s.Types[name]; done {
				continue
			}
			t := types[name].typ()
			c.s.Types[name] = t
			for _, m := range t.Members {
				next[m.Type] = true
			}
			for _, variant := range t.Variants {
				next[variant] = true
			}
			if t.Element != "" {
				next[t.Element] = true
			}
		}
		reached = next
	}
	return nil
}

func (e entity) typ() Type {
	t := Type{Kind: e.MetaType, JSON: e.JSONType, Element: e.Element, Values: e.Values, Tag: e.Tag}
	for _, m := range e.Members {
		if slices.Contains(m.Features, "deprecated") {
			t.Deprecated = append(t.Deprecated, m.Name)
		}
		if e.MetaType != "enum" { // whose members are its values
			t.Members = append(t.Members, Member{Name: m.Name, Type: m.Type, Optional: m.Default != nil})
		}
	}
	for _, v := range e.Variants {
		if t.Variants == nil {
			t.Variants = map[string]string{}
		}
		t.Variants[v.Case] = v.Type
	}
	return t
}
