package stats

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

const (
	// ownEvery is how often the kernel is asked for the memory of a VM's processes: it looks at each page that they have,
	// some hundreds of milliseconds for a guest of 64 GiB in small pages.
	ownEvery = time.Minute
	// maxLooked is the most memory of a guest, in bytes, whose processes are asked about: the kernel walks 64 GiB of small
	// pages in some hundreds of milliseconds, and nothing can end the walk.
	maxLooked = 64 << 30
	// maxSmaps bounds what is read of smaps, in bytes: 700 for each mapping, of which QEMU has hundreds.
	maxSmaps = 16 << 20
)

// own returns the memory of QEMU, of the launcher and of its helpers besides the guest's, not older than ownEvery. It
// is nil where it is not known: for a guest of more than maxLooked in small pages.
func (s *Source) own() *control.OwnMemory {
	if s.ownAt.IsZero() || time.Since(s.ownAt) >= ownEvery {
		s.ownAt, s.ownLast = time.Now(), s.readOwn()
	}
	return s.ownLast
}

func (s *Source) readOwn() *control.OwnMemory {
	if s.Machine.HugePageBytes == 0 && s.Machine.MemoryBytes > maxLooked {
		return nil
	}
	qemu, err := privateOf(fmt.Sprintf("/proc/%d/smaps", s.PID), uint64(s.Machine.MemoryBytes))
	if err != nil {
		return nil
	}
	out := &control.OwnMemory{QEMU: qemu}
	for _, pid := range append([]int{os.Getpid()}, s.Helpers...) {
		if n, err := privateOf(fmt.Sprintf("/proc/%d/smaps_rollup", pid), 0); err == nil { // a helper may have ended
			out.Launcher += n
		}
	}
	return out
}

func privateOf(path string, guest uint64) (uint64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return parseSmaps(io.LimitReader(f, maxSmaps), guest)
}

// parseSmaps adds up what no other process shares, of all mappings but the guest's memory (proc_pid_smaps(5)). The
// guest's memory is a mapping of at least its size that is left out of core files (dd), as QEMU's dump-guest-core=off
// has it.
func parseSmaps(text io.Reader, guest uint64) (uint64, error) {
	var total, size, private uint64
	whole := false
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		name, value, ok := strings.Cut(lines.Text(), ":")
		switch {
		case !ok || strings.Contains(name, " "): // of the head of a mapping, whose file may have a colon in its name
			total, size, private, whole = total+private, 0, 0, true
		case name == "Size", name == "Private_Clean", name == "Private_Dirty":
			n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 44)
			if err != nil {
				return 0, fmt.Errorf("%w: %w", errProc, err)
			}
			if name == "Size" {
				size = n << 10
			} else {
				private += n << 10
			}
		case name == "VmFlags" && guest > 0 && size >= guest && strings.Contains(value+" ", " dd "):
			private = 0
		}
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	if !whole {
		return 0, errProc
	}
	return total + private, nil
}
