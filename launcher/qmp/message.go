package qmp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	monitor "github.com/digitalocean/go-qemu/qmp"
)

// Bounds of one message, in bytes. The longest known reply, to query-qmp-schema, has some 200
// KB; the longest event has less than 1 KB. A reply stays as it came; an event is decoded,
// which takes many times its length.
const (
	maxLine  = 4 << 20
	maxEvent = 64 << 10
)

// Greeting is the first message of QEMU.
type Greeting struct {
	Version      monitor.Version `json:"version"`
	Capabilities []string        `json:"capabilities"`
}

// message is one line of QEMU. Exactly one of the fields is set.
type message struct {
	greeting *Greeting
	event    *monitor.Event
	reply    *reply
}

// reply is the answer to a command.
type reply struct {
	id     json.RawMessage // nil if QEMU could not read the command's
	line   []byte          // the whole object
	result json.RawMessage // nil for an error
	failed *replyError
}

type replyError struct {
	Class string `json:"class"`
	Desc  string `json:"desc"`
}

var errKind = errors.New("neither greeting, event nor reply")

// parse reads one line. The message keeps parts of it.
func parse(line []byte) (message, error) {
	var m struct {
		QMP    json.RawMessage `json:"QMP"`
		Event  *string         `json:"event"`
		Return json.RawMessage `json:"return"`
		Error  *replyError     `json:"error"`
		ID     json.RawMessage `json:"id"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return message{}, protocolError(line, err)
	}
	switch {
	case m.Return != nil || m.Error != nil:
		return message{reply: &reply{id: m.ID, line: line, result: m.Return, failed: m.Error}}, nil
	case len(line) > maxEvent:
		return message{}, &LineTooLongError{Limit: maxEvent}
	case m.Event != nil:
		event := new(monitor.Event)
		if err := json.Unmarshal(line, event); err != nil {
			return message{}, protocolError(line, err)
		}
		return message{event: event}, nil
	case m.QMP != nil && string(m.QMP) != "null":
		greeting := new(Greeting)
		if err := json.Unmarshal(m.QMP, greeting); err != nil {
			return message{}, protocolError(line, err)
		}
		return message{greeting: greeting}, nil
	}
	return message{}, protocolError(line, errKind)
}

func protocolError(line []byte, err error) error {
	return &ProtocolError{Line: string(line[:min(len(line), 128)]), Err: err}
}

// readLine returns the next line that is not empty, in memory of its own:
// ReadSlice's result is overwritten by the next read.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > maxLine {
			return nil, &LineTooLongError{Limit: maxLine}
		}
		line = append(line, part...)
		switch {
		case err == nil:
			if line = bytes.TrimSpace(line); len(line) > 0 {
				return line, nil
			}
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}

// request is a command on the wire.
type request struct {
	Execute   string `json:"execute,omitempty"`
	OOB       string `json:"exec-oob,omitempty"`
	Arguments any    `json:"arguments,omitempty"`
	ID        any    `json:"id,omitempty"`
}

// parseCommand reads a command that a caller of Run wrote.
func parseCommand(command []byte) (r request, id json.RawMessage, err error) {
	var c struct {
		Execute   string          `json:"execute"`
		OOB       string          `json:"exec-oob"`
		Arguments json.RawMessage `json:"arguments"`
		ID        json.RawMessage `json:"id"`
	}
	if err := json.Unmarshal(command, &c); err != nil {
		return r, nil, fmt.Errorf("read QMP command: %w", err)
	}
	r = request{Execute: c.Execute, OOB: c.OOB}
	if c.Arguments != nil {
		r.Arguments = c.Arguments
	}
	return r, c.ID, nil
}

// withID returns a reply that carries the caller's id instead of ours.
func withID(line []byte, id json.RawMessage) ([]byte, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(line, &object); err != nil {
		return nil, err
	}
	delete(object, "id")
	if id != nil {
		object["id"] = id
	}
	return json.Marshal(object)
}
