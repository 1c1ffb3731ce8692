// Package older checks objects of older API versions, such as kubevirt.io/v1alpha3.
//
// The CRDs hold no schema for older versions, because the API server keeps each schema in memory
// several times over. So virt-api checks these objects with the schema of the stored version, by
// the API server's own libraries. These libraries would cost every component memory from the
// start. So they are in a program of their own, virt-schema, which virt-api starts when it first
// needs the program, and ends when nobody has asked for a while.
package older

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// maxFrame bounds a question and an answer, in bytes. An admission review has at most
	// 6 MiB, and an answer hardly more than the object in it.
	maxFrame = 8 << 20
	// lengthBytes is the size of the length that stands before a question or an answer.
	lengthBytes = 4
)

// ErrTooLong says that a question or an answer has more than maxFrame bytes.
var ErrTooLong = fmt.Errorf("write message: it may have %d bytes, and has more", maxFrame)

// Question is about an object that somebody creates or changes in an older version.
type Question struct {
	// Group and Resource name the kind, as in kubevirt.io and virtualmachines.
	Group    string `json:"group"`
	Resource string `json:"resource"`
	// Name is the object's.
	Name   string          `json:"name,omitempty"`
	Object json.RawMessage `json:"object"`
	// Old is the object as it is stored; empty if the object is new.
	Old json.RawMessage `json:"old,omitempty"`
}

// check refuses a question that is too long, before it costs memory to encode.
func (q Question) check() error {
	const escaped = 6      // bytes that one byte of the name may take
	const others = 1 << 10 // bytes, more than all else has
	if len(q.Object)+len(q.Old)+escaped*len(q.Name)+others > maxFrame {
		return ErrTooLong
	}
	return nil
}

// Answer is what the API server would make of the object in the stored version.
type Answer struct {
	// Object is the object in the stored version, without unknown fields, and with the
	// schema's defaults.
	Object json.RawMessage `json:"object,omitempty"`
	// Unknown are the paths of the fields that the schema does not have.
	Unknown []string `json:"unknown,omitempty"`
	// Invalid is the API server's answer if the schema or its rules refuse the object, and nil
	// otherwise.
	Invalid *metav1.Status `json:"invalid,omitempty"`
	// Failure says why there is no answer; otherwise it is empty.
	Failure string `json:"failure,omitempty"`
}

// Encode encodes as json.Marshal, but leaves <, > and &, which json.Marshal makes six times as long.
func Encode(value any) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), nil
}

// Write writes a question or an answer. After ErrTooLong, nothing has been written.
func Write(w io.Writer, message any) error {
	text, err := Encode(message)
	if err != nil {
		return fmt.Errorf("write message: %w", err)
	}
	if len(text) > maxFrame {
		return ErrTooLong
	}
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, lengthBytes+len(text)), uint32(len(text)))
	if _, err := w.Write(append(frame, text...)); err != nil {
		return fmt.Errorf("write message: %w", err)
	}
	return nil
}

// Read reads a question or an answer. The error is io.EOF if the other side has ended before it.
func Read(r io.Reader, message any) error {
	var length [lengthBytes]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > maxFrame {
		return fmt.Errorf("read message: it has %d bytes, and may have %d", n, maxFrame)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return fmt.Errorf("read message: %w", err)
	}
	if err := json.Unmarshal(text, message); err != nil {
		return fmt.Errorf("read message: %w", err)
	}
	return nil
}
