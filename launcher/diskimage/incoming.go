package diskimage

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A migration copies a disk into a volume. Until the guest runs there, a note lies beside the disk: the migration may
// fail, and the next one of the same machine may then copy into the disk anew. The note holds the machine's UUID, and
// says which file it is about: somebody may have put another disk in its place.

// maxNote bounds a note, in bytes. A UUID has 36, and two numbers have 20 each.
const maxNote = 128

func noteName(disk string) string { return "." + disk + "-incoming" }

// CreateIncoming makes an empty, sparse disk of size bytes for a machine that a migration brings. A disk that is blank,
// or that an earlier migration of the machine has left, becomes that disk, unless something uses it. CreateIncoming
// never replaces a file: another QEMU that opens a blank disk at the same time is kept off by QEMU's lock.
func CreateIncoming(root, name, machine string, size int64) error {
	made, err := createVolume(root, name, size)
	if err != nil {
		return err
	}
	f, err := OpenVolume(root, name, false)
	if err != nil {
		return err
	}
	defer f.Close()
	// Not every file system tells holes from data: of a disk that was just made, it is known that nothing is in it.
	ours := machine != "" && incomingOf(root, name, f) == machine
	if !made && !ours && !blank(f) {
		return fmt.Errorf("%w: the volume has a disk /%s already, with data on it; delete the disk, or take an empty volume", ErrUnusable, name)
	}
	if err := Free(f, false); err != nil {
		return err
	}
	// The note comes first: what is emptied is ours to copy into, whatever happens from now on.
	if err := writeNote(root, name, machine, f); err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(0), f.Truncate(size), f.Sync()); err != nil {
		return fmt.Errorf("empty the disk /%s: %w", name, err)
	}
	return nil
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

// identity returns the number of a file and the time of its birth: numbers are given again. Where the file system does
// not know that time, the file's handle stands for it.
func identity(f *os.File) (string, error) {
	var stat unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &stat); err != nil {
		return "", fmt.Errorf("ask which file the disk is: %w", err)
	}
	if stat.Mask&unix.STATX_BTIME == 0 {
		return fmt.Sprintf("%d %s", stat.Ino, generation(f)), nil
	}
	return fmt.Sprintf("%d %d.%09d", stat.Ino, stat.Btime.Sec, stat.Btime.Nsec), nil
}

// generation returns a hash of what a file system knows a file by, over which numbers are not given again; empty if it
// does not say.
func generation(f *os.File) string {
	handle, _, err := unix.NameToHandleAt(int(f.Fd()), "", unix.AT_EMPTY_PATH)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(handle.Bytes())
	return hex.EncodeToString(sum[:8])
}

// Arrived removes the note beside a disk, once a guest uses the disk.
func Arrived(root, name string) error {
	err := os.Remove(filepath.Join(root, noteName(filepath.Base(name))))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the note of a migration: %w", err)
	}
	return nil
}

// whole stands in the note of a disk to which all was copied, and whose guest may have run there.
const whole = " whole"

// NoteWhole notes that all of a disk was copied, if there is a note.
func NoteWhole(root, name string) error {
	f, err := OpenVolume(root, noteName(filepath.Base(name)), false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxNote))
	if err == nil && !strings.HasSuffix(string(text), whole) {
		_, err = f.WriteString(whole)
	}
	if err := errors.Join(err, f.Sync()); err != nil {
		return fmt.Errorf("note that the disk /%s is whole: %w", name, err)
	}
	return nil
}

// Whole fails if a migration has left a disk half copied.
func Whole(root, name string) error {
	f, err := OpenVolume(root, name, true)
	if err != nil {
		return nil // the start itself says what is wrong
	}
	defer f.Close()
	if machine, isWhole := noteOf(root, name, f); machine != "" && !isWhole {
		return fmt.Errorf("%w: a migration has left /%s incomplete; delete it, or start from the volume that it was copied from", ErrUnusable, name)
	}
	return nil
}

// incomingOf returns the machine whose disk is being copied into the volume and which has not yet run from it, or "".
func incomingOf(root, name string, disk *os.File) string {
	machine, _ := noteOf(root, name, disk)
	return machine
}

// noteOf reads the note beside a disk. Somebody else may have put anything there.
func noteOf(root, name string, disk *os.File) (machine string, isWhole bool) {
	f, err := OpenVolume(root, noteName(filepath.Base(name)), true)
	if err != nil {
		return "", false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxNote))
	if err != nil {
		return "", false
	}
	note, isWhole := strings.CutSuffix(string(text), whole)
	machine, of, _ := strings.Cut(note, " ")
	if is, err := identity(disk); err != nil || of != is {
		return "", false
	}
	return machine, isWhole
}

// blank reports whether a disk is one hole: nobody has written to it.
func blank(f *os.File) bool {
	_, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_DATA)
	return errors.Is(err, unix.ENXIO)
}
