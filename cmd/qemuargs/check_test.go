package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/schema"
)

// file writes a file of a test's own, which may be a program.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	testkit.Program(t, path, []byte(text))
	return path
}

// TestCheckErrorsAreLinesAndAnExitCode: errors are lines, and the exit code; warnings are lines alone.
func TestCheckErrorsAreLinesAndAnExitCode(t *testing.T) {
	good := "# VirtualMachine default/a\n-S\n-machine q35\n"
	for name, c := range map[string]struct {
		args []string
		code int
		out  string
	}{
		"good words":    {[]string{"check", "--", "-machine", "q35", "-S"}, 0, ""},
		"bad words":     {[]string{"check", "--schema", "7.2", "--", "-machine", "pc-q35-8.0"}, 1, "-machine: machine type pc-q35-8.0 is newer than QEMU 7.2; the newest is pc-q35-7.2\n"},
		"a warning":     {[]string{"check", "--", "-machine", "pc-q35-8.0"}, 0, "-machine: warning: machine type pc-q35-8.0 is deprecated\n"},
		"good file":     {[]string{"check", "--args", file(t, "a.args", good)}, 0, ""},
		"bad file":      {[]string{"check", "--args", "-"}, 1, "-: -m: \"size\" is \"much\"; want a size, such as 512M\n"},
		"manifests":     {[]string{"check", "-f", "../../config/samples"}, 0, ""},
		"old manifests": {[]string{"check", "--schema", "7.2", "-f", "../../config/samples"}, 0, ""},
		"another host":  {[]string{"check", "--schema", "7.2", "--host", "tcg-11.1.3", "-f", "../../config/samples/vmi-tiny.yaml"}, 1, "../../config/samples/vmi-tiny.yaml: VirtualMachineInstance default/tiny: -machine: machine type pc-q35-11.1 is newer than QEMU 7.2; the newest is pc-q35-7.2\n"},
	} {
		t.Run(name, func(t *testing.T) {
			s := runCommand(t, "-m much", c.args...)
			if s.code != c.code || c.code == 0 && s.out != c.out || !strings.HasPrefix(s.out, c.out) {
				t.Errorf("%+v, want exit code %d and\n%s", s, c.code, c.out)
			}
		})
	}
	for _, args := range [][]string{{"check"}, {"check", "--schema", "6.0", "--", "-S"}, {"schema", "x"}, {"schema", "show"}} {
		if s := runCommand(t, "", args...); s.code != exitUsage || !strings.Contains(s.err, "--help") {
			t.Errorf("%q: %+v, want usage", args, s)
		}
	}
	for _, args := range [][]string{{"check", "--schema", "check.go", "--", "-S"}, {"check", "--args", "/no/such/file"}, {"check", "--args", "."}, {"check", "-f", "check.go"}, {"check", "no-such.yaml"}, {"schema", "show", "no-such-device"}, {"schema", "--qemu", "/bin/false"}} {
		if s := runCommand(t, "", args...); s.code != exitInvalid || s.err == "" {
			t.Errorf("%q: %+v, want an error", args, s)
		}
	}
}

// TestCheckGoesOnAfterAnInvalidManifest: an invalid manifest does not end the check of the others, and the error names each that is invalid.
func TestCheckGoesOnAfterAnInvalidManifest(t *testing.T) {
	const vmi = "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {name: %s}\nspec: {domain: {resources: {requests: {memory: 64Mi}}, devices: {disks: [{name: d, disk: {}}]}}}\n"
	bad := file(t, "bad.yaml", fmt.Sprintf(vmi, "one")+"---\n"+fmt.Sprintf(vmi, "two"))
	s := runCommand(t, "-m much", "check", "-f", bad, "-f", "../../config/samples/vmi-tiny.yaml", "--schema", "7.2", "--host", "tcg-11.1.3", "--args", "/no/such/file", "--args", "-")
	for _, want := range []string{"one", "two", "/no/such/file"} {
		if !strings.Contains(s.err, want) {
			t.Errorf("no %s in the errors", want)
		}
	}
	if s.code != exitInvalid || !strings.Contains(s.out, "default/tiny: -machine") || !strings.Contains(s.out, `"much"`) {
		t.Errorf("%+v", s)
	}
}

// TestCheckWarnsOfArchWithoutSchema: the QEMU of an architecture without a schema is a warning.
func TestCheckWarnsOfArchWithoutSchema(t *testing.T) {
	s := runCommand(t, "qemu-system-riscv64 -S", "check", "--args", "-")
	if s.code != 0 || !strings.HasPrefix(s.out, "-: qemu-system-riscv64: warning: ") {
		t.Errorf("%+v", s)
	}
	if s := runCommand(t, "", "check", "--help"); strings.Contains(s.out, "default kvm") || !strings.Contains(s.out, "default \"11.1\"") {
		t.Errorf("%+v", s)
	}
}

// TestSchemaListAndShow: --list has a line for each release, and show one for each property.
func TestSchemaListAndShow(t *testing.T) {
	s := runCommand(t, "", "schema", "--list")
	if s.code != 0 || strings.Count(s.out, "\n") != 1+len(schema.Releases())*len(schema.Architectures()) || !strings.Contains(s.out, "\n7.2      7.2.") {
		t.Errorf("%+v", s)
	}
	s = runCommand(t, "", "schema", "show", "--schema", "7.2", "virtio-blk")
	for _, want := range []string{"# virtio-blk-pci of QEMU 7.2.", "on a bus of type PCI", "\nnum-queues ", "BlockdevOnError  report|ignore|enospc|stop|auto"} {
		if s.code != 0 || !strings.Contains(s.out, want) {
			t.Errorf("want %q in %+v", want, s)
		}
	}
}

// TestEmbeddedSchemasAreWhatQEMUSays: the embedded schemas are what the QEMUs of this machine and of the launcher's image say. The image has no
// modules but three; what they bring is passed over.
func TestEmbeddedSchemasAreWhatQEMUSays(t *testing.T) {
	host, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Fatalf("%v: install Debian's qemu-system-x86 (make packages)", err)
	}
	root, err := filepath.Abs("../../_output/cache/launcher-root")
	if err == nil {
		_, err = os.Stat(root)
	}
	if err != nil {
		t.Fatalf("find the launcher's image (run make image-launcher): %v", err)
	}
	// In its own root, since QEMU looks for modules in the host's folder as well.
	image := file(t, "qemu", fmt.Sprintf("#!/bin/sh\nexec chroot %q /usr/bin/qemu-system-x86_64 \"$@\"\n", root))
	for release, path := range map[string]string{"7.2": host, "11.1": image} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			out := filepath.Join(t.TempDir(), "schema.json.gz")
			if s := runCommand(t, "", "schema", "--qemu", path, "--output", out); s.code != 0 {
				t.Fatalf("%+v", s)
			}
			data, err := os.ReadFile(out)
			if err != nil {
				t.Fatal(err)
			}
			asked, err := schema.Decode(data)
			if err != nil {
				t.Fatal(err)
			}
			embedded, err := schema.Embedded("x86_64", release)
			if err != nil {
				t.Fatal(err)
			}
			same(t, asked, embedded, path == host)
			if file, err := os.ReadFile("../../qemuargs/tool/schema/captures/x86_64-" + release + ".json.gz"); path == host && asked.Package == embedded.Package && !bytes.Equal(file, data) {
				t.Errorf("the same package gives other bytes than those of the capture: %v", err)
			}
		})
	}
}

// TestCaptureOfSilentQEMUEnds: a QEMU that does not answer is ended, and one that ends at once is an error with what it said.
func TestCaptureOfSilentQEMUEnds(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"silent":         {"[ \"$1\" = -help ] || exec sleep 10000", "start "},
		"silent at once": {"exec sleep 10000", "-help"},
		"ends":           {"[ \"$1\" = -help ] || { echo no such library >&2; exit 3; }", "no such library"},
		"talks nonsense": {"[ \"$1\" = -help ] || { echo hello >&3; exec sleep 10000; }", "hello"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// A machine that is busy for so long has not come to where the script hangs.
			testkit.Slower(t, 500*time.Millisecond, func(patience time.Duration) error {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				captured := make(chan error, 1)
				go func() {
					_, err := capture(ctx, file(t, "qemu", "#!/bin/sh\n"+c.script+"\n"))
					captured <- err
				}()
				if err := testkit.ReceiveWithin(t, patience+testkit.Patience, captured, "the end of a QEMU"); err == nil || !strings.Contains(err.Error(), c.want) {
					return fmt.Errorf("%w, want %q in it", err, c.want)
				}
				return nil
			})
		})
	}
}

// same compares what a QEMU says with an embedded schema, device by device. whole says that it has all modules.
func same(t *testing.T, asked, embedded *schema.Schema, whole bool) {
	t.Helper()
	const again = "; capture it again: make qemu-schemas"
	for name, d := range embedded.Devices {
		now, ok := asked.Devices[name]
		switch {
		case !ok && whole:
			t.Errorf("QEMU %s has no %s any more%s", asked.Version, name, again)
		case !ok || now.List == schema.Unknown || d.List == schema.Unknown:
		case !reflect.DeepEqual(asked.List(now.List), embedded.List(d.List)):
			t.Errorf("QEMU %s has other properties of %s%s", asked.Version, name, again)
		}
	}
	for name := range asked.Devices {
		if _, ok := embedded.Devices[name]; !ok {
			t.Errorf("QEMU %s has a new device %s%s", asked.Version, name, again)
		}
	}
	for what, values := range map[string][2]any{"flags": {asked.Flags, embedded.Flags}, "types of QAPI": {asked.Types, embedded.Types}, "CPU models": {names(asked.CPUs), names(embedded.CPUs)}, "machine types": {names(asked.Machines), names(embedded.Machines)}, "options": {asked.Options, embedded.Options}} {
		if (whole || what != "options") && !reflect.DeepEqual(values[0], values[1]) {
			a, _ := json.Marshal(values[0])
			b, _ := json.Marshal(values[1])
			t.Errorf("QEMU %s has other %s than the capture of %s%s:\n%.2000s\n%.2000s", asked.Version, what, embedded.Version, again, a, b)
		}
	}
}

func names[T any](m map[string]T) []string {
	var all []string
	for name := range m {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}
