package main

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/kubeqemu/kubeqemu/launcher/imagefile"
	"github.com/kubeqemu/kubeqemu/launcher/sidecar"
)

// openImage opens the disk of the container image that is imported. The image is a volume of this container, or a
// container of its own hands its disk out.
func (p *program) openImage() (*os.File, error) {
	if _, err := os.Stat(p.image); !errors.Is(err, fs.ErrNotExist) {
		f, name, err := imagefile.Open(p.image, "")
		if err != nil {
			return nil, err
		}
		return os.NewFile(uintptr(f), name), nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), sidecar.Patience)
	defer cancel()
	return sidecar.Receive(ctx, p.imageSocket)
}
