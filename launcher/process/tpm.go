package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// tpmEndTime is how long swtpm has to end after QEMU. It writes each change of its state at once, and has nothing left to do.
const tpmEndTime = time.Second

// TPM is a started swtpm, the emulator of a TPM.
type TPM struct {
	process *Process
	log     io.Closer
	ended   chan struct{} // closed at its end
	exit    life.Exit     // valid then
}

// PID is the emulator's process ID.
func (t *TPM) PID() int { return t.process.PID() }

// StartTPM starts the emulator of a TPM whose state is in an open folder, which stays open. StartTPM returns QEMU's end of the emulator's control socket. swtpm ends
// when QEMU has closed that end. StartTPM must be called on a thread that lives as long as the TPM (see Start). swtpm has the same user as the
// launcher, and no more rights. It gives up system calls that it does not need by a filter of its own.
func StartTPM(program string, folder *os.File, log io.WriteCloser) (t *TPM, control *os.File, err error) {
	defer func() {
		if err != nil {
			log.Close()
			err = fmt.Errorf("start the TPM: %w", err)
		}
	}()
	control, theirs, err := Pair(string(qemuargs.InheritedTPM))
	if err != nil {
		return nil, nil, err
	}
	defer theirs.Close()
	// swtpm splits its arguments at commas, and follows links. So it gets the folder as a descriptor.
	p, err := Start(program, []string{"socket", "--tpm2", "--ctrl", "type=unixio,clientfd=3", "--tpmstate", "dir=/proc/self/fd/4,mode=0600", "--terminate"},
		[]*os.File{theirs, folder}, log)
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w: Debian's package swtpm has it", err)
	}
	if err != nil {
		control.Close()
		return nil, nil, err
	}
	t = &TPM{process: p, log: log, ended: make(chan struct{})}
	go func() {
		t.exit = <-p.exited
		close(t.ended)
	}()
	return t, control, nil
}

// Ended is closed when swtpm has ended.
func (t *TPM) Ended() <-chan struct{} { return t.ended }

// HasEnded says whether there was an emulator, and it has ended.
func (t *TPM) HasEnded() bool {
	if t == nil {
		return false
	}
	select {
	case <-t.ended:
		return true
	default:
		return false
	}
}

// Ending returns how swtpm has ended, and its last line. It is to be asked after Ended is closed.
func (t *TPM) Ending() life.TPMEnded { return life.TPMEnded{Exit: t.exit, Said: t.process.LastLine()} }

// Destroy kills swtpm, and waits until it is gone, but not for long.
func (t *TPM) Destroy() {
	defer t.log.Close()
	t.process.Kill()
	timeout := time.NewTimer(endTimeout)
	defer timeout.Stop()
	select {
	case <-t.ended:
	case <-timeout.C:
	}
}

// Close waits until swtpm has ended, but not for long. It returns an error if swtpm did not end well.
func (t *TPM) Close() error {
	defer t.log.Close()
	timeout := time.NewTimer(tpmEndTime)
	defer timeout.Stop()
	select {
	case <-t.ended:
		if t.exit == (life.Exit{}) {
			return nil
		}
		return errors.New(t.Ending().String())
	case <-timeout.C:
	}
	t.Destroy()
	return errors.New("the emulator of the TPM did not end with QEMU, and was killed")
}
