package local

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/cmd/qemuargs/local/images"
)

// notes are what the user is told, besides what the guest writes.
type notes struct {
	mu       sync.Mutex
	out      io.Writer
	terminal bool
	// lineEnd is "\r\n" while the terminal takes lines as they are.
	lineEnd string
	// line is the work whose progress was shown last, and drawn is when.
	line  string
	drawn time.Time
}

func newNotes(out io.Writer) *notes {
	n := &notes{out: out, lineEnd: "\n"}
	if file, ok := out.(*os.File); ok {
		_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
		n.terminal = err == nil
	}
	return n
}

// raw says whether the terminal takes lines as they are.
func (n *notes) raw(is bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lineEnd = "\n"
	if is {
		n.lineEnd = "\r\n"
	}
}

// say writes a line.
func (n *notes) say(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.write(fmt.Sprintf(format, args...))
}

// Write writes lines that others have made.
func (n *notes) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for line := range strings.Lines(string(p)) {
		n.write(strings.TrimRight(line, "\r\n"))
	}
	return len(p), nil
}

func (n *notes) write(text string) {
	if n.line != "" && n.terminal {
		fmt.Fprint(n.out, "\r\x1b[K") // in the place of the progress
		n.line = ""
	}
	fmt.Fprint(n.out, text, n.lineEnd)
}

// drawInterval is the time between two looks of the progress.
const drawInterval = 100 * time.Millisecond

// progress shows how far the work on an image is: on a terminal in one line that changes, else
// once for each work.
func (n *notes) progress(p images.Progress) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case p.Finished && n.terminal && n.line != "":
		fmt.Fprint(n.out, n.lineEnd)
		n.line = ""
	case p.Finished:
	case !n.terminal && n.line != p.What:
		n.write(shown(images.Progress{What: p.What, Total: p.Total}))
		n.line = p.What
	case n.terminal && (n.line != p.What || time.Since(n.drawn) > drawInterval || p.Done == p.Total):
		fmt.Fprintf(n.out, "\r\x1b[K%s", shown(p))
		n.line, n.drawn = p.What, time.Now()
	}
}

// shown is progress in words.
func shown(p images.Progress) string {
	const mb = 1e6
	switch {
	case p.Total == 0:
		return p.What
	case p.Done == 0:
		return fmt.Sprintf("%s: %.1f MB", p.What, float64(p.Total)/mb)
	}
	return fmt.Sprintf("%s: %.1f of %.1f MB", p.What, float64(p.Done)/mb, float64(p.Total)/mb)
}
