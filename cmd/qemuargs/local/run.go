package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/timer"
	"github.com/kubeqemu/kubeqemu/internal/tty"
	"github.com/kubeqemu/kubeqemu/launcher"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// drainTimeout bounds the wait for the end of the guest's output after QEMU's end.
const drainTimeout = time.Second

// run has a launcher run the VM, and waits for its end.
func (v *vm) run(ctx context.Context, request control.StartRequest) (Ending, error) {
	handler, err := listen(v.folder.below(layout.SlotSocket))
	if err != nil {
		return Ending{}, err
	}
	defer handler.close()
	vnc, err := v.serveVNC()
	if err != nil {
		return Ending{}, err
	}
	defer vnc.Close()
	messages, said, err := v.messages()
	if err != nil {
		return Ending{}, err
	}
	defer func() { messages.Close(); <-said }()
	theirs, ours := net.Pipe()
	defer theirs.Close()
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	defer v.serveFileSystems(ctx, &request.Machine, messages, cancel)()
	ended := make(chan control.Termination, 1)
	console := v.attach(ours, request.Machine.Serial != nil)
	defer console.close()
	go func() { ended <- launcher.Run(running, v.config(theirs, messages)) }()
	v.ports.release()
	if err = handler.accept(); err == nil {
		err = handler.call(ctx, control.CommandStart, request)
	}
	if err != nil {
		cancel()
		<-ended
		return Ending{}, fmt.Errorf("start the VM: %w", err)
	}
	ending := v.supervise(ctx, handler, console, ended, cancel)
	theirs.Close()
	console.drain()
	return ending, nil
}

// config is the launcher's configuration.
func (v *vm) config(console net.Conn, messages *os.File) launcher.Config {
	level := slog.LevelError
	if v.Verbose {
		level = slog.LevelDebug
	}
	return launcher.Config{
		QEMU: v.qemu.path, TPM: v.TPM, QEMUVersion: v.qemu.versionFile, Folders: v.folder.folders(),
		SlotSocket: v.folder.below(layout.SlotSocket), ConsoleSocket: v.folder.below(layout.ConsoleSocket),
		VNCSocket: v.folder.below(layout.VNCSocket), AgentSocket: v.folder.below(layout.AgentSocket),
		Stdout: messages, Stderr: messages, Console: console,
		Log: slog.New(slog.NewTextHandler(v.notes, &slog.HandlerOptions{Level: level})),
	}
}

// messages is a pipe for QEMU's messages, which the user gets as notes. said is closed when
// there are no more.
func (v *vm) messages() (w *os.File, said <-chan struct{}, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("make a pipe for QEMU's messages: %w", err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer r.Close()
		_, _ = io.Copy(v.notes, r)
	}()
	return w, done, nil
}

// request is a wish that the VM ends.
type request struct {
	why string
	// urgent says that the user asked. Each urgent request after the first is answered with more
	// force; others press the power button, once.
	urgent bool
}

// urgent are the signals that a user sends.
var urgent = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT}

// supervise waits for the VM's end. A signal, the end of the console and the end of StopAfter
// press the power button. The user's next signal ends the VM at once, and the one after that
// kills QEMU. The end of a terminal sends SIGHUP and ends the console, and is no such signal.
func (v *vm) supervise(ctx context.Context, handler *handler, console *console, ended <-chan control.Termination, kill func()) Ending {
	var ending Ending
	var over <-chan time.Time
	asked, ran := 0, false
	ask := func(r request) {
		if asked > 0 && !r.urgent {
			return
		}
		asked++
		if v.askToEnd(ctx, handler, r.why, asked) != nil {
			kill()
		}
	}
	for {
		select {
		case state := <-handler.states:
			if state != control.StateRunning || ran {
				continue
			}
			ran = true
			if !v.Console {
				v.notes.say("the guest runs")
			}
			if v.StopAfter > 0 {
				stop := time.NewTimer(v.StopAfter)
				defer stop.Stop()
				over = stop.C
			}
		case s := <-v.Signals:
			console.restore()
			ask(request{why: s.String(), urgent: slices.Contains(urgent, s)})
		case why := <-console.left:
			console.restore()
			ask(request{why: why})
		case <-over:
			ending.StopAfter = asked == 0
			ask(request{why: fmt.Sprintf("%s are over", v.StopAfter)})
		case ending.Termination = <-ended:
			console.restore()
			if asked < 2 { // else the user was told that the VM is ended
				v.notes.say("%s", ending.Message)
			}
			return ending
		}
	}
}

// askToEnd asks the VM to end, more urgently each time.
func (v *vm) askToEnd(ctx context.Context, handler *handler, why string, times int) error {
	switch times {
	case 1:
		v.notes.say("%s: the power button is pressed, and the guest has %d seconds; Ctrl+C ends it at once", why, v.vmi.GracePeriodSeconds())
		return handler.call(ctx, control.CommandShutdown, nil)
	case 2:
		v.notes.say("%s: the VM is ended at once", why)
		return handler.call(ctx, control.CommandGrace, control.GraceRequest{Seconds: 0})
	}
	return errStopped
}

// console connects the user's streams with the guest's serial port.
type console struct {
	// left gets why the user has no console any more, for each reason once.
	left chan string

	conn   net.Conn
	copied chan struct{} // closed when the guest writes no more
	cooked func()        // gives the terminal back
}

// attach begins to copy. The terminal is handed over to the guest until restore.
func (v *vm) attach(conn net.Conn, serial bool) *console {
	c := &console{left: make(chan string, 2), conn: conn, copied: make(chan struct{}), cooked: func() {}}
	out := v.Out
	if !v.Console {
		out = io.Discard
	}
	go func() {
		defer close(c.copied)
		if _, err := io.Copy(out, conn); err != nil && !errors.Is(err, io.ErrClosedPipe) {
			c.left <- fmt.Sprintf("the console cannot be shown (%v)", err)
		}
	}()
	switch {
	case v.Console && !serial:
		v.notes.say("the VM has no serial console (autoattachSerialConsole)")
	case v.Console:
		c.input(v)
	}
	return c
}

// input copies what the user types. A terminal is handed over key by key, so that Ctrl+C goes
// to the guest.
func (c *console) input(v *vm) {
	if file, ok := v.In.(*os.File); ok {
		if restore, err := tty.Raw(int(file.Fd())); err == nil {
			v.notes.raw(true)
			c.cooked = func() { restore(); v.notes.raw(false) }
			v.notes.say("This is the guest's serial console; leave it, and turn the VM off, with Ctrl+].")
			go func() {
				if tty.CopyInput(c.conn, file) {
					c.left <- "the console was left"
				}
			}()
			return
		}
	}
	// The end of what is piped in does not end the VM.
	go func() { _, _ = io.Copy(c.conn, v.In) }()
}

// restore gives the terminal back. The guest's output is shown on.
func (c *console) restore() {
	c.cooked()
	c.cooked = func() {}
}

// drain waits for the end of the guest's output.
func (c *console) drain() { timer.Wait(drainTimeout, c.copied) }

func (c *console) close() {
	c.restore()
	c.conn.Close()
}
