package explain

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// observed is an argument as an experiment sees it.
type observed struct {
	// key is the same for the same argument of another machine, whatever its properties are.
	key string
	// renamed: the key has a name that a change has brought, which key does not show.
	renamed    bool
	arg        qemuargs.Arg
	properties []Property
}

// observe returns a machine's arguments, in the order in which QEMU gets them. old and other are the names of a thing
// before a change and after it: a key has the old one. Both are empty where nothing has another name.
func observe(m *qemuargs.Machine, old, other string) []observed {
	var out []observed
	for _, part := range m.Parts() {
		unnamed := map[string]int{}
		for _, a := range part.Args {
			o := observed{arg: a, properties: properties(a)}
			id := o.id()
			if id == "" {
				if len(o.properties) > 0 {
					id = o.properties[0].Name
				}
				unnamed[a.Flag+id]++
				id += fmt.Sprint(unnamed[a.Flag+id])
			}
			o.key = part.Name + " " + a.Flag + " " + id
			if other != "" {
				o.renamed = strings.Contains(o.key, other)
				o.key = strings.ReplaceAll(o.key, other, old)
			}
			out = append(out, o)
		}
	}
	return out
}

// id returns the id of a device, a node or the like; empty for an argument without one.
func (o observed) id() string {
	for _, p := range o.properties {
		if p.isName() {
			return plain(p.Value)
		}
	}
	return ""
}

// properties returns an argument's properties in the order in which QEMU gets them. An argument without a value has
// none, and a value that is a text is a property without a name.
func properties(a qemuargs.Arg) (out []Property) {
	switch v := a.Value.(type) {
	case nil:
		return nil
	case string:
		return []Property{{Value: v}}
	case qemuargs.Options:
		for _, o := range v {
			out = append(out, Property{Name: o.Key, Value: o.Value})
		}
		return out
	}
	return fieldsOf(reflect.ValueOf(a.Value))
}

// fieldsOf returns the fields of a struct that JSON shows.
func fieldsOf(props reflect.Value) (out []Property) {
	for i := range props.NumField() {
		f, value := props.Type().Field(i), props.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			out = append(out, fieldsOf(value)...) // embedded
			continue
		}
		if options == "omitempty" && value.IsZero() {
			continue
		}
		text, err := json.Marshal(value.Interface())
		if err != nil {
			panic("explain: " + err.Error()) // QEMU gets it as JSON
		}
		out = append(out, Property{Name: name, Value: string(text)})
	}
	return out
}

// values returns the values of the argument's properties by their keys. Flags of a CPU have no names but their own.
func (o observed) values() map[string]string {
	out := map[string]string{}
	for n, p := range o.properties {
		out[propertyKey(o.arg.Flag, n, p)] = unnumbered(p)
	}
	return out
}

func propertyKey(flag string, n int, p Property) string {
	if flag == "-cpu" && n > 0 {
		name, _, _ := strings.Cut(p.Value, "=")
		return name
	}
	return p.Name
}

// The numbers of inherited files, which move whenever a device comes or goes.
var (
	descriptors = regexp.MustCompile(`^((vhost)?fds?|set)$`)
	fdset       = regexp.MustCompile(`/dev/fdset/\d+`)
	inherited   = regexp.MustCompile(`^{"type":"fd","str":"\d+"}$`)
	digits      = regexp.MustCompile(`\d+`)
)

// unnumbered returns a property's value without numbers of files.
func unnumbered(p Property) string {
	if descriptors.MatchString(p.Name) || inherited.MatchString(p.Value) {
		return digits.ReplaceAllString(p.Value, "N")
	}
	return fdset.ReplaceAllString(p.Value, "/dev/fdset/N")
}
