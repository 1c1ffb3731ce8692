package imagefile

import (
	"errors"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

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
	if err := copyTo(from, to, stat.Size); err != nil {
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

// copyTo copies so many bytes of a file to a path, where everybody may read them. It removes the file that an earlier
// process of the container has left there.
func copyTo(from File, to string, size int64) error {
	if err := unix.Unlink(to); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	fd, err := unix.Open(to, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o444)
	if err != nil {
		return err
	}
	buffer := make([]byte, 64<<10)
	for size > 0 && err == nil {
		var n int
		n, err = unix.Read(int(from), buffer[:min(size, int64(len(buffer)))])
		if n == 0 && err == nil {
			err = errShort
		}
		if err == nil {
			err = writeAll(fd, buffer[:n])
		}
		size -= int64(max(n, 0))
	}
	return errors.Join(err, unix.Close(fd))
}

// errShort: a file had fewer bytes than it had a moment before.
var errShort = errors.New("the file has become shorter")

// writeAll writes all bytes.
func writeAll(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := unix.Write(fd, data)
		if err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}
