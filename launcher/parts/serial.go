package parts

import (
	"io"
	"log/slog"
	"net"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/process"
	"github.com/kubeqemu/kubeqemu/launcher/serial"
)

// Serial is the guest's serial port.
type Serial struct {
	None
	// Socket is where consoles connect.
	Socket string
	// Output is the pod's log, which gets what the guest writes unless the start request says otherwise.
	Output io.Writer
	// Console, if set, is the first console.
	Console net.Conn
	Log     *slog.Logger

	port *serial.Port
}

// Attach takes QEMU's serial port, and listens for consoles.
func (s *Serial) Attach(request *control.StartRequest, qemu *process.QEMU) (err error) {
	if qemu.Serial == nil {
		return nil
	}
	output := s.Output
	if request.NoSerialLog {
		output = io.Discard
	}
	if s.port, err = serial.New(qemu.Serial, s.Socket, output, s.Log); err != nil {
		return err
	}
	if s.Console != nil {
		s.port.Connect(s.Console)
	}
	return nil
}

// Port returns the port, or nil where QEMU has none or was not started.
func (s *Serial) Port() *serial.Port { return s.port }

// Close ends the port. What the guest wrote before is still logged.
func (s *Serial) Close() error {
	if s.port != nil {
		s.port.Close()
	}
	return nil
}
