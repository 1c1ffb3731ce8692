package launcher

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/link"
	"github.com/kubeqemu/kubeqemu/launcher/process"
)

// runsQEMU returns why there is no running QEMU to ask about, or nil.
func (l *launcher) runsQEMU(command string) error {
	switch state := l.life.Shown(); state {
	case control.StateRunning, control.StatePaused, control.StateShuttingDown:
		return nil
	default:
		return fmt.Errorf("%s: no QEMU runs: the VM is %s", command, state)
	}
}

// arguments answers with the arguments of QEMU's process, as the kernel has them.
func (l *launcher) arguments(*link.Command) (work, error) {
	pid := strconv.Itoa(l.qemu.PID())
	reply := control.Arguments{ClockStart: l.start.Machine.Clock.Start, Host: json.RawMessage(l.start.Host)}
	return result(func(context.Context) (json.RawMessage, error) {
		words, err := process.Arguments(os.DirFS("/proc"), pid)
		if err != nil {
			return nil, err
		}
		reply.Program, reply.Arguments = words[0], words[1:]
		return bounded(reply)
	}), nil
}

// bounded returns the answer's JSON, or an error for an answer that virt-handler would not read: virt-handler ends the
// connection of a launcher that sends too much.
func bounded(reply control.Arguments) (json.RawMessage, error) {
	data, err := json.Marshal(reply)
	if err == nil && len(data) > control.MaxArgumentsBytes {
		err = fmt.Errorf("the answer has %d bytes, more than %d", len(data), control.MaxArgumentsBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("tell QEMU's arguments: %w", err)
	}
	return data, nil
}

// checkHost returns why the launcher does not keep the Host of a start request, or nil.
func checkHost(host string) error {
	switch {
	case len(host) > control.MaxHostBytes:
		return fmt.Errorf("%w: a host of %d bytes, at most %d are kept", control.ErrProtocol, len(host), control.MaxHostBytes)
	case host != "" && !json.Valid([]byte(host)):
		return fmt.Errorf("%w: a host that is no JSON", control.ErrProtocol)
	}
	return nil
}
