package resolve

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestSteppedMachineIsTheColdOne: a real QEMU that carries out the steps has the same devices, with the same
// properties, as one that was started with them.
func TestSteppedMachineIsTheColdOne(t *testing.T) {
	all := qemus(t)
	q := all[len(all)-1]
	for _, to := range []string{"disk-virtio", "disk-scsi", "disk-long-name", "disk-serial-scsi", "disk-block-size-file",
		"disk-shareable", "volume-claim", "volume-claim-block", "volume-cloud-init", "cdrom-scsi", "interface-masquerade",
		"interface-e1000e", "interface-link-down", "interface-multus-beside", "io-threads-auto", "io-threads-dedicated"} {
		t.Run(to, func(t *testing.T) {
			t.Parallel()
			was, next, errs := becoming(t, smallest, to)
			if len(errs) > 0 {
				t.Fatal(errs.ToAggregate())
			}
			steppedIsCold(t, q, was, next)
		})
	}
}

// TestSteppedPlacesAreTheColdOnes: the same, of CPUs, memory and media.
func TestSteppedPlacesAreTheColdOnes(t *testing.T) {
	all := qemus(t)
	for name, pair := range map[string][2][]string{
		"cpus and memory": {{"cpu-max-sockets", "memory-places"}, {"cpu-max-sockets", "cpus", "memory"}},
		"eject":           {{"cdrom-scsi"}, {"cdrom-scsi", "cdrom-empty"}},
		"insert":          {{"volume-claim-cdrom", "cdrom-empty"}, {"volume-claim-cdrom"}},
		"insert on sata":  {{"cdrom-sata", "cdrom-empty"}, {"cdrom-sata"}},
		"insert on usb":   {{"cdrom-usb", "cdrom-empty"}, {"cdrom-usb"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			was := changedBy(t, pair[0][0], pair[0][1:]...)
			steppedIsCold(t, all[len(all)-1], was, changedBy(t, pair[1][0], pair[1][1:]...))
		})
	}
}

// steppedIsCold starts a machine, has it become another, and compares what QEMU says of it with what QEMU says of that
// other machine when it is started so.
func steppedIsCold(t *testing.T, q program, was, next *qemuargs.Machine) {
	t.Helper()
	relocate(t, next)
	same := map[string]qemuargs.Disk{}
	for _, d := range next.Disks {
		same[d.Name] = d
	}
	was.Disks = slices.Clone(was.Disks)
	for i, d := range was.Disks {
		to := same[d.Name]
		if to.Image.Path == "" { // and this one has a medium
			to = d
			relocateDisk(t, t.TempDir(), &to)
		}
		if d.Image.Path != "" {
			was.Disks[i].Image, was.Disks[i].Overlay, was.Disks[i].AIO = to.Image, to.Overlay, to.AIO
		}
	}
	changes, restart := qemuargs.Become(was, next, was.Sets())
	if len(changes) == 0 || len(restart) > 0 {
		t.Fatalf("%s", summary(changes, restart))
	}
	running := startForSteps(t, q, was)
	files := filesOf(t, next)
	for _, c := range changes {
		for _, s := range c.Steps {
			running.do(t, s, files)
		}
	}
	stepped := running.tells(t)
	running.end()
	for _, f := range files {
		f.Close()
	}
	cold := startForSteps(t, q, next)
	want := cold.tells(t)
	cold.end()
	for path, value := range want {
		if !reflect.DeepEqual(stepped[path], value) {
			t.Errorf("%s is %v after the steps, and %v at the start", path, stepped[path], value)
		}
	}
	if len(stepped) != len(want) || len(want) < 20 {
		t.Errorf("QEMU tells %d things after the steps, and %d at the start", len(stepped), len(want))
	}
}

// stepped is a QEMU whose guest does not run.
type stepped struct {
	client *qmp.Client
	end    func()
}

func startForSteps(t *testing.T, q program, m *qemuargs.Machine) stepped {
	t.Helper()
	monitor, files := inherited(t, m)
	cmd := q.command(qemuargs.Strings(m.Args())...)
	cmd.ExtraFiles = files
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		f.Close()
	}
	client := qmp.New(monitor.(*net.UnixConn), qmp.Options{})
	end := func() {
		client.Close()
		cmd.Process.Kill()
		cmd.Wait()
	}
	t.Cleanup(func() {
		end()
		if t.Failed() {
			t.Logf("QEMU's stderr:\n%s\ncommand line:\n%s", stderr.String(), qemuargs.Quote(q.path, m.Args()))
		}
	})
	if err := client.Connect(); err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	return stepped{client, end}
}

// filesOf opens the files that a machine's QEMU has, by what they are.
func filesOf(t *testing.T, m *qemuargs.Machine) map[qemuargs.Inherited]*os.File {
	t.Helper()
	_, files := inherited(t, m)
	named := map[qemuargs.Inherited]*os.File{}
	for i, what := range m.Inherits() {
		named[what] = files[i]
	}
	return named
}

func (s stepped) ask(t *testing.T, command string, arguments, result any, files ...*os.File) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	if err := s.client.Execute(ctx, command, arguments, result, files...); err != nil {
		t.Fatalf("%s %v: %v", command, arguments, err)
	}
}

func (s stepped) do(t *testing.T, step qemuargs.Step, files map[qemuargs.Inherited]*os.File) {
	t.Helper()
	var along []*os.File
	if step.File != nil {
		along = append(along, files[*step.File])
	}
	s.ask(t, step.Command, step.Arguments, nil, along...)
}

// tells returns what QEMU says: the block nodes, threads and memory devices, and all properties of each device, such as
// its PCI address.
func (s stepped) tells(t *testing.T) map[string]any {
	t.Helper()
	told := map[string]any{}
	for _, query := range []string{"query-block", "query-named-block-nodes", "query-iothreads", "query-memory-devices"} {
		var list []map[string]any
		s.ask(t, query, nil, &list)
		for _, entry := range list {
			for _, passing := range []string{"thread-id", "device"} {
				delete(entry, passing)
			}
			told[query+" "+firstOf(entry, "qdev", "node-name", "id", "type")] = withoutSets(t, entry)
		}
	}
	var peripherals []struct{ Name, Type string }
	s.ask(t, "qom-list", map[string]any{"path": "/machine/peripheral"}, &peripherals)
	for _, device := range peripherals {
		if !strings.HasPrefix(device.Type, "child<") {
			continue
		}
		path := "/machine/peripheral/" + device.Name
		var properties []struct{ Name, Type string }
		s.ask(t, "qom-list", map[string]any{"path": path}, &properties)
		for _, p := range properties {
			if strings.HasPrefix(p.Type, "child<") || p.Name == "hotplugged" || strings.HasPrefix(p.Name, "legacy-") {
				continue
			}
			var value any
			ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
			err := s.client.Execute(ctx, "qom-get", map[string]any{"path": path, "property": p.Name}, &value)
			cancel()
			if err != nil {
				value = err.Error()
			}
			told[path+"."+p.Name] = value
		}
	}
	return told
}

// sets matches the number of a descriptor set, which is another one in a running QEMU.
var sets = regexp.MustCompile(`/dev/fdset/[0-9]+`)

func withoutSets(t *testing.T, entry any) string {
	t.Helper()
	text, err := json.Marshal(entry)
	if err != nil {
		t.Fatal(err)
	}
	return sets.ReplaceAllString(string(text), "/dev/fdset/N")
}

// firstOf returns the first of an entry's texts that is there.
func firstOf(entry map[string]any, keys ...string) string {
	for _, key := range keys {
		if text, ok := entry[key].(string); ok && text != "" {
			return text
		}
	}
	return fmt.Sprint(entry)
}
