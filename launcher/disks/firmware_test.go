package disks

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestMakeVariables: each start has a copy of the template, whatever an earlier one left; the template stays as it is.
func TestMakeVariables(t *testing.T) {
	dir := t.TempDir()
	f := &qemuargs.Firmware{Code: filepath.Join(dir, "code.fd"),
		Variables: qemuargs.Variables{Path: filepath.Join(dir, "variables.fd"), Template: filepath.Join(dir, "template.fd")}}
	template := bytes.Repeat([]byte("v"), qemuargs.VariablesBytes)
	write := func(path string, content []byte) {
		t.Helper()
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(f.Code, make([]byte, qemuargs.CodeBytes))
	write(f.Variables.Template, template)
	for _, left := range []string{"", "short", strings.Repeat("x", qemuargs.VariablesBytes+1)} {
		if left != "" {
			write(f.Variables.Path, []byte(left))
		}
		if err := makeVariables(f); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(f.Variables.Path); err != nil || !bytes.Equal(got, template) {
			t.Errorf("the variables are no copy of the template (%v)", err)
		}
	}
	if got, err := os.ReadFile(f.Variables.Template); err != nil || !bytes.Equal(got, template) {
		t.Errorf("the template has changed (%v)", err)
	}
	if err := makeVariables(nil); err != nil {
		t.Errorf("a machine with the BIOS: %v", err)
	}
}

// TestMakeVariablesFails: what is not OVMF of 4 MiB, and what a tenant may put where the file is to be.
func TestMakeVariablesFails(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(f *qemuargs.Firmware) error
		want  string
	}{
		"no code":        {func(f *qemuargs.Firmware) error { return os.Remove(f.Code) }, "package ovmf"},
		"no template":    {func(f *qemuargs.Firmware) error { return os.Remove(f.Variables.Template) }, "package ovmf"},
		"code of 2 MiB":  {func(f *qemuargs.Firmware) error { return os.Truncate(f.Code, 1966080) }, "code.fd has 1966080 bytes, and must have 3653632"},
		"large template": {func(f *qemuargs.Firmware) error { return os.Truncate(f.Variables.Template, 1<<40) }, "and must have 540672"},
		"template is a FIFO": {func(f *qemuargs.Firmware) error {
			os.Remove(f.Variables.Template)
			return unix.Mkfifo(f.Variables.Template, 0o600)
		}, "is no regular file"},
		"a FIFO in the way": {func(f *qemuargs.Firmware) error { return unix.Mkfifo(f.Variables.Path, 0o600) }, "variables.fd"},
		"a link in the way": {func(f *qemuargs.Firmware) error { return os.Symlink(f.Code, f.Variables.Path) }, "variables.fd"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			f := &qemuargs.Firmware{Code: filepath.Join(dir, "code.fd"),
				Variables: qemuargs.Variables{Path: filepath.Join(dir, "variables.fd"), Template: filepath.Join(dir, "template.fd")}}
			for path, size := range map[string]int{f.Code: qemuargs.CodeBytes, f.Variables.Template: qemuargs.VariablesBytes} {
				if err := os.WriteFile(path, make([]byte, size), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := test.spoil(f); err != nil {
				t.Fatal(err)
			}
			if err := makeVariables(f); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q in it", err, test.want)
			}
			if info, err := os.Stat(f.Code); err == nil && name == "a link in the way" && info.Size() != qemuargs.CodeBytes {
				t.Error("the link was written through")
			}
		})
	}
}

// TestOpenVariables: variables in the volume with the guest's state are made once and left alone, and what is wrong is
// said of the file that it is wrong with.
func TestOpenVariables(t *testing.T) {
	dir := t.TempDir()
	f := &qemuargs.Firmware{Code: filepath.Join(dir, "code.fd"), Variables: qemuargs.Variables{InState: true,
		Path: filepath.Join(dir, "state/nvram/variables.fd"), Template: filepath.Join(dir, "template.fd")}}
	fails := func(want string) {
		t.Helper()
		file, err := openVariables(f)
		if err == nil {
			file.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q in it", err, want)
		}
	}
	if err := os.WriteFile(f.Code, make([]byte, qemuargs.CodeBytes), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "state"), 0o777); err != nil {
		t.Fatal(err)
	}
	fails("package ovmf")
	if err := os.WriteFile(f.Variables.Template, bytes.Repeat([]byte("t"), qemuargs.VariablesBytes), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := makeVariables(f); err != nil {
			t.Fatal(err)
		}
		file, err := openVariables(f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteString("guest"); err != nil {
			t.Fatal(err)
		}
		file.Close()
	}
	if err := os.Remove(f.Variables.Template); err != nil {
		t.Fatal(err)
	}
	if file, err := openVariables(f); err != nil {
		t.Errorf("the template is not needed any more: %v", err)
	} else {
		file.Close()
	}
	if got, err := os.ReadFile(f.Variables.Path); err != nil || !bytes.HasPrefix(got, []byte("guesttt")) {
		t.Errorf("the variables are %.10q (%v)", got, err)
	}
	if err := os.Truncate(f.Variables.Path, 100); err != nil {
		t.Fatal(err)
	}
	fails("on the claim with the guest's state: disk image cannot be used: /nvram/variables.fd has 100 bytes")
}
