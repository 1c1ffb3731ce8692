package launcher

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/launchertest"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

var record = flag.Bool("record", false,
	"record the contract anew: until the first release, after which launchers of the recorded one live on")

// recorded is a session of a handler and a launcher. From the first release on it stays as
// it is. Package controllers/node plays the launcher's side to today's virt-handler, and
// TestRecordedHandler the handler's to today's launcher.
const recorded = "testdata/contract.jsonl"

// dirMark stands for the folder in which a session's files are.
const dirMark = "@DIR@"

// said is a line of a session.
type said struct {
	Launcher *spoken `json:"launcher,omitempty"`
	Handler  *spoken `json:"handler,omitempty"`
}

// spoken is a message as it is on the line.
type spoken struct {
	Execute string               `json:"execute,omitempty"`
	Event   string               `json:"event,omitempty"`
	ID      uint64               `json:"id,omitempty"`
	Data    json.RawMessage      `json:"data,omitempty"`
	Return  json.RawMessage      `json:"return,omitempty"`
	Error   *control.RemoteError `json:"error,omitempty"`
	Files   []string             `json:"files,omitempty"`
}

// asks returns the commands of the session to be recorded.
func asks(t *testing.T) []spoken {
	t.Helper()
	machine := qemuargs.Machine{
		Version: qemuargs.Version, Arch: qemuargs.AMD64, SATA: true, PS2: true, Name: "ns_guest",
		UUID: "0a1b2c3d-0000-4000-8000-000000000001", Type: "pc-q35-7.2", Accelerator: qemuargs.TCG, MemoryBytes: 32 << 20,
		CPU: qemuargs.CPU{Model: "max", Sockets: 1, Cores: 1, Threads: 1}, Serial: &qemuargs.Serial{},
		Disks: []qemuargs.Disk{
			{Name: "root", Driver: qemuargs.IDEDisk, Bus: "ide.0", BootIndex: 1,
				Image:   qemuargs.Image{Path: dirMark + "/image/disk/d.img", Format: qemuargs.Raw},
				Overlay: &qemuargs.Overlay{Path: dirMark + "/root.qcow2", VirtualSize: 1 << 20}},
			{Name: "data", Driver: qemuargs.IDEDisk, Bus: "ide.1",
				Image: qemuargs.Image{Path: dirMark + "/data/disk.img", Format: qemuargs.Raw, Volume: qemuargs.FileVolume,
					Create: 1 << 20}},
		},
	}
	start := control.StartRequest{Machine: machine, GraceSeconds: 30}
	var out []spoken
	for _, ask := range []struct {
		command   string
		arguments any
	}{
		{control.CommandQueryCommands, nil},
		{control.CommandInspect,
			control.InspectRequest{ContainerDisks: []control.ContainerDisk{{Volume: "image"}},
				Claims: []control.Claim{{Volume: "data"}}}},
		{control.CommandStart, start},
		{control.CommandQueryState, nil},
		{control.CommandConsole, nil},
		{control.CommandBecome, nil}, // what the machine is by then, with a larger disk
		{control.CommandForgetJob, control.JobRequest{ID: 1}},
		{control.CommandShutdown, nil},
	} {
		data, err := json.Marshal(ask.arguments)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, spoken{Execute: ask.command, ID: uint64(len(out) + 1), Data: data})
	}
	return out
}

// grown returns a request by which the machine of the last report gets a larger second disk.
func grown(t *testing.T, all []said) []byte {
	t.Helper()
	var report control.StateReport
	for _, s := range all {
		if s.Launcher != nil && s.Launcher.Event == control.EventState {
			report = control.StateReport{}
			if err := control.Told(s.Launcher.Data, &report); err != nil {
				t.Fatal(err)
			}
		}
	}
	request := control.BecomeRequest{Machine: *report.Machine}
	request.Machine.Disks[1].Image.Size = 2 << 20
	data, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// talk runs a launcher, asks it the questions, and returns all that both said.
func talk(t *testing.T, questions []spoken) []said {
	t.Helper()
	v := prepareVM(t)
	dir := v.dir
	v.Images, v.Overlays, v.Claims = dir, dir, dir
	v.must(os.MkdirAll(v.path("image/disk"), 0o755), os.MkdirAll(v.path("data"), 0o755))
	launchertest.Guest(t, v.path("image/disk/d.img"))
	v.run()
	raw, err := v.handler.AcceptUnix()
	v.must(err)
	defer raw.Close()
	raw.SetReadDeadline(time.Now().Add(2 * patience))
	conn := control.NewConn(raw)
	var all []said
	// until reads up to a message, or to the end.
	until := func(is func(*control.Message) bool) {
		t.Helper()
		for {
			m, err := conn.Receive()
			if err != nil && is(nil) {
				return
			}
			if err != nil {
				t.Fatalf("the launcher said %s and then no more: %v", encode(t, all), err)
			}
			s := &spoken{Event: m.Event, ID: m.ID, Data: m.Data, Return: m.Return, Error: m.Error}
			for _, f := range m.Files {
				s.Files = append(s.Files, f.Name)
			}
			all = append(all, said{Launcher: s})
			m.Close()
			if is(m) {
				return
			}
		}
	}
	state := func(is func(control.StateReport) bool) func(*control.Message) bool {
		return func(m *control.Message) bool {
			var report control.StateReport
			return m != nil && m.Event == control.EventState && control.Told(m.Data, &report) == nil && is(report)
		}
	}
	until(func(m *control.Message) bool { return m != nil && m.Event == control.EventHello })
	for _, q := range questions {
		all = append(all, said{Handler: &q})
		data := bytes.ReplaceAll(q.Data, []byte(dirMark), []byte(dir))
		if q.Execute == control.CommandBecome {
			data = grown(t, all)
		}
		if err := conn.Send(control.Message{Execute: q.Execute, ID: q.ID, Data: data}); err != nil {
			t.Fatal(err)
		}
		until(func(m *control.Message) bool { return m != nil && m.Event == "" && m.ID == q.ID })
		switch q.Execute {
		case control.CommandStart:
			until(state(func(s control.StateReport) bool { return s.State == control.StateRunning }))
			v.stdout.Expect(banner)
			obey(v)
		case control.CommandBecome:
			until(state(func(s control.StateReport) bool { return len(s.Jobs) == 1 && s.Jobs[0].Finished() }))
		case control.CommandShutdown:
			until(func(m *control.Message) bool { return m == nil })
		}
	}
	for i := range all {
		if l := all[i].Launcher; l != nil {
			l.Data, l.Return = bytes.ReplaceAll(l.Data, []byte(dir), []byte(dirMark)),
				bytes.ReplaceAll(l.Return, []byte(dir), []byte(dirMark))
		}
	}
	return all
}

// TestRecordedHandler: today's launcher understands the recorded
// handler, and tells it no less than the launcher did that was recorded.
func TestRecordedHandler(t *testing.T) {
	if *record {
		var out bytes.Buffer
		for _, line := range talk(t, asks(t)) {
			out.Write(append(encode(t, line), '\n'))
		}
		if err := os.WriteFile(recorded, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	then := session(t)
	var questions []spoken
	for _, s := range then {
		if s.Handler != nil {
			questions = append(questions, *s.Handler)
		}
	}
	now := talk(t, questions)
	for _, is := range []struct {
		what string
		of   func(*spoken) bool
	}{
		{"hello", func(s *spoken) bool { return s.Event == control.EventHello }},
		{"state", func(s *spoken) bool { return s.Event == control.EventState }},
	} {
		want, got := told(t, then, is.of), told(t, now, is.of)
		if missing := less(got, want); len(missing) > 0 {
			t.Errorf("%s lacks %q", is.what, missing)
		}
	}
	for _, q := range questions {
		answer := func(s *spoken) bool { return s.Event == "" && s.ID == q.ID }
		want, got := told(t, then, answer), told(t, now, answer)
		if missing := less(got, want); len(missing) > 0 || slices.Contains(got, ".error") {
			t.Errorf("the answer to %s is %q, and lacks %q", q.Execute, got, missing)
		}
	}
}

// session returns what was recorded.
func session(t *testing.T) []said {
	t.Helper()
	file, err := os.Open(recorded)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var out []said
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, control.MaxMessageBytes)
	for lines.Scan() {
		var s said
		if err := control.Decode(lines.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		out = append(out, s)
	}
	if err := lines.Err(); err != nil || len(out) == 0 {
		t.Fatalf("%d lines, %v", len(out), err)
	}
	return out
}

// told returns the fields of those of the launcher's messages that are meant, and the states in them.
func told(t *testing.T, all []said, meant func(*spoken) bool) []string {
	t.Helper()
	var out []string
	for _, s := range all {
		if s.Launcher == nil || !meant(s.Launcher) {
			continue
		}
		var value any
		if err := json.Unmarshal(encode(t, s.Launcher), &value); err != nil {
			t.Fatal(err)
		}
		fields("", value, func(path string) {
			if !slices.Contains(out, path) {
				out = append(out, path)
			}
		})
	}
	return out
}

// ofMachine matches what the machine says of itself, and another machine, or the same at another time, may not.
var ofMachine = regexp.MustCompile(`^\.return\.(aio|overlayBlocks|(containerDisks|claims)\[\]\.blocks)$`)

// fields calls found with the path of each field of a document. A state, a command or a file's name comes with its
// value. Fields of the machine (ofMachine) are left out.
func fields(path string, value any, found func(string)) {
	switch v := value.(type) {
	case map[string]any:
		for name, field := range v {
			if below := path + "." + name; !ofMachine.MatchString(below) {
				fields(below, field, found)
			}
		}
	case []any:
		for _, item := range v {
			fields(path+"[]", item, found)
		}
	case string:
		known := strings.HasPrefix(path, ".return.") && strings.HasSuffix(path, "[]") // a field of a command
		if known || strings.HasSuffix(path, ".state") || strings.HasSuffix(path, "files[]") {
			path += fmt.Sprintf("=%s", v)
		}
		found(path)
	default:
		found(path)
	}
}

func less(got, want []string) []string {
	return slices.DeleteFunc(slices.Clone(want), func(field string) bool { return slices.Contains(got, field) })
}
