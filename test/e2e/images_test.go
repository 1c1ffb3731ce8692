package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Images that only the tests use.
const (
	clientImage  = "localhost/kubeqemu-e2e/client:1"  // busybox, datagram, webserver
	noDiskImage  = "localhost/kubeqemu-e2e/no-disk:1" // no folder /disk
	corruptImage = "localhost/kubeqemu-e2e/corrupt:1" // a qcow2 header of nonsense
	backingImage = "localhost/kubeqemu-e2e/backing:1" // a qcow2 image over /etc/passwd
	emptyImage   = "localhost/kubeqemu-e2e/empty:1"   // a disk of 0 bytes
	linkImage    = "localhost/kubeqemu-e2e/link:1"    // a link to /etc/passwd for a disk
	dataImage    = "localhost/kubeqemu-e2e/data:1"    // a qcow2 image with its data in /etc/passwd
	hugeImage    = "localhost/kubeqemu-e2e/huge:1"    // a qcow2 image that says it has 2^62 bytes
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
	client := []string{busybox + ":/bin/busybox"}
	for _, name := range []string{"datagram", "webserver"} {
		program := filepath.Join(folder, name)
		if _, err := output("", "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "./"+name); err != nil {
			return nil, err
		}
		client = append(client, program+":/bin/"+name)
	}
	var archives []string
	for reference, files := range map[string][]string{
		clientImage:  client,
		noDiskImage:  {empty + ":/etc/empty"},
		corruptImage: {corrupt + ":/disk/disk.qcow2"},
		backingImage: {backing + ":/disk/disk.qcow2"},
	} {
		archive := filepath.Join(folder, fmt.Sprintf("image-%d.tar", len(archives)))
		if _, err := output("", "cluster", append([]string{"pack-image", reference, "-o", archive}, files...)...); err != nil {
			return nil, err
		}
		archives = append(archives, archive)
	}
	hostile, err := packHostileImages(folder)
	return append(archives, hostile...), err
}

// packHostileImages packs container disks by somebody who wants to read the
// node's files, with the program that packs the product's images: it keeps links.
func packHostileImages(folder string) ([]string, error) {
	data, huge := filepath.Join(folder, "data.qcow2"), filepath.Join(folder, "huge.qcow2")
	if _, err := output("", "qemu-img", "create", "-f", "qcow2", "-o", "data_file="+filepath.Join(folder, "data.raw"), data, "1M"); err != nil {
		return nil, err
	}
	if _, err := output("", "qemu-img", "create", "-f", "qcow2", huge, "1M"); err != nil {
		return nil, err
	}
	image, err := os.OpenFile(huge, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	// The virtual size is the 8 bytes from 24 on (docs/interop/qcow2.txt).
	_, err = image.WriteAt([]byte{0x40, 0, 0, 0, 0, 0, 0, 0}, 24)
	if err = errors.Join(err, image.Close()); err != nil {
		return nil, err
	}
	root := filepath.Join(folder, "link")
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "disk"), 0o755), os.Symlink("/etc/passwd", filepath.Join(root, "disk", "disk.img"))); err != nil {
		return nil, err
	}
	pack := filepath.Join(folder, "image-program")
	if _, err := output("", "go", "-C", "../../tools", "build", "-o", pack, "./image"); err != nil {
		return nil, err
	}
	var archives []string
	for reference, content := range map[string][]string{
		emptyImage: {"--file", filepath.Join(folder, "empty") + ":/disk/disk.img"},
		linkImage:  {"--dir", root},
		dataImage:  {"--file", data + ":/disk/disk.qcow2"},
		hugeImage:  {"--file", huge + ":/disk/disk.qcow2"},
	} {
		archive := filepath.Join(folder, fmt.Sprintf("hostile-%d.tar", len(archives)))
		if _, err := output("", pack, append([]string{"--ref", reference, "--output", archive}, content...)...); err != nil {
			return nil, err
		}
		archives = append(archives, archive)
	}
	return archives, nil
}
