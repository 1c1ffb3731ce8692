package migration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/process"
)

// Carried is the file of a disk that the guest only reads. The target cannot make the file itself, because the files
// it was made from may have changed. The launchers copy it, because QEMU cannot mirror a disk to a read-only disk.
type Carried struct {
	Disk string
	// Path of the file, which does not change.
	Path string
	// Size of the file, in bytes.
	Size int64
	// Channel leads to the target's launcher.
	Channel *os.File
}

// got is what the target says when it has a file.
const got = 'K'

// A file may take carryTimeout, a second more for each carrySpeed bytes, and longestCarry at most. The UEFI variables
// of arm64 have 64 MiB, and the target's storage may be slow. The limit of the whole migration, Limits.Completion,
// holds for them as well.
const (
	carryTimeout = time.Minute
	carrySpeed   = 128 << 10
	longestCarry = 30 * time.Minute
)

// patience returns how long the file may take.
func (c Carried) patience() time.Duration {
	const most = int64((longestCarry - carryTimeout) / time.Second)
	return carryTimeout + time.Duration(min(max(c.Size, 0)/carrySpeed, most))*time.Second
}

// carry sends the files, one after the other, and waits until the target has them.
func (s *Source) carry(ctx context.Context) error {
	for _, c := range s.Carried {
		if err := c.send(ctx); err != nil {
			return fmt.Errorf("copy disk %s to the target: %w", c.Disk, err)
		}
	}
	return nil
}

// carryVariables sends the guest's UEFI variables, if the target has a file of its own for them, and waits until that
// file has them.
func (s *Source) carryVariables(ctx context.Context) error {
	if s.Kept == nil {
		return nil
	}
	if err := s.Kept.send(ctx); err != nil {
		return fmt.Errorf("copy the UEFI variables to the target: %w", err)
	}
	return nil
}

func (c Carried) send(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.patience())
	defer cancel()
	file, err := os.Open(c.Path)
	if err != nil {
		return err
	}
	defer file.Close()
	conn, err := net.FileConn(c.Channel)
	if err != nil {
		return fmt.Errorf("use the channel: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })() // in the past: ends what waits
	if _, err := io.CopyN(conn, file, c.Size); err != nil {
		return errors.Join(ctx.Err(), err)
	}
	answer := make([]byte, 1)
	if _, err := io.ReadFull(conn, answer); err != nil || answer[0] != got {
		return errors.Join(ctx.Err(), errors.New("the target does not say that it has the disk"), err)
	}
	return nil
}

// Take returns one end of a connection, over which the content of a file of size bytes comes from the source. The file
// has that size already. QEMU has opened it, and reads it only when the guest runs.
func (t *Target) Take(disk, path string, size int64) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("take disk %s: %w", disk, err)
	}
	conn, theirs, err := process.SocketPair("disk " + disk)
	if err != nil {
		file.Close()
		return nil, err
	}
	came := make(chan error, 1)
	t.taken = append(t.taken, taken{disk, conn, came})
	go func() {
		defer conn.Close()
		defer file.Close()
		_, err := io.CopyN(file, conn, size)
		if err == nil {
			err = file.Sync()
		}
		came <- err // before the source hears of it, and lets the guest come
		if err == nil {
			conn.Write([]byte{got}) // without it the source does not go on
		}
	}()
	return theirs, nil
}

// taken is a file that comes from the source.
type taken struct {
	disk string
	conn net.Conn
	came chan error
}

// whole reports whether all files have come. The source sends the guest only after them.
func (t *Target) whole() error {
	for _, file := range t.taken {
		select {
		case err := <-file.came:
			if err != nil {
				return fmt.Errorf("receive disk %s: %w", file.disk, err)
			}
		default:
			return fmt.Errorf("receive disk %s: the guest has come, and the disk has not", file.disk)
		}
	}
	return nil
}
