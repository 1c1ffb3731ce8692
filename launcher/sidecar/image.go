package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/imagefile"
)

// ErrNotHandedOut: the container has no file to hand out. The error's text is the container's own.
var ErrNotHandedOut = errors.New("the container has no such disk")

// errAgain: the next attempt may get the file.
var errAgain = errors.New("the container hands out nothing at present")

// Receive returns the file that a container hands out at a socket. It asks until the container hands out a file, says
// that its image has none, or ctx ends. The container may be restarted meanwhile, or its node may lack memory for a
// moment. The container's image is a tenant's, so its program may answer anything. Receive takes only a regular file
// that is open for reading alone: to read such a file waits for nobody. When ctx ends, the error is the last reason why
// there was no file.
func Receive(ctx context.Context, socket string) (*os.File, error) {
	var before error
	for {
		f, err := receiveOnce(ctx, socket)
		switch {
		case err == nil:
			return f, nil
		case ctx.Err() != nil && before != nil && (errors.Is(err, errAgain) || errors.Is(err, errNobody)):
			return nil, before // err may only say that the time is over
		case !errors.Is(err, errAgain):
			return nil, err
		}
		before = err
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(interval):
		}
	}
}

func receiveOnce(ctx context.Context, socket string) (*os.File, error) {
	raw, err := Connect(ctx, socket)
	if err != nil {
		return nil, err
	}
	defer raw.Close()
	conn, err := net.FileConn(raw)
	if err != nil {
		return nil, fmt.Errorf("use the connection: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(imagefile.HandPatience)); err != nil {
		return nil, fmt.Errorf("use the connection: %w", err)
	}
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("use the connection: %w", ErrNoSocket)
	}
	return receive(unixConn)
}

func receive(conn *net.UnixConn) (*os.File, error) {
	text, rights := make([]byte, imagefile.MaxAnswer), make([]byte, unix.CmsgSpace(4))
	n, nr, flags, _, err := conn.ReadMsgUnix(text, rights)
	if err != nil {
		return nil, fmt.Errorf("%w: wait for the file: %w", errAgain, err)
	}
	files, err := filesIn(rights[:nr])
	truncated := flags&unix.MSG_CTRUNC != 0
	switch {
	case err != nil:
	case truncated && len(files) == 0:
		err = fmt.Errorf("%w: this process cannot have one more file open", errAgain)
	case truncated || len(files) > 1:
		err = errors.New("there came more than one file")
	}
	switch {
	case err != nil:
	case n == 0: // such as the end of a connection whose container has ended
		err = fmt.Errorf("%w: the connection has ended", errAgain)
	case imagefile.Kind(text[0]) == imagefile.Again:
		err = fmt.Errorf("%w: %s", errAgain, text[1:n])
	case imagefile.Kind(text[0]) == imagefile.Never:
		err = fmt.Errorf("%w: %s", ErrNotHandedOut, text[1:n])
	case imagefile.Kind(text[0]) != imagefile.Found:
		err = errors.New("there came no answer that is known")
	case len(files) == 0:
		err = errors.New("there came no file")
	default:
		err = onlyRead(files[0])
	}
	if err != nil {
		for _, f := range files {
			f.Close()
		}
		return nil, err
	}
	return files[0], nil
}

// filesIn returns the files of a message.
func filesIn(rights []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, fmt.Errorf("read what came beside the answer: %w", err)
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // another kind of message
		}
		for _, fd := range fds {
			syscall.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "image"))
		}
	}
	return files, nil
}

// onlyRead fails unless a file is a regular one that is open for reading alone.
func onlyRead(f *os.File) error {
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return fmt.Errorf("look how the file is open: %w", err)
	}
	if flags&(unix.O_ACCMODE|unix.O_PATH) != unix.O_RDONLY {
		return errors.New("the file is not open for reading alone")
	}
	stat, err := f.Stat()
	if err == nil && !stat.Mode().IsRegular() {
		err = fmt.Errorf("it is a %s, and not a regular file", stat.Mode().Type())
	}
	return err
}
