package qmp

import (
	"context"
	"errors"
	"fmt"
)

var (
	// ErrClosed: the connection has ended, by either side. Err wraps it, and so does the error
	// of every command that had no reply.
	ErrClosed = errors.New("monitor connection closed")

	// ErrTimeout: QEMU did not answer a command, or the handshake, in time. It is a
	// context.DeadlineExceeded.
	ErrTimeout = fmt.Errorf("no reply from QEMU: %w", context.DeadlineExceeded)

	// ErrSubscribed: Events was called while an earlier call's events are still being read.
	ErrSubscribed = errors.New("events already have a reader")
)

// Error is an error reply of QEMU (docs/interop/qmp-spec.rst, "Error").
type Error struct {
	Command string // empty for Run with a command that names none
	Class   string // "GenericError", "CommandNotFound", "DeviceNotFound", ...
	Desc    string // for people; not stable between versions
}

func (e *Error) Error() string {
	return fmt.Sprintf("QMP command %q: %s: %s", e.Command, e.Class, e.Desc)
}

// LineTooLongError is a line that passed the limit. The rest of it cannot be
// skipped in bounded time, so the connection is closed.
type LineTooLongError struct {
	Limit int // in bytes
}

func (e *LineTooLongError) Error() string {
	return fmt.Sprintf("line from QEMU is longer than %d bytes", e.Limit)
}

// ProtocolError is a line that is no QMP message. A peer that sends one is out
// of step, so the connection is closed.
type ProtocolError struct {
	Line string // the first 128 bytes
	Err  error
}

func (e *ProtocolError) Error() string {
	return fmt.Sprintf("read QMP message %q: %v", e.Line, e.Err)
}

func (e *ProtocolError) Unwrap() error { return e.Err }
