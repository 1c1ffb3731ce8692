package control

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// argumentsOf returns the commands of this version, each with a value of its arguments' type; nil for those without
// arguments.
func argumentsOf() map[string]any {
	return map[string]any{
		CommandInspect: InspectRequest{}, CommandStart: StartRequest{}, CommandQueryCommands: nil, CommandQueryState: nil, CommandShutdown: nil, CommandReject: Termination{},
		CommandPause: nil, CommandUnpause: nil, CommandReset: nil, CommandSoftReboot: nil, CommandGrace: GraceRequest{},
		CommandBecome: BecomeRequest{}, CommandCancelJob: JobRequest{}, CommandForgetJob: JobRequest{},
		CommandConsole: nil, CommandVNC: nil, CommandScreenshot: nil, CommandMovePointer: nil, CommandStats: nil,
		CommandArguments: nil,
		CommandGuestInfo: nil, CommandUsers: nil, CommandFileSystems: nil, CommandFreeze: FreezeRequest{}, CommandUnfreeze: nil,
		CommandHoldPings: HoldPingsRequest{}, CommandOpenChannel: nil, CommandExportDisk: DiskRequest{}, CommandMirrorDisk: DiskRequest{},
		CommandReceive: nil, CommandMigrate: MigrateRequest{}, CommandRun: RunRequest{}, CommandTakeBack: nil, CommandRelease: nil,
		CommandPermitPostCopy: nil, CommandPostCopy: JobRequest{},
	}
}

// knownFields returns the paths of all fields that JSON of a type may have, in order.
func knownFields(t reflect.Type) []string {
	var out []string
	var walk func(t reflect.Type, prefix string)
	walk = func(t reflect.Type, prefix string) {
		for f := range fieldsOf(elementOf(t)) {
			out = append(out, prefix+f.name)
			walk(f.Type, prefix+f.name+".")
		}
	}
	walk(t, "")
	slices.Sort(out)
	return slices.Compact(out)
}

var update = flag.Bool("update", false, "write commands.json")

// TestCommandsAreWritten: commands.json has what the types of the commands' arguments say.
func TestCommandsAreWritten(t *testing.T) {
	said := Commands{}
	for command, arguments := range argumentsOf() {
		said[command] = []string{}
		if arguments != nil {
			said[command] = knownFields(reflect.TypeOf(arguments))
		}
	}
	text, err := json.Marshal(said)
	if err != nil {
		t.Fatal(err)
	}
	text = append(bytes.ReplaceAll(text, []byte(`],"`), []byte("],\n\"")), '\n')
	if *update {
		if err := os.WriteFile("commands.json", text, 0o644); err != nil {
			t.Fatal(err)
		}
	} else if string(text) != commandsText {
		t.Errorf("commands.json is not what the types say: go test ./launcher/control -update, and record the contract anew. Now it has:\n%s", text)
	}
}

// probe has fields of each kind that JSON knows.
type probe struct {
	Always  int               `json:"always"`
	Often   string            `json:"often,omitempty"`
	Below   *probeBelow       `json:"below,omitempty"`
	List    []probeBelow      `json:"list,omitempty"`
	ByName  map[string]*probe `json:"-"`
	Map     map[string]probeBelow
	Bytes   []byte       `json:"bytes,omitempty"`
	When    *time.Time   `json:"when,omitempty"`
	Zero    probeBelow   `json:"zero,omitzero"`
	Lists   [][]*float64 `json:"lists,omitempty"`
	private int
	probeEmbedded
}

type probeBelow struct {
	Name  string `json:"name,omitempty"`
	Other *bool  `json:"other,omitempty"`
}

type probeEmbedded struct {
	Inner int `json:"inner,omitempty"`
}

// TestFieldsAreThoseOfJSON: the paths are those of the names in JSON, also of what lists and maps hold, and a time
// has none below it.
func TestFieldsAreThoseOfJSON(t *testing.T) {
	want := []string{"Map", "Map.name", "Map.other", "always", "below", "below.name", "below.other", "bytes", "inner", "list", "list.name", "list.other", "lists", "often", "when", "zero", "zero.name", "zero.other"}
	if got := knownFields(reflect.TypeFor[*probe]()); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// TestSetFieldsAreThoseThatJSONShows: of values of every kind.
func TestSetFieldsAreThoseThatJSONShows(t *testing.T) {
	now, no := time.Now(), false
	for name, c := range map[string]struct {
		value probe
		want  []string
	}{
		"nothing":      {probe{}, []string{"Map", "always"}},
		"empty ones":   {probe{Below: &probeBelow{}, List: []probeBelow{}, Bytes: []byte{}}, []string{"Map", "always", "below"}},
		"a false":      {probe{Below: &probeBelow{Other: &no}}, []string{"Map", "always", "below", "below.other"}},
		"some of many": {probe{List: []probeBelow{{}, {Name: "a"}, {Name: "b"}}}, []string{"Map", "always", "list", "list.name"}},
		"a map":        {probe{Map: map[string]probeBelow{"k": {Name: "a"}}}, []string{"Map", "Map.name", "always"}},
		"the rest": {probe{Often: "o", Bytes: []byte("b"), When: &now, Zero: probeBelow{Name: "n"}, Lists: [][]*float64{{nil}}, private: 1, probeEmbedded: probeEmbedded{1}},
			[]string{"Map", "always", "bytes", "inner", "lists", "often", "when", "zero", "zero.name"}},
	} {
		var got []string
		setFields(reflect.ValueOf(&c.value), "", func(path string) bool { got = append(got, path); return true })
		slices.Sort(got)
		if got = slices.Compact(got); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestLackingFieldsAreNamedOnce: a field that a launcher does not know is named, and none below it.
func TestLackingFieldsAreNamedOnce(t *testing.T) {
	all := KnownCommands()
	request := &StartRequest{Machine: qemuargs.Machine{Sound: &qemuargs.Sound{}, Disks: []qemuargs.Disk{{Name: "a", ReadOnly: true}, {Name: "b", ReadOnly: true}}}, Paused: true}
	for name, c := range map[string]struct {
		command  string
		without  []string
		lacks    []string
		unknown  bool
		argument any
	}{
		"all known":           {command: CommandStart, argument: request},
		"an old launcher":     {command: CommandStart, argument: request, without: []string{"machine.sound", "machine.sound.model", "machine.disks.readOnly", "paused"}, lacks: []string{"machine.disks.readOnly", "machine.sound", "paused"}},
		"not what is not set": {command: CommandStart, argument: request, without: []string{"machine.tpm", "incoming"}},
		"no arguments":        {command: CommandPause},
		"an unknown command":  {command: "teleport", unknown: true},
		"its arguments, too":  {command: "teleport", argument: request, unknown: true},
	} {
		has := Commands{}
		for command, fields := range all {
			has[command] = fields
		}
		has[CommandStart] = slices.DeleteFunc(slices.Clone(all[CommandStart]), func(f string) bool { return slices.Contains(c.without, f) })
		if known, lacks := has.Lack(c.command, c.argument); known == c.unknown || !slices.Equal(lacks, c.lacks) {
			t.Errorf("%s: known %v, lacks %q", name, known, lacks)
		}
	}
}

// TestWithinKeepsWhatBothHave: what a launcher says beyond what this version knows is dropped, and a launcher that
// knows all shares the memory of one list.
func TestWithinKeepsWhatBothHave(t *testing.T) {
	ours := Commands{"a": {"x", "y"}, "b": nil}
	for name, c := range map[string]struct{ theirs, want Commands }{
		"the same":        {Commands{"a": {"y", "x"}, "b": nil}, ours},
		"more":            {Commands{"a": {"x", "y", "z"}, "b": {"n"}, "c": nil}, ours},
		"less":            {Commands{"a": {"y"}}, Commands{"a": {"y"}}},
		"nothing":         {nil, Commands{}},
		"without a field": {Commands{"a": nil, "b": nil}, Commands{"a": {}, "b": nil}},
	} {
		got := c.theirs.Within(ours)
		if len(got) != len(c.want) || !slices.Equal(got["a"], c.want["a"]) {
			t.Errorf("%s: %q", name, got)
		}
		if shared := reflect.ValueOf(got).Pointer() == reflect.ValueOf(ours).Pointer(); shared != (reflect.ValueOf(c.want).Pointer() == reflect.ValueOf(ours).Pointer()) {
			t.Errorf("%s: shared is %v", name, shared)
		}
	}
}

// TestHelloFitsIntoAMessage: what a launcher says of its commands takes a small part of what a hello may have beside
// the Machine.
func TestHelloFitsIntoAMessage(t *testing.T) {
	data, err := json.Marshal(KnownCommands())
	if err != nil || len(data) > MaxReportBytes/4 {
		t.Errorf("%d bytes, %v", len(data), err)
	}
	fields := KnownCommands()[CommandStart]
	if !slices.IsSorted(fields) || !slices.Contains(fields, "machine.disks.image.path") || !slices.Contains(fields, "cloudInit.devices") {
		t.Errorf("%q", fields)
	}
	t.Logf("%d bytes, %d fields of a start", len(data), len(fields))
}

// recorded returns what the recorded launcher knows.
func recorded(t *testing.T) Commands {
	t.Helper()
	text, err := os.ReadFile("../testdata/contract.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	asked := false
	for line := range bytes.Lines(text) {
		var said struct {
			Handler  struct{ Execute string }
			Launcher struct{ Return json.RawMessage }
		}
		if err := json.Unmarshal(line, &said); err != nil {
			t.Fatal(err)
		}
		var commands Commands
		if asked && said.Launcher.Return != nil && json.Unmarshal(said.Launcher.Return, &commands) == nil && len(commands) > 0 {
			return commands
		}
		asked = said.Handler.Execute == CommandQueryCommands
	}
	t.Fatal("the recorded launcher was not asked what it knows")
	return nil
}

// TestNewFieldsAreLeftOutIfNotSet: a field that the recorded launcher does not know, of a part that it knows, must
// not be in the JSON unless it is set. Else that launcher could start no VM with that part any more.
func TestNewFieldsAreLeftOutIfNotSet(t *testing.T) {
	then := recorded(t)
	for command, arguments := range argumentsOf() {
		if arguments == nil || then[command] == nil {
			continue
		}
		eachField(reflect.TypeOf(arguments), "", func(path string, f jsonField) {
			parent := path[:max(strings.LastIndexByte(path, '.'), 0)]
			known := slices.Contains(then[command], path) || parent != "" && !slices.Contains(then[command], parent)
			if !known && !strings.Contains(f.options, "omit") {
				t.Errorf("%s: %s is new, and is in the JSON though it is not set: give it omitempty", command, path)
			}
		})
	}
}

// TestArgumentTypesArePlain: the arguments are made of types in which setFields finds what JSON shows.
func TestArgumentTypesArePlain(t *testing.T) {
	for command, arguments := range argumentsOf() {
		if arguments == nil {
			continue
		}
		eachField(reflect.TypeOf(arguments), "", func(path string, f jsonField) {
			_, zeroes := f.Type.MethodByName("IsZero")
			switch e := elementOf(f.Type); {
			case len(f.Index) > 1:
				t.Errorf("%s: %s is of an embedded struct", command, path)
			case e.Kind() == reflect.Interface:
				t.Errorf("%s: %s is an interface", command, path)
			case zeroes && strings.Contains(f.options, "omitzero") && !writesItself(e):
				t.Errorf("%s: %s has a method IsZero", command, path)
			case e != f.Type && writesItself(f.Type):
				t.Errorf("%s: %s is a list or a map that writes itself", command, path)
			}
		})
	}
}

// eachField calls found with each field of a type, and of what is in it.
func eachField(t reflect.Type, prefix string, found func(path string, f jsonField)) {
	for f := range fieldsOf(elementOf(t)) {
		found(prefix+f.name, f)
		eachField(f.Type, prefix+f.name+".", found)
	}
}

// TestCoreIsWhatEveryLauncherKnows: without one of the commands, or a field of theirs, nobody could tell a launcher
// anything.
func TestCoreIsWhatEveryLauncherKnows(t *testing.T) {
	if !KnownCommands().Core() || (Commands{}).Core() || (Commands(nil)).Core() {
		t.Error("this version's launcher lacks something, or one that knows nothing does not")
	}
	for _, command := range []string{CommandInspect, CommandStart, CommandReject, CommandShutdown, CommandGrace} {
		has := maps.Clone(KnownCommands())
		delete(has, command)
		if has.Core() {
			t.Errorf("a launcher without %s passes", command)
		}
	}
	for _, command := range []string{CommandReject, CommandGrace} {
		has := maps.Clone(KnownCommands())
		has[command] = nil
		if has.Core() {
			t.Errorf("a launcher without the arguments of %s passes", command)
		}
	}
}
