package cluster

import (
	"fmt"
	"io"
	"time"
)

// Progress prints lines that begin with the time since it was made.
type Progress struct {
	out   io.Writer
	start time.Time
}

// NewProgress starts its clock now.
func NewProgress(out io.Writer) Progress { return Progress{out: out, start: time.Now()} }

// Line prints one line, to which it adds the newline.
func (p Progress) Line(format string, args ...any) {
	fmt.Fprintf(p.out, "[%5.1fs] %s\n", time.Since(p.start).Seconds(), fmt.Sprintf(format, args...))
}
