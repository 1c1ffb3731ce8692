// Package images brings container images to this machine: from a registry, an archive or a
// folder. It unpacks them into a cache, where the launcher finds disks and kernels as it finds
// them in a pod's image volumes.
package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/atomicfile"
)

// Cache is a folder of unpacked images. Processes may share it.
//
//	images/HEX          an image, by the SHA-256 of its configuration, which names the content
//	images/HEX.files    the image's files, with their sizes and times, to find damage
//	images/HEX.lock     who holds it unpacks that image
//	references/HEX      the image that a reference led to last, by the SHA-256 of the reference
type Cache struct {
	Folder string
	// Report, if set, is told how far the work is. It is called from the calling goroutine, for
	// each few KiB.
	Report func(Progress)
}

// Progress is how far the work on an image is.
type Progress struct {
	// What is the name of the work and of its image, such as "fetch registry.example/debian:12".
	What string
	// Done and Total are in bytes. Total is 0 where it is not known.
	Done, Total int64
	// Finished: nothing follows.
	Finished bool
}

func (c *Cache) report(p Progress) {
	if c.Report != nil {
		c.Report(p)
	}
}

// Place is where an image is.
type Place struct {
	// Folder stands for the image's root.
	Folder string
	// Disk is the disk's path in Folder; empty if the image's own paths hold.
	Disk string
}

func (c *Cache) imageFolder(id v1.Hash) string {
	return filepath.Join(c.Folder, "images", id.Hex)
}

// has says whether an image is there. The cache puts it there as a whole.
func (c *Cache) has(id v1.Hash) bool {
	_, err := os.Stat(c.imageFolder(id))
	return err == nil
}

// add unpacks an image unless it is there intact, and returns its folder and its name. what names it in reports.
func (c *Cache) add(ctx context.Context, image content, what string) (folder string, id v1.Hash, err error) {
	if id, err = image.id(); err != nil {
		return "", id, err
	}
	if folder = c.imageFolder(id); c.intact(id) {
		return folder, id, nil
	}
	if err := os.MkdirAll(filepath.Dir(folder), 0o700); err != nil {
		return "", id, fmt.Errorf("make the cache of images: %w", err)
	}
	unlock, err := c.lock(ctx, folder+".lock", what)
	if err != nil {
		return "", id, err
	}
	defer unlock()
	if c.intact(id) { // another process was faster
		return folder, id, nil
	}
	partial := folder + ".partial"
	if err := os.RemoveAll(partial); err != nil { // of a process that was killed
		return "", id, fmt.Errorf("remove an unfinished image: %w", err)
	}
	defer os.RemoveAll(partial)
	defer c.report(Progress{What: what, Finished: true})
	if err := c.unpack(ctx, image, partial, what); err != nil {
		return "", id, fmt.Errorf("unpack the image: %w", err)
	}
	if err := c.replace(id, partial); err != nil {
		return "", id, fmt.Errorf("keep the image: %w", err)
	}
	return folder, id, nil
}

// lockInterval is the time between two tries to get a lock.
const lockInterval = 200 * time.Millisecond

// lock gets a lock that one process holds at a time. The lock ends with the process. The file
// stays: a process that waits has it open.
func (c *Cache) lock(ctx context.Context, path, what string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the image: %w", err)
	}
	tick := time.NewTicker(lockInterval)
	defer tick.Stop()
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			file.Close()
			return nil, fmt.Errorf("lock the image: %w", err)
		}
		c.report(Progress{What: "wait for another process to " + what})
		select {
		case <-tick.C:
		case <-ctx.Done():
			file.Close()
			return nil, fmt.Errorf("wait for another process to %s: %w", what, context.Cause(ctx))
		}
	}
}

func (c *Cache) referenceFile(reference string) string {
	sum := sha256.Sum256([]byte(reference))
	return filepath.Join(c.Folder, "references", hex.EncodeToString(sum[:]))
}

// remembered returns the image that a reference led to last, if it is in the cache.
func (c *Cache) remembered(reference string) (v1.Hash, bool) {
	text, err := os.ReadFile(c.referenceFile(reference))
	if err != nil {
		return v1.Hash{}, false
	}
	id, err := v1.NewHash(strings.TrimSpace(string(text)))
	return id, err == nil && c.has(id)
}

// remember keeps the image that a reference leads to.
func (c *Cache) remember(reference string, id v1.Hash) error {
	file := c.referenceFile(reference)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("keep where %q leads: %w", reference, err)
	}
	if err := atomicfile.Write(file, []byte(id.String()+"\n")); err != nil {
		return fmt.Errorf("keep where %q leads: %w", reference, err)
	}
	return nil
}
