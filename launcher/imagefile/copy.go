package imagefile

import (
	"errors"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// CopyProgram copies this process's own program to a path, where the other containers of the pod have it. Their images
// are a tenant's.
func CopyProgram(to string) error {
	own, err := open("/proc/self/exe", unix.O_RDONLY, 0)
	if err != nil {
		return failed("open the own program", err)
	}
	defer own.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(own), &stat); err != nil {
		return failed("stat the own program", err)
	}
	if err := copyTo(own, to, stat.Size, 0o555); err != nil {
		return failed("copy the own program to "+to, err)
	}
	return nil
}

// CopyFiles copies files of the container's image, by their paths below root, to the same paths below a folder. most
// bounds their bytes together. CopyFiles follows no symbolic link.
func CopyFiles(root, folder string, most int64, names ...string) error {
	for _, name := range names {
		size, err := copyFile(root, folder, most, name)
		if err != nil {
			return err
		}
		most -= size
	}
	return nil
}

func copyFile(root, folder string, most int64, name string) (size int64, err error) {
	from, name, err := Open(root, name)
	if err != nil {
		return 0, err
	}
	defer from.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(from), &stat); err != nil {
		return 0, failed("stat /"+name, err)
	}
	if stat.Size > most {
		return 0, unusable("/"+name+" has "+strconv.FormatInt(stat.Size, 10)+" bytes, and "+strconv.FormatInt(most, 10)+
			" may be copied", nil)
	}
	to := path.Join(folder, name)
	if err := makeFolders(folder, path.Dir(name)); err != nil {
		return 0, failed("make the folder of /"+name, err)
	}
	if err := copyTo(from, to, stat.Size, 0o444); err != nil {
		return 0, failed("copy /"+name, err)
	}
	return stat.Size, nil
}

// makeFolders makes the folders of a path below a folder.
func makeFolders(folder, below string) error {
	for _, name := range strings.Split(below, "/") {
		folder = path.Join(folder, name)
		if err := unix.Mkdir(folder, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return nil
}

// copyTo copies so many bytes of a file to a path, with a mode. It removes the file that an earlier process of the
// container has left there.
func copyTo(from File, to string, size int64, mode uint32) error {
	if err := unix.Unlink(to); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	copied, err := open(to, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, mode)
	if err != nil {
		return err
	}
	buffer := make([]byte, 64<<10)
	for size > 0 && err == nil {
		var n int
		n, err = again(func() (int, error) { return unix.Read(int(from), buffer[:min(size, int64(len(buffer)))]) })
		if n == 0 && err == nil {
			err = errShort
		}
		if err == nil {
			err = writeAll(copied, buffer[:n])
		}
		size -= int64(max(n, 0))
	}
	return errors.Join(err, unix.Close(int(copied)))
}

// errShort: a file had fewer bytes than it had a moment before.
var errShort = errors.New("the file has become shorter")

// writeAll writes all bytes.
func writeAll(to File, data []byte) error {
	for len(data) > 0 {
		n, err := again(func() (int, error) { return unix.Write(int(to), data) })
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}
