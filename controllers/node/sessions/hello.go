package sessions

import (
	"context"
	"fmt"
	"os"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/netsetup"
)

// helloTimeout is how long a launcher may take to say hello.
const helloTimeout = 10 * time.Second

// awaitHello waits until greet has taken the launcher's first message.
func (s *Set) awaitHello(launcher *Session, hello <-chan error) error {
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.greeting, launcher.Slot)
	}()
	timeout := time.NewTimer(helloTimeout)
	defer timeout.Stop()
	select {
	case err := <-hello:
		return err
	case <-launcher.Client.Done():
		return launcher.Client.Err()
	case <-s.closing:
		return control.ErrClosed
	case <-timeout.C:
		return fmt.Errorf("it did not say hello within %s", helloTimeout)
	}
}

// greet takes the hello, and the network namespace that comes with it.
func (s *Session) greet(m *control.Message) error {
	defer m.Close()
	var hello control.Hello
	if m.Event != control.EventHello || len(m.Files) != 1 { // the client has checked the file's kind and name
		return fmt.Errorf("%w: the first message must be hello with its network namespace", control.ErrProtocol)
	}
	if err := s.Client.Told(m.Data, &hello); err != nil {
		return err
	}
	switch {
	case hello.Version != control.Version:
		return fmt.Errorf("launcher speaks version %d of the control protocol, virt-handler %d", hello.Version, control.Version)
	case !Plausible(hello.State):
		return fmt.Errorf("%w: a state %.32q that no launcher is in", control.ErrProtocol, hello.State.State)
	}
	if err := s.enter(m.Files[0].File); err != nil {
		return err
	}
	s.QEMUVersion, s.knows = hello.QEMUVersion, hello.Knows == control.CommandsDigest()
	s.SetState(hello.State)
	return nil
}

// learn finds out what the launcher knows. It asks a launcher that is not of this version, and waits for its answer no
// longer than for a hello, or until closing: a launcher that does not answer must not hold up virt-handler's end.
func (s *Session) learn(closing <-chan struct{}) error {
	if s.knows {
		s.Commands = control.KnownCommands()
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), helloTimeout)
	defer cancel()
	go func() {
		select {
		case <-closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	var said control.Commands
	if err := s.Client.Call(ctx, control.CommandQueryCommands, nil, &said); err != nil {
		return fmt.Errorf("ask what it knows: %w", err)
	}
	if !said.Core() {
		return fmt.Errorf("%w: it knows less than every launcher must", control.ErrProtocol)
	}
	s.Commands = said.Within(control.KnownCommands())
	return nil
}

// enter takes the pod's network namespace, and reads the pod's own link in it.
func (s *Session) enter(file *os.File) error {
	netns, err := netsetup.FromFile(file)
	if err != nil {
		return fmt.Errorf("take network namespace: %w", err)
	}
	s.inNetNS.Lock()
	s.netns = netns
	s.inNetNS.Unlock()
	_, err = s.Link(v1.PodLink)
	return err
}

// maxDevices is more of each kind of device than any VMI has.
const maxDevices = 512

// Plausible reports whether a launcher may report such a state. A state is kept as long as its launcher is connected,
// and an empty device takes two bytes on the line and a hundred times as much memory here.
func Plausible(state control.StateReport) bool {
	m := state.Machine
	return state.State.Known() && len(state.Jobs) <= control.MaxJobs && (m == nil || max(len(m.NICs), len(m.Disks), len(m.AHCI), len(m.RootPorts), len(m.Inputs), len(m.CPU.Flags), len(m.CPU.Required)) <= maxDevices)
}
