package disks

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/configfiles"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// acpiTable returns a table of a signature and a size whose length and checksum are right.
func acpiTable(signature string, size int) []byte {
	table := append(binary.LittleEndian.AppendUint32([]byte(signature), uint32(size)), make([]byte, size-8)...)
	var sum byte
	for _, b := range table {
		sum += b
	}
	table[9] -= sum
	return table
}

// TestACPITableOfASecret: a table of a Secret, as the kubelet mounts it, is copied, and whatever is no table is
// refused. Nothing outside of the volume is read.
func TestACPITableOfASecret(t *testing.T) {
	changed := func(at int, to byte) []byte {
		table := acpiTable("SLIC", 374)
		table[at] = to
		return table
	}
	for name, tt := range map[string]struct {
		table []byte
		want  error
	}{
		"table":                 {acpiTable("SLIC", 374), nil},
		"least":                 {acpiTable("SLIC", acpiHeader), nil},
		"most":                  {acpiTable("SLIC", maxACPITable), nil},
		"empty":                 {nil, errTableSize},
		"no header":             {acpiTable("SLIC", acpiHeader-1), errTableSize},
		"too large":             {acpiTable("SLIC", maxACPITable+1), errTableSize},
		"other table":           {acpiTable("DSDT", 374), errTableSignature},
		"length of more":        {changed(5, 0xff), errTableLength},
		"length of 4 GiB":       {changed(7, 0xff), errTableLength},
		"checksum":              {changed(20, 1), errTableChecksum},
		"larger than a Secret":  {make([]byte, configfiles.MaxBytes+1), configfiles.ErrTooLarge},
		"cut after its header":  {acpiTable("SLIC", 374)[:acpiHeader], errTableLength},
		"bytes after the table": {append(acpiTable("SLIC", 374), 0), errTableLength},
	} {
		t.Run(name, func(t *testing.T) {
			f := Folders{Config: t.TempDir(), Run: t.TempDir()}
			payload := filepath.Join(f.Config, "license", "..2026")
			for _, err := range []error{os.MkdirAll(payload, 0o755), os.Symlink("..2026", filepath.Join(f.Config, "license", "..data")),
				os.WriteFile(filepath.Join(payload, "slic.bin"), tt.table, 0o644), os.WriteFile(filepath.Join(payload, "other"), []byte("x"), 0o644)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			err := f.makeTable(qemuargs.ACPITable{Name: "SLIC", Volume: "license"})
			got, readErr := os.ReadFile(filepath.Join(f.Run, "acpi-SLIC"))
			switch {
			case !errors.Is(err, tt.want):
				t.Errorf("%v, want %v", err, tt.want)
			case err == nil && !bytes.Equal(got, tt.table), err != nil && !errors.Is(readErr, os.ErrNotExist):
				t.Errorf("made %d bytes (%v)", len(got), readErr)
			}
		})
	}
	f := Folders{Config: t.TempDir(), Run: t.TempDir()}
	for _, err := range []error{os.MkdirAll(filepath.Join(f.Config, "license"), 0o755), os.Symlink("/etc/hostname", filepath.Join(f.Config, "license", "slic.bin")),
		os.MkdirAll(filepath.Join(f.Config, "empty"), 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, table := range []qemuargs.ACPITable{{Name: "SLIC", Volume: "license"}, {Name: "SLIC", Volume: "empty"}, {Name: "SLIC", Volume: "missing"}, {Name: "SLIC", Volume: "../.."}, {Name: "../x", Volume: "license"}, {Name: "DSDT", Volume: "license"}} {
		if err := f.makeTable(table); err == nil {
			t.Errorf("%+v was made", table)
		}
	}
	if left, _ := os.ReadDir(f.Run); len(left) > 0 {
		t.Errorf("there is %v", left)
	}
}
