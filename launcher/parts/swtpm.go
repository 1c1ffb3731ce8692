package parts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/diskimage"
	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/launcher/podlog"
	"github.com/kubeqemu/kubeqemu/launcher/process"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

const (
	// tpmFolder names the open folder with the TPM's state among the files of a start. QEMU does not inherit it.
	tpmFolder = "tpm-folder"
	// tpmEndTime is how long swtpm has to end after QEMU. It writes each change of its state at once, and has nothing
	// left to do.
	tpmEndTime = time.Second
	// tpmKillTime bounds the wait for a swtpm that was killed.
	tpmKillTime = time.Second
	// keepTPMPause is the time between the first two attempts to keep the state of a TPM that has arrived.
	keepTPMPause = time.Second
)

// TPM is swtpm, which emulates the machine's TPM. swtpm ends with QEMU.
type TPM struct {
	None
	// Program is swtpm's path.
	Program string
	// Output gets what swtpm writes.
	Output io.Writer
	Log    *slog.Logger
	// Tell tells the loop that swtpm has ended.
	Tell func(life.Event)

	emulator *emulator // nil if none runs
	// arriving is the open folder with the state of a TPM in a volume whose guest comes from another launcher. It is in
	// a folder of the volume, which is mounted at root.
	arriving     *os.File
	root, folder string
	// arrived: that guest is here, and so the folder is not to be forgotten.
	arrived bool
	// keeping: the state that has arrived is not yet the one that counts.
	keeping atomic.Bool
}

// Prepare opens the folder with the TPM's state.
func (t *TPM) Prepare(_ context.Context, request *control.StartRequest, files map[string]*os.File) error {
	if request.Machine.TPM == nil {
		return nil
	}
	folder, err := openTPM(request.Machine.TPM, request.Incoming)
	if err != nil {
		return err
	}
	files[tpmFolder] = folder
	return nil
}

// openTPM opens the folder with the state of a machine's TPM, and makes it unless there is one from before. A guest
// that arrives from another launcher brings the state.
func openTPM(machine *qemuargs.TPM, incoming bool) (*os.File, error) {
	if machine.InState {
		folder, err := diskimage.OpenTPM(filepath.Dir(machine.Folder), filepath.Base(machine.Folder), incoming)
		if err != nil {
			return nil, fmt.Errorf("open the TPM's state on the claim with the guest's state: %w", err)
		}
		return folder, nil
	}
	if err := os.Mkdir(machine.Folder, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder of the TPM's state: %w", err)
	}
	folder, err := os.Open(machine.Folder)
	if err != nil {
		return nil, fmt.Errorf("open the folder of the TPM's state: %w", err)
	}
	return folder, nil
}

// Start starts swtpm. It must be called on a thread that lives as long as swtpm is to (see process.Start).
func (t *TPM) Start(request *control.StartRequest, files map[string]*os.File) (err error) {
	machine, folder := request.Machine.TPM, files[tpmFolder]
	if machine == nil {
		return nil
	}
	t.adopt(request, files)
	log := podlog.Messages(t.Output, "the TPM", t.Log)
	var theirs *os.File
	if t.emulator, theirs, err = startEmulator(t.Program, folder, log); err != nil {
		log.Close()
		return fmt.Errorf("start the TPM: %w", err)
	}
	files[string(qemuargs.InheritedTPM)] = theirs
	go t.emulator.await(t.Tell)
	return nil
}

// adopt takes the folder of a state that is to come out of the files, so that Close removes what has not arrived.
func (t *TPM) adopt(request *control.StartRequest, files map[string]*os.File) {
	machine, folder := request.Machine.TPM, files[tpmFolder]
	if folder == nil || !machine.InState || !request.Incoming {
		return
	}
	delete(files, tpmFolder)
	t.arriving, t.root, t.folder = folder, filepath.Dir(machine.Folder), filepath.Base(machine.Folder)
}

// PID returns swtpm's process ID, or 0 if there is no swtpm.
func (t *TPM) PID() int {
	if t.emulator == nil {
		return 0
	}
	return t.emulator.PID()
}

// Ended returns how swtpm has ended, and reports whether it has. Any goroutine may ask.
func (t *TPM) Ended() (end life.TPMEnded, ended bool) {
	if t.emulator == nil {
		return end, false
	}
	select {
	case <-t.emulator.ended:
		return t.emulator.end, true
	default:
		return end, false
	}
}

// Sync flushes the state of a TPM that has come to a volume, so that the state outlives the node. Any goroutine may
// call Sync, also after Arrive: a guest whose memory follows it may run before Sync.
func (t *TPM) Sync() error {
	if t.arriving == nil {
		return nil
	}
	return diskimage.SyncTPM(t.root, t.folder, t.arriving)
}

// Arrive makes the state that has come with the guest the one that the VM's next start finds.
func (t *TPM) Arrive(ctx context.Context, _ *control.StartRequest) {
	if t.arriving == nil {
		return
	}
	t.arrived = true
	t.keeping.Store(true)
	go func() {
		defer t.keeping.Store(false)
		t.keep(ctx, keepTPMPause)
	}()
}

// keep tries until it has kept the state, or ctx ends: the guest runs all the same. The pauses begin with pause, and
// grow.
func (t *TPM) keep(ctx context.Context, pause time.Duration) {
	for ; ; pause = min(2*pause, time.Minute) {
		err := diskimage.KeepTPM(t.root, t.folder, t.arriving)
		if err == nil {
			return
		}
		t.Log.Warn("until this succeeds, a start of the VM would find the TPM's state from before the migration",
			"error", err)
		if errors.Is(err, fs.ErrNotExist) {
			return // the folder has its number, or is gone
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// Keeping reports whether the state that has arrived is not yet the one that counts.
func (t *TPM) Keeping() bool { return t.keeping.Load() }

// Abandon gives up the TPM of a start that has failed, whether or not the start came to the TPM. It kills swtpm, which
// itself ends only after QEMU has talked to it.
func (t *TPM) Abandon(request *control.StartRequest, files map[string]*os.File) {
	t.adopt(request, files)
	if t.emulator != nil {
		t.emulator.destroy()
		t.emulator = nil
	}
}

// Close waits until swtpm has ended after QEMU, and removes a state that has not arrived.
func (t *TPM) Close() (err error) {
	if t.emulator != nil {
		err = t.emulator.close()
	}
	if t.arriving == nil {
		return err
	}
	if !t.arrived {
		_ = diskimage.ForgetTPM(t.root, t.folder, t.arriving) // or else the VM's next start does so
	}
	t.arriving.Close()
	return err
}

// emulator is a started swtpm.
type emulator struct {
	*process.Process
	log   io.Closer
	ended chan struct{} // closed at its end
	end   life.TPMEnded // valid then
}

// startEmulator starts swtpm with the state in an open folder, which stays open. It returns QEMU's end of swtpm's
// control socket. swtpm ends when QEMU has closed that end. swtpm has the same user as the launcher, and no more
// rights. It gives up system calls that it does not need by a filter of its own.
func startEmulator(program string, folder *os.File, log io.WriteCloser) (*emulator, *os.File, error) {
	ours, theirs, err := process.Pair(string(qemuargs.InheritedTPM))
	if err != nil {
		return nil, nil, err
	}
	defer theirs.Close()
	// swtpm splits its arguments at commas, and follows links. So it gets the folder as a descriptor.
	p, err := process.Start(program, []string{"socket", "--tpm2", "--ctrl", "type=unixio,clientfd=3",
		"--tpmstate", "dir=/proc/self/fd/4,mode=0600", "--terminate"}, []*os.File{theirs, folder}, log)
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w: Debian's package swtpm has it", err)
	}
	if err != nil {
		ours.Close()
		return nil, nil, err
	}
	return &emulator{Process: p, log: log, ended: make(chan struct{})}, ours, nil
}

// await waits for swtpm's end, and tells it.
func (e *emulator) await(tell func(life.Event)) {
	exit := <-e.Exited()
	e.end = life.TPMEnded{Exit: exit, Said: e.LastLine()}
	close(e.ended)
	tell(e.end)
}

// destroy kills swtpm, and waits until it is gone, but not for long.
func (e *emulator) destroy() {
	defer e.log.Close()
	e.Kill()
	e.within(tpmKillTime)
}

// close waits until swtpm has ended, but not for long. The error says how swtpm has ended, if it did not end well.
func (e *emulator) close() error {
	defer e.log.Close()
	if !e.within(tpmEndTime) {
		e.destroy()
		return errors.New("the emulator of the TPM did not end with QEMU, and was killed")
	}
	if e.end.Exit != (life.Exit{}) {
		return errors.New(e.end.String())
	}
	return nil
}

// within waits for swtpm's end, and reports whether it came in time.
func (e *emulator) within(patience time.Duration) bool {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	select {
	case <-e.ended:
		return true
	case <-timeout.C:
		return false
	}
}
