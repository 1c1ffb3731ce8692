package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/kubeqemu/kubeqemu/internal/jsonsize"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// Bounds of a launcher's answers and events, in bytes of JSON and in JSON values. A value of
// two bytes, {}, may take hundreds in memory, so the values are counted before any is decoded.
const (
	// MaxReportBytes bounds a hello or a state report without its Machine.
	MaxReportBytes = 64 << 10
	// MaxMachineBytes and MaxMachineValues bound a Machine: a thousand devices.
	MaxMachineBytes  = 256 << 10
	MaxMachineValues = 16 << 10
	// maxValues bounds everything that is decoded.
	maxValues = MaxMachineValues + 4<<10
)

// ErrProtocol is wrapped by every error about a message that breaks the protocol.
var ErrProtocol = errors.New("control protocol violated")

// Decode decodes a peer's question. It refuses unknown fields and trailing bytes: a question
// that is understood only in part cannot be answered.
func Decode(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("%w: bytes after the value", ErrProtocol)
	}
	return nil
}

// Told decodes a peer's answer or event, within bounds. It ignores unknown fields, which come
// from a newer peer. A *json.RawMessage gets the document as it is.
func Told(data []byte, into any) error {
	if raw, ok := into.(*json.RawMessage); ok {
		*raw = data
		return nil
	}
	if n := jsonsize.Values(data); n > maxValues {
		return fmt.Errorf("%w: %d values, at most %d are read", ErrProtocol, n, maxValues)
	}
	var err error
	switch into.(type) {
	case *Hello:
		var report struct{ State rawReport }
		if err = json.Unmarshal(data, &report); err == nil {
			err = report.State.check(len(data))
		}
	case *StateReport:
		var report rawReport
		if err = json.Unmarshal(data, &report); err == nil {
			err = report.check(len(data))
		}
	}
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil && !errors.Is(err, ErrProtocol) {
		err = fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return err
}

// rawReport is a StateReport whose Machine is not decoded.
type rawReport struct{ Machine json.RawMessage }

// check checks the bounds of a report. all is the length of the message around it.
func (r rawReport) check(all int) error {
	if rest := all - len(r.Machine); rest > MaxReportBytes {
		return fmt.Errorf("%w: a report of %d bytes without its Machine, at most %d are read", ErrProtocol, rest, MaxReportBytes)
	}
	return checkMachine(r.Machine)
}

func checkMachine(data []byte) error {
	switch n := jsonsize.Values(data); {
	case len(data) > MaxMachineBytes:
		return fmt.Errorf("%w: a Machine of %d bytes, at most %d fit into a hello", ErrProtocol, len(data), MaxMachineBytes)
	case n > MaxMachineValues:
		return fmt.Errorf("%w: a Machine of %d values, at most %d fit into a hello", ErrProtocol, n, MaxMachineValues)
	}
	return nil
}

// CheckMachine returns an error unless a Machine fits into a launcher's hello. A Machine that
// does not fit must not be started: a restarted virt-handler could not learn of it again.
func CheckMachine(m *qemuargs.Machine) error {
	data, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode the Machine: %w", err)
	}
	return checkMachine(data)
}

// Turns bounds how many messages of all launchers are decoded at once. Messages are bounded,
// so a turn takes milliseconds. Launchers that wait are served in order, and each waits for
// one turn at a time (see Client).
type Turns chan struct{}

// NewTurns makes n turns.
func NewTurns(n int) Turns { return make(Turns, n) }

// take waits for a turn. Without Turns there is no bound.
func (t Turns) take() {
	if t != nil {
		t <- struct{}{}
	}
}

func (t Turns) giveBack() {
	if t != nil {
		<-t
	}
}
