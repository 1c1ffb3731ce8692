package disks

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"github.com/kubeqemu/kubeqemu/launcher/configfiles"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// Sizes of an ACPI table, in bytes. All tables together must fit into the 128 KiB that QEMU keeps for them
// (ACPI_BUILD_TABLE_SIZE in hw/i386/acpi-build.c): SLIC has 374 bytes, and MSDM 85.
const (
	acpiHeader   = 36
	maxACPITable = 16 << 10
)

// What is wrong with an ACPI table (ACPI specification 6.5, 5.2.6).
var (
	errTableSize      = fmt.Errorf("a table has %d to %d bytes", acpiHeader, maxACPITable)
	errTableSignature = errors.New("the table does not begin with its signature")
	errTableLength    = errors.New("the length in the table's header is not that of the table")
	errTableChecksum  = errors.New("the bytes of the table do not add up to 0: its checksum is wrong")
)

// makeTable copies an ACPI table from its volume to where QEMU opens it, if it is one.
func (f Folders) makeTable(t qemuargs.ACPITable) error {
	// A signature is the name of a file of the launcher's too.
	if t.Name != "SLIC" && t.Name != "MSDM" {
		return fmt.Errorf("make ACPI table %.8q: no table of this name can be made", t.Name)
	}
	name := strings.ToLower(t.Name) + ".bin"
	table, err := f.table(t.Volume, name)
	if err == nil {
		err = checkTable(t.Name, table)
	}
	if err == nil {
		err = replace(filepath.Join(f.Run, path.Base(layout.ACPITable(t.Name))), table)
	}
	if err != nil {
		return fmt.Errorf("make ACPI table %s of %s in volume %s: %w", t.Name, name, t.Volume, err)
	}
	return nil
}

// table returns an entry of a volume that holds a Secret.
func (f Folders) table(volume, name string) ([]byte, error) {
	files, err := configfiles.Read(filepath.Join(f.Config, filepath.Base(volume)))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		if file.Path == name {
			return file.Data, nil
		}
	}
	return nil, errors.New("the Secret has no such entry")
}

// checkTable fails if the guest could not take bytes for a table. QEMU itself only warns, or takes what the header
// says.
func checkTable(signature string, table []byte) error {
	switch {
	case len(table) < acpiHeader || len(table) > maxACPITable:
		return errTableSize
	case !bytes.HasPrefix(table, []byte(signature)):
		return errTableSignature
	case int64(binary.LittleEndian.Uint32(table[4:])) != int64(len(table)):
		return errTableLength
	}
	var sum byte
	for _, b := range table {
		sum += b
	}
	if sum != 0 {
		return errTableChecksum
	}
	return nil
}
