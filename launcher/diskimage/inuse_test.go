package diskimage

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLocksOfOthersAreSeen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk.img")
	open := func() *os.File {
		t.Helper()
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	mine := open()
	for name, c := range map[string]struct {
		bytes       []int64
		write, read bool
	}{
		"nobody":  {nil, true, true},
		"writer":  {[]int64{permBase + permRead, permBase + permWrite, unsharedBase + permWrite}, false, false},
		"reader":  {[]int64{permBase + permRead, unsharedBase + permWrite}, false, true},
		"unknown": {[]int64{permBase + permRead}, true, true},
	} {
		other := open()
		for _, at := range c.bytes {
			if err := unix.FcntlFlock(other.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_RDLCK, Start: at, Len: 1}); err != nil {
				t.Fatal(err)
			}
		}
		for readOnly, want := range map[bool]bool{true: c.read, false: c.write} {
			if err := Free(mine, readOnly); (err == nil) != want || err != nil && !errors.Is(err, ErrInUse) {
				t.Errorf("%s has it; to be read only %v: %v", name, readOnly, err)
			}
		}
		other.Close()
	}
}
