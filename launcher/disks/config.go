package disks

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kubeqemu/kubeqemu/launcher/configfiles"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/iso9660"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// errNoAnswer: Windows Setup looks for these names (learn.microsoft.com, Windows Setup Automation Overview).
var errNoAnswer = errors.New("neither autounattend.xml nor unattend.xml is among the files")

// makeConfig makes the image of a config volume. QEMU is given this image, also if the volume changes before QEMU
// starts.
func (f Folders) makeConfig(c control.ConfigVolume) qemuargs.ConfigFacts {
	image, err := f.config(c)
	if err == nil {
		err = replace(f.configImage(c.Volume), image)
	}
	if err != nil {
		return qemuargs.ConfigFacts{Error: err.Error()}
	}
	return qemuargs.ConfigFacts{Size: int64(len(image))}
}

// config returns the image of a config volume.
func (f Folders) config(c control.ConfigVolume) ([]byte, error) {
	// c.Volume is the name of a volume of the pod, and no path.
	files, err := configfiles.Read(filepath.Join(f.Config, filepath.Base(c.Volume)))
	if err != nil {
		return nil, err
	}
	if c.AnswerFile && !slices.ContainsFunc(files, isAnswer) {
		return nil, errNoAnswer
	}
	image, err := iso9660.Image(c.Label, files)
	if err == nil && len(image) > qemuargs.MaxPacked {
		err = fmt.Errorf("the disk would have %d bytes, and may have %d", len(image), qemuargs.MaxPacked)
	}
	return image, err
}

func isAnswer(f iso9660.File) bool {
	return strings.EqualFold(f.Path, "autounattend.xml") || strings.EqualFold(f.Path, "unattend.xml")
}

// configImage returns where the image of a config volume is.
func (f Folders) configImage(volume string) string {
	return filepath.Join(f.Run, filepath.Base(layout.ConfigImage(filepath.Base(volume))))
}

// replace writes a file anew. A file of which QEMU has a descriptor stays as it is.
func replace(path string, data []byte) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("write disk: %w", err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return fmt.Errorf("write disk: %w", err)
	}
	return nil
}

// placeConfig sees to it that the image of a config volume is there: as inspection has made it or, for a guest that
// comes by a migration, empty, for the migration to fill.
func placeConfig(i qemuargs.Image, incoming bool) error {
	if i.Packed > qemuargs.MaxPacked {
		return fmt.Errorf("the image has %d bytes, and may have %d", i.Packed, qemuargs.MaxPacked)
	}
	if incoming {
		return replace(i.Path, make([]byte, i.Packed))
	}
	info, err := os.Stat(i.Path)
	switch {
	case err != nil:
		return err
	case info.Size() != i.Packed:
		return fmt.Errorf("the image has %d bytes, and the machine was made for %d", info.Size(), i.Packed)
	}
	return nil
}
