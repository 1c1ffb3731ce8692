// Package tty hands a guest's console over to a user's terminal.
package tty

import (
	"bytes"
	"io"

	"golang.org/x/sys/unix"
)

// escape is Ctrl+], as in virtctl console.
const escape = 0x1d

// CopyInput copies until the input ends, or until the escape key Ctrl+] comes.
func CopyInput(w io.Writer, r io.Reader) (escaped bool) {
	buffer := make([]byte, 1024)
	for {
		n, err := r.Read(buffer)
		i := bytes.IndexByte(buffer[:n], escape)
		if i >= 0 {
			n = i
		}
		if _, werr := w.Write(buffer[:n]); werr != nil || err != nil || i >= 0 {
			return i >= 0
		}
	}
}

// Raw makes a terminal hand over every key unchanged. An error means that fd is no
// terminal.
func Raw(fd int) (restore func(), err error) {
	old, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, err
	}
	raw := *old
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cflag = raw.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
		return nil, err
	}
	// The flush drops unread keys and the terminal's answers: both were for the guest, and the shell
	// would take them for commands.
	return func() { unix.IoctlSetTermios(fd, unix.TCSETSF, old) }, nil
}
