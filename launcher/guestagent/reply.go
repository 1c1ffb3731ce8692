// Package guestagent asks QEMU's guest agent about a guest, and lets it act there, over the
// agent's virtio-serial port.
//
// The guest controls what answers. So nothing in a reply is believed, and no reply costs more
// memory, time or text than is allowed here. A reply may be endless, never come, or belong to
// another command.
//
// The protocol: docs/interop/qemu-ga.rst and qga/qapi-schema.json of QEMU.
package guestagent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of one reply, in bytes.
const (
	// maxRead is how much is read at most for one reply.
	maxRead = 16 << 20
	// maxReply is how much of a reply is kept. An interface takes some 600 bytes.
	maxReply = 256 << 10
	// maxString is how much is kept of each string: a multiple of 4, so that base64 which was
	// cut is still base64.
	maxString = 4096
)

// delimiter precedes the reply to guest-sync-delimited. JSON has no such byte.
const delimiter = 0xff

var (
	// ErrReply: the agent said something that is no answer.
	ErrReply = errors.New("the guest agent's answer cannot be read")
	// ErrTooLong: the answer is longer than maxRead or maxReply.
	ErrTooLong = errors.New("the guest agent's answer is too long")
)

// Error is what the agent answered in place of a result.
type Error struct {
	Command     string
	Class, Text string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: the guest agent says: %s", e.Command, e.Text)
}

// readReply reads a line. It keeps only the beginning of each string, so that a reply with
// long strings can still be read.
func readReply(r *bufio.Reader) ([]byte, error) {
	var kept []byte
	s := stringCutter{}
	for {
		b, err := r.ReadByte()
		if err != nil {
			return nil, err
		}
		switch {
		case b == '\n':
			return kept, nil
		case b == delimiter:
			// The bytes before the delimiter belong to an answer that was given up on, or to
			// an agent that starts anew.
			kept, s = kept[:0], stringCutter{}
			continue
		case !s.keep(b):
			continue
		case len(kept) == maxReply:
			return nil, ErrTooLong
		}
		kept = append(kept, b)
	}
}

// skip reads up to the delimiter.
func skip(r *bufio.Reader) error {
	for {
		if b, err := r.ReadByte(); err != nil || b == delimiter {
			return err
		}
	}
}

// budget is a Reader that ends with ErrTooLong.
type budget struct {
	io.Reader
	left int
}

func (b *budget) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, ErrTooLong
	}
	n, err := b.Reader.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// stringCutter tells which bytes of a JSON text to keep so that no string in it
// is much longer than maxString. What it keeps of well-formed JSON is well formed.
type stringCutter struct {
	inside bool
	length int
	escape int // how many bytes of an escape sequence follow
}

func (s *stringCutter) keep(b byte) bool {
	if !s.inside {
		if b == '"' {
			*s = stringCutter{inside: true}
		}
		return true
	}
	full := s.length >= maxString
	switch {
	case s.escape > 0:
		s.escape--
		if s.escape == 0 && b == 'u' {
			s.escape = 4
		}
		// A sequence that was begun is kept whole.
		full = s.length > maxString+8
	case b == '"':
		s.inside = false
		return true
	case b == '\\':
		s.escape = 1
	}
	if full {
		s.length = maxString + 9
		return false
	}
	s.length++
	return true
}

// parseReply returns the result in a reply.
func parseReply(command string, line []byte) (json.RawMessage, error) {
	var reply struct {
		Return json.RawMessage `json:"return"`
		Error  *struct {
			Class string `json:"class"`
			Desc  string `json:"desc"`
		} `json:"error"`
	}
	err := json.Unmarshal(line, &reply)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w: %s", command, ErrReply, clip(err.Error(), maxText))
	case reply.Error != nil:
		return nil, &Error{command, clip(reply.Error.Class, maxName), clip(reply.Error.Desc, maxText)}
	case reply.Return == nil:
		return nil, fmt.Errorf("%s: %w: it holds no result", command, ErrReply)
	}
	return reply.Return, nil
}

// list decodes at most limit elements of a JSON array; the rest costs nothing.
func list[T any](data json.RawMessage, limit int) ([]T, error) {
	if string(data) == "null" || len(data) == 0 {
		return nil, nil
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, fmt.Errorf("%w: a list was expected", ErrReply)
	}
	var out []T
	for d.More() && len(out) < limit {
		var element T
		if err := d.Decode(&element); err != nil {
			return nil, fmt.Errorf("%w: %s", ErrReply, clip(err.Error(), maxText))
		}
		out = append(out, element)
	}
	return out, nil
}

// clip makes text of the guest fit to be shown: valid UTF-8 without control
// characters, of at most limit bytes.
func clip(s string, limit int) string {
	var out strings.Builder
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			continue
		}
		if out.Len()+utf8.RuneLen(r) > limit {
			break
		}
		out.WriteRune(r)
	}
	return out.String()
}
