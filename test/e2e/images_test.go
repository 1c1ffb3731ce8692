package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// Images that only the tests use.
const (
	clientImage  = "localhost/kubeqemu-e2e/client:1"  // busybox
	noDiskImage  = "localhost/kubeqemu-e2e/no-disk:1" // no folder /disk
	corruptImage = "localhost/kubeqemu-e2e/corrupt:1" // a qcow2 header of nonsense
	backingImage = "localhost/kubeqemu-e2e/backing:1" // a qcow2 image over /etc/passwd
	missingImage = "localhost/kubeqemu-e2e/missing:1" // nowhere
)

// packImages makes the images' archives in the folder.
func packImages(folder string) ([]string, error) {
	busybox := "/bin/busybox"
	if _, err := os.Stat(busybox); err != nil {
		return nil, fmt.Errorf("find busybox (Debian's busybox-static): %w", err)
	}
	empty, corrupt, backing := filepath.Join(folder, "empty"), filepath.Join(folder, "corrupt.qcow2"), filepath.Join(folder, "backing.qcow2")
	if err := os.WriteFile(empty, nil, 0o644); err != nil {
		return nil, err
	}
	header := append([]byte("QFI\xfb\x00\x00\x00\x03"), bytes.Repeat([]byte{0xff}, 64<<10)...)
	if err := os.WriteFile(corrupt, header, 0o644); err != nil {
		return nil, err
	}
	if _, err := output("", "qemu-img", "create", "-u", "-f", "qcow2", "-b", "/etc/passwd", "-F", "raw", backing, "1M"); err != nil {
		return nil, err
	}
	var archives []string
	for reference, file := range map[string]string{
		clientImage:  busybox + ":/bin/busybox",
		noDiskImage:  empty + ":/etc/empty",
		corruptImage: corrupt + ":/disk/disk.qcow2",
		backingImage: backing + ":/disk/disk.qcow2",
	} {
		archive := filepath.Join(folder, fmt.Sprintf("image-%d.tar", len(archives)))
		if _, err := output("", "cluster", "pack-image", reference, file, "-o", archive); err != nil {
			return nil, err
		}
		archives = append(archives, archive)
	}
	return archives, nil
}
