package imagefile

import (
	"errors"
	"io"
	"os"
	"path"
	"strconv"
)

// CopyProgram copies this process's own program to a path, where the other containers of the pod have it. Their images
// are a tenant's.
func CopyProgram(to string) error {
	own, err := os.Executable()
	if err != nil {
		return failed("find the own program", err)
	}
	from, err := os.Open(own)
	if err != nil {
		return failed("open the own program", err)
	}
	defer from.Close()
	return CopyTo(from, to, 0o555)
}

// CopyTo copies a file to a path. It removes the file that an earlier process of the container has left there.
func CopyTo(from io.Reader, to string, mode os.FileMode) error {
	if err := os.RemoveAll(to); err != nil {
		return failed("make room for "+to, err)
	}
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, from); err != nil {
		return errors.Join(failed("write "+to, err), f.Close())
	}
	return f.Close()
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
	stat, err := from.Stat()
	if err != nil {
		return 0, failed("stat /"+name, err)
	}
	if stat.Size() > most {
		return 0, unusable("/"+name+" has "+strconv.FormatInt(stat.Size(), 10)+" bytes, and "+strconv.FormatInt(most, 10)+
			" may be copied", nil)
	}
	to := path.Join(folder, name)
	if err := os.MkdirAll(path.Dir(to), 0o755); err != nil {
		return 0, failed("make the folder of /"+name, err)
	}
	return stat.Size(), CopyTo(io.LimitReader(from, stat.Size()), to, 0o444)
}
