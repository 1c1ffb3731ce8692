package diskimage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A migration copies a disk into a volume. Until the guest runs there, a note lies beside the disk: the migration may fail, and the
// next one of the same machine may then copy into the disk anew. The note holds the machine's UUID, and says which file it is about: somebody
// may have put another disk in its place.

// maxNote bounds a note, in bytes. A UUID has 36, and two numbers have 20 each.
const maxNote = 128

func noteName(disk string) string { return "." + disk + "-incoming" }

// CreateIncoming makes an empty, sparse disk of size bytes for a machine that a migration brings. A disk that is blank, or that an earlier
// migration of the machine has left, becomes that disk, unless something uses it. CreateIncoming never replaces a file: another QEMU
// that opens a blank disk at the same time is kept off by QEMU's lock.
func CreateIncoming(root, name, machine string, size int64) error {
	if err := CreateVolume(root, name, size); err != nil {
		return err
	}
	f, err := OpenVolume(root, name, false)
	if err != nil {
		return err
	}
	defer f.Close()
	if incomingOf(root, name, f) != machine && !blank(f) {
		return fmt.Errorf("%w: the volume has a disk /%s already, with data on it; delete the disk, or take an empty volume", ErrUnusable, name)
	}
	if err := Free(f, false); err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(0), f.Truncate(size), f.Sync()); err != nil {
		return fmt.Errorf("empty the disk /%s: %w", name, err)
	}
	return writeNote(root, name, machine, f)
}

func writeNote(root, name, machine string, disk *os.File) error {
	of, err := identity(disk)
	if err != nil {
		return err
	}
	if err := Arrived(root, name); err != nil { // the note of an earlier migration
		return err
	}
	f, err := os.OpenFile(filepath.Join(root, noteName(filepath.Base(name))), os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o660)
	if err != nil {
		return explainCreate(root, name, err)
	}
	_, err = f.WriteString(machine + " " + of)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("note that a migration copies into the volume: %w", err)
	}
	return nil
}

// identity is the number of a file and the time of its birth, where the file system knows it: numbers are given again.
func identity(f *os.File) (string, error) {
	var stat unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &stat); err != nil {
		return "", fmt.Errorf("ask which file the disk is: %w", err)
	}
	return fmt.Sprintf("%d %d.%09d", stat.Ino, stat.Btime.Sec, stat.Btime.Nsec), nil
}

// Arrived removes the note beside a disk, once a guest uses the disk.
func Arrived(root, name string) error {
	err := os.Remove(filepath.Join(root, noteName(filepath.Base(name))))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the note of a migration: %w", err)
	}
	return nil
}

// incomingOf is the machine of which a migration has begun to copy a disk into the volume, and that has not run there; empty if there is
// none. Somebody else may have put anything there.
func incomingOf(root, name string, disk *os.File) string {
	f, err := OpenVolume(root, noteName(filepath.Base(name)), true)
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxNote))
	if err != nil {
		return ""
	}
	machine, of, _ := strings.Cut(string(text), " ")
	if is, err := identity(disk); err != nil || of != is {
		return ""
	}
	return machine
}

// blank says whether a disk is one hole: nobody has written to it.
func blank(f *os.File) bool {
	_, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA)
	return errors.Is(err, unix.ENXIO)
}
