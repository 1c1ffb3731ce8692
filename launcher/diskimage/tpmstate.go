package diskimage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/imagefile"
)

// The state of a TPM in a volume is a folder in a folder, whose name is a number. The highest number counts. A TPM that
// arrives from another node has a new folder, because the TPM at the source still uses its own. The new folder gets the
// next number when the guest runs. A migration that fails leaves the source's folder as it was. A volume that was made
// for the arrival has no folder with a number. Until the new folder has one, the new folder itself is the TPM's state
// there, if it is whole: swtpm's file with the permanent state is in it. swtpm makes that file only when it has all of
// a state, and SyncTPM has it outlive the node before anybody counts on the volume.

// arriving begins the name of the folder of a TPM that arrives.
const arriving = "arriving-"

const (
	// maxTPMFile is how many bytes a file of a TPM's state may have. libtpms' state is less than 100 KiB.
	maxTPMFile = 1 << 20
	// maxTPMFiles is how many files may be in a folder that is looked through.
	maxTPMFiles = 64
	// maxTPMNumber bounds the number of a folder.
	maxTPMNumber = 1 << 30
)

// OpenTPM opens the folder of a TPM's state in a folder of the volume mounted at root, and makes both if they are
// missing. Others may write to the volume: no link is followed, and what is no state of a TPM is refused. With
// incoming, the folder is a new one, which KeepTPM makes the one that counts.
func OpenTPM(root, folder string, incoming bool) (*os.File, error) {
	dir, numbers, err := tpmFolders(root, folder)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if incoming {
		made, err := os.MkdirTemp(through(dir), arriving)
		if err != nil {
			return nil, explainCreate(root, folder, err)
		}
		return openTPMFolder(dir, folder, filepath.Base(made))
	}
	if numbers.last == 0 {
		if err := numbers.takeArrived(dir, folder); err != nil {
			return nil, err
		}
	}
	name := strconv.Itoa(max(1, numbers.last))
	if err := unix.Mkdirat(int(dir.Fd()), name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, explainCreate(root, path.Join(folder, name), err)
	}
	f, err := openTPMFolder(dir, folder, name)
	if err != nil {
		return nil, err
	}
	numbers.removeOthers(dir, name)
	return f, nil
}

// takeArrived gives the number 1 to the folder of a TPM that has arrived whole, where no folder has a number: the
// launcher that received the TPM ended before it could do so.
func (n tpmNames) takeArrived(dir *os.File, folder string) error {
	var whole []string
	for _, name := range n.names {
		if !strings.HasPrefix(name, arriving) {
			continue
		}
		f, err := openTPMFolder(dir, folder, name)
		if err != nil {
			return err
		}
		if hasState(f) {
			whole = append(whole, name)
		}
		f.Close()
	}
	switch len(whole) {
	case 0:
		return nil
	case 1:
		return rename(dir, whole[0], "1")
	}
	slices.Sort(whole)
	return fmt.Errorf("%w: /%s has %d states of a TPM (%s), and none has a number; delete all but the guest's", ErrUnusable, folder, len(whole), strings.Join(whole, ", "))
}

// hasState reports whether a folder has the state of a TPM. openTPMFolder has looked whether that state is whole.
func hasState(folder *os.File) bool {
	return unix.Faccessat(int(folder.Fd()), tpmPermanent, unix.F_OK, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// rename renames a folder, and has the name outlive the node. A folder takes the place of an empty folder at most.
func rename(dir *os.File, from, to string) error {
	if err := unix.Renameat(int(dir.Fd()), from, int(dir.Fd()), to); err != nil {
		return fmt.Errorf("keep the TPM's state: %w", err)
	}
	return syncFolder(dir)
}

// syncFolder has what was made in a folder outlive the node. Not every file system can.
func syncFolder(dir *os.File) error {
	if err := dir.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("sync volume: %w", err)
	}
	return nil
}

// SyncTPM has the state of a TPM that has arrived outlive the node: swtpm itself does not wait until its files are on
// the disk.
func SyncTPM(root, folder string, arrived *os.File) error {
	names, err := fewNames(arrived, folder)
	if err != nil {
		return err
	}
	for _, name := range names {
		f, err := beneath(arrived, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
		if err != nil {
			return fmt.Errorf("open the TPM's state: %w", err)
		}
		err = f.Sync()
		if f.Close(); err != nil && !errors.Is(err, unix.EINVAL) { // what cannot be written to disk is no file of swtpm's
			return fmt.Errorf("sync the TPM's state: %w", err)
		}
	}
	dir, _, err := tpmFolders(root, folder)
	if err != nil {
		return err
	}
	defer dir.Close()
	return errors.Join(syncFolder(arrived), syncFolder(dir))
}

// KeepTPM makes the folder of a TPM that has arrived the one that counts.
func KeepTPM(root, folder string, arrived *os.File) error {
	dir, numbers, err := tpmFolders(root, folder)
	if err != nil {
		return err
	}
	defer dir.Close()
	return rename(dir, filepath.Base(arrived.Name()), strconv.Itoa(numbers.last+1))
}

// ForgetTPM removes the folder of a TPM that has not arrived. It keeps a state that is the only one on the volume: the
// guest may count on it, and nobody may hear from this launcher that the guest never ran here.
func ForgetTPM(root, folder string, arriving *os.File) error {
	dir, numbers, err := tpmFolders(root, folder)
	if err != nil {
		return err
	}
	defer dir.Close()
	if numbers.last == 0 && hasState(arriving) {
		return nil
	}
	return os.RemoveAll(filepath.Join(through(dir), filepath.Base(arriving.Name()))) // follows no links
}

// through returns a path to a folder that is open.
func through(dir *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) }

// tpmNames are the names in the folder of a volume's TPM.
type tpmNames struct {
	last  int // the highest number; 0 if there is none
	names []string
}

func tpmFolders(root, folder string) (*os.File, tpmNames, error) {
	var found tpmNames
	dir, err := openStateFolder(root, folder)
	if err != nil {
		return nil, found, err
	}
	if found.names, err = fewNames(dir, folder); err != nil {
		dir.Close()
		return nil, found, err
	}
	for _, name := range found.names {
		if n, err := strconv.Atoi(name); err == nil && n > found.last && n < maxTPMNumber && strconv.Itoa(n) == name {
			found.last = n
		}
	}
	if found.last == maxTPMNumber-1 { // a guest that arrives would find no higher number that counts
		dir.Close()
		return nil, found, fmt.Errorf("%w: /%s has a folder %d, and the highest number is %d; give the folder the number 1", ErrUnusable, folder, found.last, found.last-1)
	}
	return dir, found, nil
}

// fewNames returns the names in a folder, of which there may not be many.
func fewNames(dir *os.File, shown string) ([]string, error) {
	f, err := beneath(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY) // a position of its own
	if err != nil {
		return nil, fmt.Errorf("list /%s: %w", shown, err)
	}
	defer f.Close()
	names, err := f.Readdirnames(maxTPMFiles + 1)
	if len(names) > maxTPMFiles {
		return nil, fmt.Errorf("%w: /%s has more than %d entries", ErrUnusable, shown, maxTPMFiles)
	}
	if err != nil && !errors.Is(err, io.EOF) { // io.EOF is of an empty folder
		return nil, fmt.Errorf("list /%s: %w", shown, err)
	}
	return names, nil
}

// removeOthers removes the folders of TPMs that have gone, and of those that have not arrived. What remains is removed
// another time.
func (n tpmNames) removeOthers(dir *os.File, keep string) {
	for _, name := range n.names {
		number, err := strconv.Atoi(name)
		if (err == nil && number > 0 && number <= n.last || strings.HasPrefix(name, arriving)) && name != keep {
			_ = os.RemoveAll(filepath.Join(through(dir), name)) // follows no links
		}
	}
}

// openTPMFolder opens a folder that holds a TPM's state, and nothing else.
func openTPMFolder(parent *os.File, folder, name string) (*os.File, error) {
	shown := path.Join(folder, name)
	f, err := beneath(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%w: /%s is not a folder; delete it, and the TPM begins anew", ErrUnusable, shown)
	}
	if err != nil {
		return nil, fmt.Errorf("open /%s: %w", shown, err)
	}
	if err := onlyState(f, shown); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// onlyState refuses what swtpm would follow, wait for, or read into memory.
func onlyState(dir *os.File, shown string) error {
	names, err := fewNames(dir, shown)
	if err != nil {
		return err
	}
	for _, name := range names {
		var stat unix.Stat_t
		if err := unix.Fstatat(int(dir.Fd()), name, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("stat /%s: %w", path.Join(shown, name), err)
		}
		at := path.Join("/", shown, name)
		switch {
		case stat.Mode&unix.S_IFMT != unix.S_IFREG:
			return fmt.Errorf("%w: %s is a %s, not a regular file", ErrUnusable, at, imagefile.FileKind(stat.Mode))
		case stat.Nlink > 1:
			return fmt.Errorf("%w: %s has %d names (hard links)", ErrUnusable, at, stat.Nlink)
		case stat.Size > maxTPMFile:
			return fmt.Errorf("%w: %s has %d bytes, and no TPM's state has more than %d", ErrUnusable, at, stat.Size, maxTPMFile)
		}
		if err := unix.Faccessat(int(dir.Fd()), name, unix.R_OK|unix.W_OK, 0); err != nil {
			return fmt.Errorf("use %s: %w; make it readable and writable for user %d", at, err, os.Getuid())
		}
		if name == tpmPermanent {
			if err := wholeState(dir, name, stat.Size); err != nil {
				return fmt.Errorf("%w: %s: %w; bring it back from a backup, or delete it, and the TPM begins anew without its keys", ErrUnusable, at, err)
			}
		}
	}
	return nil
}

// tpmPermanent is swtpm's file with what outlives the emulator.
const tpmPermanent = "tpm2-00.permall"

// wholeState looks at the header that swtpm writes before a state: two versions of a byte, the header's size and flags
// of two bytes, and the file's size of four (blobheader in swtpm's swtpm_nvstore.c). swtpm itself says of a broken file
// only that its initialization failed.
func wholeState(dir *os.File, name string, size int64) error {
	f, err := beneath(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	defer f.Close()
	var header [10]byte
	if _, err := io.ReadFull(f, header[:]); err != nil {
		return fmt.Errorf("it has %d bytes, and is no TPM's state", size)
	}
	if says := int64(binary.BigEndian.Uint32(header[6:])); says != size {
		return fmt.Errorf("it has %d bytes, and its header says %d: it is cut short, or no TPM's state", size, says)
	}
	return nil
}
