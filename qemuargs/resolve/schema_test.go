package resolve

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestQEMUKnowsEveryProperty holds every property of every golden case against what QEMUs say
// that they know: QEMU itself ignores no misspelt name, but only a started QEMU
// would tell, and not about every case. The host's and the image's are asked; of
// 10.0, which is neither, testdata holds what it said (-capture).
func TestQEMUKnowsEveryProperty(t *testing.T) {
	for _, p := range qemus(t) {
		t.Run(p.version, func(t *testing.T) { checkGoldens(t, askQEMU(t, p), p.version) })
	}
	t.Run(capturedVersion, func(t *testing.T) {
		if *capture != "" {
			k := askQEMU(t, captured(t))
			k.touched = &capturedSchema{Types: map[string]schemaType{}, Devices: map[string]map[string]string{}}
			checkGoldens(t, k, capturedVersion)
			k.touched.write(t)
		}
		checkGoldens(t, readCaptured(t), capturedVersion)
	})
}

func checkGoldens(t *testing.T, q *knowledge, version string) {
	checked := map[string]int{}
	for _, dir := range cases(t, machineCases) {
		vmi, host := load(t, dir, hosts[0])
		host.QEMUVersion = version
		machine, errs := Machine(vmi, host)
		if len(errs) > 0 || isForeign(machine) {
			continue
		}
		for _, arg := range machine.Args() {
			words := qemuargs.Strings([]qemuargs.Arg{arg})
			if len(words) < 2 || !strings.HasPrefix(words[1], "{") {
				continue
			}
			var properties map[string]any
			if err := json.Unmarshal([]byte(words[1]), &properties); err != nil {
				t.Fatal(err)
			}
			checked[arg.Flag]++
			if err := q.check(arg.Flag, properties); err != nil {
				t.Errorf("%s: %s %s: %v", filepath.Base(dir), arg.Flag, words[1], err)
			}
		}
	}
	for _, flag := range []string{"-blockdev", "-netdev", "-object", "-device"} {
		if checked[flag] == 0 {
			t.Errorf("no %s was checked", flag)
		}
	}
}

// The check itself must be able to fail.
func TestUnknownPropertyIsFound(t *testing.T) {
	for _, p := range qemus(t) {
		t.Run(p.version, func(t *testing.T) { refuses(t, askQEMU(t, p)) })
	}
	t.Run(capturedVersion, func(t *testing.T) { refuses(t, readCaptured(t)) })
}

func refuses(t *testing.T, q *knowledge) {
	tests := []struct {
		flag, json, problem string
	}{
		{"-blockdev", `{"driver":"file","node-name":"a","filename":"f","file-name":"f"}`, `unknown "file-name"`},
		{"-blockdev", `{"driver":"file","node-name":"a"}`, `"filename" is missing`},
		{"-blockdev", `{"driver":"qcow3","file":"a"}`, "driver"},
		{"-blockdev", `{"driver":"qcow2","file":"a","cache":{"direct":"on"}}`, "cache.direct"},
		{"-blockdev", `{"driver":"raw","file":"a","backing":null}`, `unknown "backing"`},
		{"-netdev", `{"type":"tap","id":"a","fd":3}`, "fd"},
		{"-netdev", `{"type":"tap","id":"a","queue":"3"}`, `unknown "queue"`},
		{"-object", `{"qom-type":"rng-random","id":"a","file":"f"}`, `unknown "file"`},
		{"-device", `{"driver":"ide-hd","id":"a","host_mtu":1500}`, `unknown "host_mtu"`},
		{"-device", `{"driver":"virtio-blk-pcie","id":"a"}`, "virtio-blk-pcie"},
	}
	for _, tt := range tests {
		var properties map[string]any
		if err := json.Unmarshal([]byte(tt.json), &properties); err != nil {
			t.Fatal(err)
		}
		if err := q.check(tt.flag, properties); err == nil || !strings.Contains(err.Error(), tt.problem) {
			t.Errorf("%s %s: %v, want a complaint about %s", tt.flag, tt.json, err, tt.problem)
		}
	}
	good := map[string]any{"driver": "qcow2", "node-name": "a", "file": "b", "backing": nil, "cache": map[string]any{"direct": true}}
	if err := q.check("-blockdev", good); err != nil {
		t.Errorf("a good -blockdev: %v", err)
	}
}

// schemaType is an entry of query-qmp-schema (QEMU qapi/introspect.json).
type schemaType struct {
	Name     string `json:"name"`
	MetaType string `json:"meta-type"`
	JSONType string `json:"json-type,omitempty"`    // of a builtin
	ArgType  string `json:"arg-type,omitempty"`     // of a command
	Element  string `json:"element-type,omitempty"` // of an array
	Values   []any  `json:"values,omitempty"`       // of an enum
	Tag      string `json:"tag,omitempty"`
	Members  []struct {
		Name    string          `json:"name"`
		Type    string          `json:"type"`
		Default json.RawMessage `json:"default,omitempty"` // there, even as null, if the member is optional
	} `json:"members,omitempty"`
	Variants []schemaVariant `json:"variants,omitempty"`
}

type schemaVariant struct {
	Case string `json:"case"`
	Type string `json:"type"`
}

// knowledge is what a QEMU says of itself.
type knowledge struct {
	client  *qmp.Client // nil if it is captured
	types   map[string]schemaType
	devices map[string]map[string]string // types of properties, by driver
	touched *capturedSchema              // collects what was asked for, if set
}

// askQEMU starts a QEMU without a machine for the test's time.
func askQEMU(t *testing.T, p program) *knowledge {
	t.Helper()
	none := &qemuargs.Machine{}
	monitor, files := inherited(t, none)
	cmd := p.command("-M", "none", "-nodefaults", "-no-user-config", "-display", "none", "-S", "-chardev", "socket,id=qmp,fd=3", "-mon", "chardev=qmp,mode=control")
	cmd.ExtraFiles = files
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	client := qmp.New(monitor.(*net.UnixConn), qmp.Options{})
	t.Cleanup(func() {
		client.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	if err := client.Connect(); err != nil {
		t.Fatal(err)
	}
	k := &knowledge{client: client, types: map[string]schemaType{}, devices: map[string]map[string]string{}}
	var types []schemaType
	if err := k.ask("query-qmp-schema", nil, &types); err != nil {
		t.Fatal(err)
	}
	for _, s := range types {
		k.types[s.MetaType+" "+s.Name] = s
		if s.MetaType != "command" && s.MetaType != "event" {
			k.types[s.Name] = s
		}
	}
	return k
}

func (k *knowledge) ask(command string, arguments, result any) error {
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	return k.client.Execute(ctx, command, arguments, result)
}

func (k *knowledge) check(flag string, properties map[string]any) error {
	if flag == "-device" {
		return k.checkDevice(properties)
	}
	command := map[string]string{"-blockdev": "blockdev-add", "-netdev": "netdev_add", "-object": "object-add"}[flag]
	s, ok := k.lookup("command " + command)
	if !ok {
		return fmt.Errorf("QEMU has no command %q for it", command)
	}
	return k.value(s.ArgType, properties, "")
}

func (k *knowledge) checkDevice(properties map[string]any) error {
	types, err := k.device(fmt.Sprint(properties["driver"]))
	if err != nil {
		return err
	}
	for name, value := range properties {
		kind, ok := types[name]
		if !ok {
			return fmt.Errorf("unknown %q", name)
		}
		if k.touched != nil {
			k.touched.device(fmt.Sprint(properties["driver"]))[name] = kind
		}
		_, text := value.(string)
		_, truth := value.(bool)
		_, number := value.(float64)
		switch {
		case kind == "bool" && !truth, kind == "str" && !text, strings.HasPrefix(kind, "uint") && !number:
			return fmt.Errorf("%q is %v, want %s", name, value, kind)
		}
	}
	return nil
}

// device gives the types of a device's properties.
func (k *knowledge) device(driver string) (map[string]string, error) {
	if types, ok := k.devices[driver]; ok {
		return types, nil
	}
	if k.client == nil {
		return nil, fmt.Errorf("nothing was captured of %q", driver)
	}
	var known []struct{ Name, Type string }
	if err := k.ask("device-list-properties", map[string]any{"typename": driver}, &known); err != nil {
		return nil, err
	}
	types := map[string]string{"driver": "str", "id": "str", "bus": "str"} // device_add's own
	for _, p := range known {
		types[p.Name] = p.Type
	}
	k.devices[driver] = types
	return types, nil
}

// lookup finds a type of the schema.
func (k *knowledge) lookup(name string) (schemaType, bool) {
	s, ok := k.types[name]
	if ok && k.touched != nil {
		k.touched.Types[name] = s
	}
	return s, ok
}

// value checks a value against a type of the schema; path is where it is.
func (k *knowledge) value(typeName string, value any, path string) error {
	s, _ := k.lookup(typeName)
	switch s.MetaType {
	case "object":
		properties, ok := value.(map[string]any)
		if !ok {
			return fmt.Errorf("%s is no object", path)
		}
		return k.object(s, properties, path)
	case "alternate":
		var last error
		for _, m := range s.Members {
			if last = k.value(m.Type, value, path); last == nil {
				return nil
			}
		}
		return last
	case "array":
		for _, element := range value.([]any) {
			if err := k.value(s.Element, element, path+"[]"); err != nil {
				return err
			}
		}
		return nil
	case "enum":
		if !slices.Contains(s.Values, value) {
			return fmt.Errorf("%s is %v, want one of %v", path, value, s.Values)
		}
		return nil
	case "builtin":
		if got := jsonType(value); got != s.JSONType && s.JSONType != "value" && !(got == "int" && s.JSONType == "number") {
			return fmt.Errorf("%s is of type %s, want %s", path, got, s.JSONType)
		}
		return nil
	}
	return fmt.Errorf("%s: schema has no type %q", path, typeName)
}

// object checks the members of an object and of the variant that its tag picks.
func (k *knowledge) object(s schemaType, properties map[string]any, path string) error {
	members, err := k.members(s, properties)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if s.Tag != "" {
		// First: with an unknown variant all else is unknown too.
		if err := k.value(members[s.Tag], properties[s.Tag], strings.TrimPrefix(path+"."+s.Tag, ".")); err != nil {
			return err
		}
	}
	for name, value := range properties {
		memberType, ok := members[name]
		if !ok {
			return fmt.Errorf("%s: unknown %q", path, name)
		}
		if err := k.value(memberType, value, strings.TrimPrefix(path+"."+name, ".")); err != nil {
			return err
		}
	}
	return nil
}

func (k *knowledge) members(s schemaType, properties map[string]any) (map[string]string, error) {
	members := map[string]string{}
	for _, m := range s.Members {
		if _, ok := properties[m.Name]; !ok && m.Default == nil {
			return nil, fmt.Errorf("%q is missing", m.Name)
		}
		members[m.Name] = m.Type
	}
	for _, variant := range s.Variants {
		if properties[s.Tag] != variant.Case {
			continue
		}
		picked, _ := k.lookup(variant.Type)
		more, err := k.members(picked, properties)
		if err != nil {
			return nil, err
		}
		for name, t := range more {
			members[name] = t
		}
	}
	return members, nil
}

func jsonType(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case string:
		return "string"
	case bool:
		return "boolean"
	case float64:
		if v == float64(int64(v)) {
			return "int"
		}
		return "number"
	}
	return "object"
}
