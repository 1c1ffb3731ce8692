// Package hugepagetest lends tests huge pages of the machine.
package hugepagetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Lend makes the kernel keep as many more huge pages of a size as memory of bytes needs, until the test has ended. It needs
// root. The error says that the kernel has not as much memory in one piece.
func Lend(t testing.TB, pageBytes, bytes int64) error {
	t.Helper()
	pages := int((bytes + pageBytes - 1) / pageBytes)
	err := Change(pageBytes, pages)
	if err == nil {
		t.Cleanup(func() {
			if err := Change(pageBytes, -pages); err != nil {
				t.Errorf("give back huge pages: %v", err)
			}
		})
	}
	return err
}

// Change adds to the pool of huge pages, or takes from it. Tests of several packages run at the same time, so the file that holds the pool's
// size is read and written under a lock.
func Change(pageBytes int64, pages int) error {
	lock, err := os.OpenFile(filepath.Join(os.TempDir(), "kubeqemu-hugepages.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	path := fmt.Sprintf("/sys/kernel/mm/hugepages/hugepages-%dkB/nr_hugepages", pageBytes>>10)
	before, err := read(path)
	if err != nil {
		return err
	}
	after, err := before, error(nil)
	for range tries(pageBytes) {
		if err := write(path, before+pages); err != nil {
			return err
		}
		if after, err = read(path); err != nil || after == before+pages {
			break
		}
		// The kernel moves what is in the way. It makes no room where it is not asked to.
		_ = os.WriteFile("/proc/sys/vm/compact_memory", []byte("1"), 0)
		time.Sleep(time.Second)
	}
	if err != nil || after != before+pages {
		write(path, before)
		return fmt.Errorf("the kernel has %d huge pages instead of %d: %v", after, before+pages, err)
	}
	return nil
}

// tries returns how often the kernel is asked for huge pages. On a busy machine it finds small ones with time. Few kernels have
// 1 GiB in one piece once they run, and then time is no help.
func tries(pageBytes int64) int {
	if pageBytes > 2<<20 {
		return 1
	}
	return 60
}

func read(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

func write(path string, n int) error { return os.WriteFile(path, []byte(strconv.Itoa(n)), 0) }
