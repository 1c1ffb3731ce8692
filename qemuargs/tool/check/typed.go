package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubeqemu/kubeqemu/qemuargs/tool/schema"
)

// typeOf returns the QAPI type of an option's value, and the key that its first part may stand for.
func typeOf(s *schema.Schema, flag string) (name, implied string) {
	switch flag {
	case "blockdev":
		return s.Commands["blockdev-add"], "driver"
	case "netdev":
		return s.Commands["netdev_add"], "type"
	case "object":
		return s.Commands["object-add"], "qom-type"
	case "display":
		return s.Commands["returns query-display-options"], "type"
	case "numa":
		return s.Commands["set-numa-node"], "type"
	case "action":
		return s.Commands["set-action"], ""
	case "audiodev":
		return s.Types[s.Commands["returns query-audiodevs"]].Element, "driver"
	}
	return "", ""
}

// typed checks an option whose value has a type of QAPI.
func (c *checker) typed(flag, value string) {
	typeName, implied := typeOf(c.schema, flag)
	if flag == "display" && strings.HasPrefix(value, "vnc=") {
		return // -vnc's older form
	}
	all := pairs(value, implied)
	if !isJSON(value) && flat(flag, all) {
		c.flat(flag, typeName, all)
		return
	}
	var properties map[string]any
	var err error
	if isJSON(value) {
		properties, err = object(value)
	} else {
		properties, err = nested(all)
	}
	if err != nil {
		c.unreadable(err)
		return
	}
	c.name(flag, properties)
	if typeName != "" { // QEMU 7.2 has no query-audiodevs
		q := qapi{checker: c, flag: flag}
		q.object(typeName, properties, "")
	}
}

// name makes the argument's label of its id, and keeps the id.
func (c *checker) name(flag string, properties map[string]any) {
	ids := map[string]kind{"blockdev": nodes, "netdev": netdevs, "object": objects, "audiodev": audiodevs}
	key := "id"
	if flag == "blockdev" {
		key = "node-name"
	}
	id := spelled(properties[key])
	if id != "" {
		c.label = fmt.Sprintf("-%s %s", flag, printable(shorten(id)))
	}
	if k, ok := ids[flag]; ok && flag != "blockdev" && id != "" { // blockdev's are kept with those of its inner nodes
		c.define(k, id)
	}
}

// spelled returns the text of a value; empty if it is none.
func spelled(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case word:
		return string(v)
	}
	return ""
}

// flat reports whether QEMU reads key=value pairs with one level only: -object, -numa, and -netdev but for two types
// (net/net.c, netdev_is_modern).
func flat(flag string, all []pair) bool {
	modern := slices.ContainsFunc(all, func(p pair) bool { return p.key == "type" && (p.value == "stream" || p.value == "dgram") })
	return flag == "netdev" && !modern || flag == "numa" || flag == "object"
}

// flat checks pairs against the members of a type, and of the types inside it. A key may come more than once where the
// member is a list.
func (c *checker) flat(flag, typeName string, all []pair) {
	properties := map[string]any{}
	for _, p := range all {
		properties[p.key] = word(p.value)
	}
	c.name(flag, properties)
	q := qapi{checker: c, flag: flag}
	t := c.schema.Types[typeName]
	members, ok := q.members(t, properties, "")
	if !ok {
		return
	}
	for _, p := range all {
		m, ok := members[p.key]
		if !ok && p.bare { // "noshare" (util/qemu-option.c)
			m, ok = members[strings.TrimPrefix(p.key, "no")]
		}
		if first, _, dotted := strings.Cut(p.key, "."); !ok && dotted {
			_, ok = members[first]
		}
		if !ok {
			q.unknown(q.subject(t, properties), p.key, members)
			continue
		}
		if target := c.schema.Types[m.Type]; (target.Kind == "builtin" || target.Kind == "enum") && !p.bare {
			q.value(m.Type, word(p.value), p.key)
		}
		q.refer(p.key, word(p.value))
	}
}

// qapi checks values against types of QAPI.
type qapi struct {
	*checker
	flag  string
	depth int
}

// subject returns what has the members: a driver, or the option.
func (q *qapi) subject(t schema.Type, properties map[string]any) string {
	if name := spelled(properties[t.Tag]); t.Tag != "" && name != "" {
		return shorten(name)
	}
	return "-" + q.flag
}

// members returns those of an object and of the variant that its tag picks. It complains of those that are missing.
func (q *qapi) members(t schema.Type, properties map[string]any, path string) (map[string]schema.Member, bool) {
	members := map[string]schema.Member{}
	for range deepest {
		for _, m := range t.Members {
			members[m.Name] = m
			if _, there := properties[m.Name]; !there && !m.Optional {
				q.problem("%q is missing", join(path, m.Name))
				if m.Name == t.Tag {
					return nil, false
				}
			}
		}
		for _, name := range t.Deprecated {
			if _, there := properties[name]; there {
				q.warn("%q is deprecated", join(path, name))
			}
		}
		if t.Tag == "" {
			return members, true
		}
		tag := spelled(properties[t.Tag])
		if values := q.schema.Types[members[t.Tag].Type].Values; properties[t.Tag] != nil && !slices.Contains(values, tag) {
			q.variant(join(path, t.Tag), properties[t.Tag], values)
			return nil, false
		}
		t = q.schema.Types[t.Variants[tag]]
	}
	return members, true
}

// variant complains of a driver or type that there is not.
func (q *qapi) variant(path string, value any, values []string) {
	name := spelled(value)
	has := func(s *schema.Schema) bool {
		typeName, _ := typeOf(s, q.flag)
		t := s.Types[typeName]
		for _, m := range t.Members {
			if m.Name == t.Tag && path == t.Tag {
				return slices.Contains(s.Types[m.Type].Values, name)
			}
		}
		return false
	}
	q.problem("QEMU %s has no %s %s%s", q.schema.Release(), shorten(path), shown(value), q.hint(name, slices.Values(values), has))
}

// unknown complains of a member that there is not.
func (q *qapi) unknown(subject, name string, known map[string]schema.Member) {
	has := func(s *schema.Schema) bool { return hasMember(s, q.flag, subject, name) }
	q.problem("%s has no property %q%s", subject, shorten(name), q.hint(name, maps.Keys(known), has))
}

// hasMember reports whether a QEMU has a member: of the option, or of one of its variants, not of what is inside.
func hasMember(s *schema.Schema, flag, variant, name string) bool {
	typeName, _ := typeOf(s, flag)
	t := s.Types[typeName]
	for range deepest {
		if slices.ContainsFunc(t.Members, func(m schema.Member) bool { return m.Name == name }) {
			return true
		}
		if t.Tag == "" {
			return false
		}
		t = s.Types[t.Variants[variant]]
	}
	return false
}

func join(path, name string) string { return strings.TrimPrefix(path+"."+name, ".") }

// object checks an object.
func (q *qapi) object(typeName string, properties map[string]any, path string) {
	t := q.schema.Types[typeName]
	members, ok := q.members(t, properties, path)
	if blockdev := q.schema.Commands["blockdev-add"]; typeName == blockdev {
		if id := spelled(properties["node-name"]); id != "" {
			q.define(nodes, id)
		}
		q.fdset(spelled(properties["filename"]))
	}
	if !ok {
		return // with an unknown variant all else is unknown too
	}
	subject := q.subject(t, properties)
	if path != "" && t.Tag == "" {
		subject = fmt.Sprintf("%q", path)
	}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		m, known := members[name]
		if !known {
			q.unknown(subject, name, members)
			continue
		}
		q.value(m.Type, properties[name], join(path, name))
		if path == "" {
			q.refer(name, properties[name])
		}
	}
}

// refer keeps what a property refers to.
func (q *qapi) refer(name string, value any) {
	id := spelled(value)
	switch {
	case id == "":
	case name == "chardev":
		q.refers(chardevs, name, id)
	case name == "netdev" && q.flag != "netdev":
		q.refers(netdevs, name, id)
	case name == "memdev" && q.flag == "numa":
		q.refers(objects, name, id)
	}
}

// value checks a value of any type.
func (q *qapi) value(typeName string, value any, path string) {
	if q.depth >= deepest {
		q.problem("%q: %v", shorten(path), errDeep)
		return
	}
	q.depth++
	defer func() { q.depth-- }()
	t := q.schema.Types[typeName]
	complaint := ""
	switch t.Kind {
	case "object":
		if properties, ok := value.(map[string]any); ok {
			q.object(typeName, properties, path)
			return
		}
		complaint = "want an object"
	case "array":
		list, ok := value.([]any)
		for i, element := range list {
			q.value(t.Element, element, fmt.Sprintf("%s.%d", path, i))
		}
		if !ok {
			complaint = "want a list"
		}
	case "alternate":
		complaint = q.alternate(t, value, path)
	case "enum":
		complaint = oneOf(value, t.Values)
		if complaint == "" && slices.Contains(t.Deprecated, spelled(value)) {
			q.warn("%q is %s, which is deprecated", path, shown(value))
		}
	case "builtin":
		complaint = builtin(typeName, t.JSON, value)
	}
	if complaint != "" {
		q.problem("%q is %s; %s", shorten(path), shown(value), complaint)
	}
}

// builtin complains of a value that is not of a builtin type: its name has the size, where QEMU does not hide it.
func builtin(name, kind string, value any) string {
	switch kind {
	case "boolean":
		return truth(value)
	case "string":
		return text(value)
	case "int":
		if _, isWord := value.(word); isWord {
			// QAPI hides which of them are sizes, and a word may be one.
			if size(string(value.(word))) == "" {
				return ""
			}
		}
		return integer(value, name)
	case "null":
		if value != nil {
			return "want null"
		}
	}
	return ""
}

// alternate checks a value against the choice of an alternate that has its form.
func (q *qapi) alternate(t schema.Type, value any, path string) string {
	var wanted []string
	for _, m := range t.Members {
		choice := q.schema.Types[m.Type]
		switch _, isObject := value.(map[string]any); {
		case choice.Kind == "object" && isObject:
			q.object(m.Type, value.(map[string]any), path)
			return ""
		case choice.Kind == "object":
			wanted = append(wanted, "an object")
		case choice.Kind == "array":
			if list, ok := value.([]any); ok {
				q.value(m.Type, list, path)
				return ""
			}
			wanted = append(wanted, "a list")
		case choice.Kind == "enum":
			if oneOf(value, choice.Values) == "" {
				return ""
			}
			wanted = append(wanted, strings.Join(choice.Values, ", "))
		case choice.Kind == "builtin":
			if builtin(m.Type, choice.JSON, value) == "" {
				q.node(t, value, path)
				return ""
			}
			wanted = append(wanted, map[string]string{"string": "a text", "boolean": "true or false", "int": "a number", "null": "null"}[choice.JSON])
		}
	}
	return "want " + strings.Join(wanted, ", or ")
}

// node keeps that a text refers to a block node: the alternate's other choice is a block node itself.
func (q *qapi) node(t schema.Type, value any, path string) {
	blockdev := q.schema.Commands["blockdev-add"]
	if id := spelled(value); id != "" && slices.ContainsFunc(t.Members, func(m schema.Member) bool { return m.Type == blockdev }) {
		q.refers(nodes, path, id)
	}
}
