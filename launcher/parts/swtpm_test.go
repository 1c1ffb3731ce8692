package parts

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/disks"
	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/launcher/process/processtest"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestMain fails where the tests leave a process behind.
func TestMain(m *testing.M) { os.Exit(processtest.Fakes{}.Run(m, 0)) }

var quiet = slog.New(slog.DiscardHandler)

// newTPM returns a TPM whose swtpm is a program of a shell, and what the TPM tells.
func newTPM(t *testing.T, program string) (*TPM, <-chan life.Event) {
	t.Helper()
	runtime.LockOSThread() // swtpm ends with the thread that starts it
	t.Cleanup(runtime.UnlockOSThread)
	path := filepath.Join(t.TempDir(), "swtpm")
	testkit.Program(t, path, []byte("#!/bin/sh\n"+program+"\n"))
	told := make(chan life.Event, 1)
	return &TPM{Program: path, Output: io.Discard, Log: quiet, Tell: func(e life.Event) { told <- e }}, told
}

// begin prepares and starts a part of a machine, and returns the start's files.
func begin(t *testing.T, p Part, request *control.StartRequest) map[string]*os.File {
	t.Helper()
	files := map[string]*os.File{}
	if err := errors.Join(p.Prepare(t.Context(), request, files), p.Start(request, files)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { disks.CloseAll(files) })
	return files
}

// waits is a swtpm that ends when QEMU has closed its end of the control socket.
const waits = "exec cat <&3 >/dev/null"

func requestTPM(t *testing.T) *control.StartRequest {
	return &control.StartRequest{Machine: qemuargs.Machine{TPM: &qemuargs.TPM{Folder: filepath.Join(t.TempDir(), "tpm")}}}
}

// TestTPMEndsWithQEMU: QEMU gets one end of swtpm's socket, and swtpm ends well when QEMU has closed that end.
func TestTPMEndsWithQEMU(t *testing.T) {
	tpm, told := newTPM(t, waits)
	files := begin(t, tpm, requestTPM(t))
	if files[string(qemuargs.InheritedTPM)] == nil || len(files) != 2 || tpm.PID() == 0 {
		t.Errorf("swtpm is process %d, and the files are %v", tpm.PID(), files)
	}
	if end, ended := tpm.Ended(); ended {
		t.Errorf("swtpm has ended before QEMU: %s", end)
	}
	disks.CloseAll(files)
	if err := tpm.Close(); err != nil {
		t.Error(err)
	}
	if got := testkit.Receive(t, told, "swtpm's end"); got != (life.TPMEnded{}) {
		t.Errorf("told: %v", got)
	}
}

// TestFailedTPMIsTold: the loop hears how swtpm has failed, and so does who asks.
func TestFailedTPMIsTold(t *testing.T) {
	tpm, told := newTPM(t, "echo no entropy >&2; exit 1")
	begin(t, tpm, requestTPM(t))
	want := life.TPMEnded{Exit: life.Exit{Code: 1}, Said: "no entropy"}
	if got := testkit.Receive(t, told, "swtpm's end"); got != want {
		t.Errorf("told: %v", got)
	}
	if end, ended := tpm.Ended(); !ended || end != want {
		t.Errorf("asked: %v, %t", end, ended)
	}
	if err := tpm.Close(); err == nil || err.Error() != want.String() {
		t.Errorf("closed: %v", err)
	}
}

// TestAbandonedTPMHasNotFailed: where QEMU could not be started, swtpm is killed, and has done nothing wrong.
func TestAbandonedTPMHasNotFailed(t *testing.T) {
	tpm, _ := newTPM(t, "exec sleep 1000")
	request := requestTPM(t)
	files := begin(t, tpm, request)
	tpm.Abandon(request, files)
	end, ended := tpm.Ended()
	if err := tpm.Close(); err != nil || ended || tpm.PID() != 0 {
		t.Errorf("%v, %v, process %d", err, end, tpm.PID())
	}
}

// TestAbandonedTPMLeavesNoState: where a start fails before it comes to the TPM, the folder for the state that was to
// come is removed. Of a volume with many such folders no guest could start.
func TestAbandonedTPMLeavesNoState(t *testing.T) {
	tpm, request, files := &TPM{}, requestTPM(t), map[string]*os.File{}
	request.Incoming, request.Machine.TPM.InState = true, true
	if err := tpm.Prepare(t.Context(), request, files); err != nil {
		t.Fatal(err)
	}
	tpm.Abandon(request, files)
	err := tpm.Close()
	if left, err2 := os.ReadDir(request.Machine.TPM.Folder); err != nil || err2 != nil || len(left) > 0 || len(files) > 0 {
		t.Errorf("the volume has %v, and %d files are open (%v, %v)", left, len(files), err, err2)
	}
}

// TestTPMState: the state that comes to a volume with a guest is kept if the guest arrives, and else is removed.
func TestTPMState(t *testing.T) {
	for name, arrives := range map[string]bool{"arrives": true, "does not arrive": false} {
		t.Run(name, func(t *testing.T) {
			tpm, _ := newTPM(t, waits)
			request := requestTPM(t)
			request.Incoming, request.Machine.TPM.InState = true, true
			files := begin(t, tpm, request)
			if files[tpmFolder] != nil {
				t.Error("who closes the files closes the folder that the TPM still needs")
			}
			if err := tpm.Sync(); err != nil {
				t.Error(err)
			}
			var want []string
			if arrives {
				tpm.Arrive(t.Context(), nil)
				testkit.Eventually(t, "the state to be kept", func() error {
					if tpm.Keeping() {
						return errors.New("it is not yet")
					}
					return nil
				})
				want = []string{filepath.Join(request.Machine.TPM.Folder, "1")}
				if err := tpm.Sync(); err != nil {
					t.Errorf("sync after the arrival: %v", err)
				}
			}
			disks.CloseAll(files)
			if err := tpm.Close(); err != nil {
				t.Error(err)
			}
			left, err := filepath.Glob(filepath.Join(request.Machine.TPM.Folder, "*"))
			if err != nil || len(left) != len(want) || len(left) > 0 && left[0] != want[0] {
				t.Errorf("the volume has %v (%v), want %v", left, err, want)
			}
		})
	}
}

// TestNoTPM: for a machine without a TPM nothing is opened or started.
func TestNoTPM(t *testing.T) {
	tpm := &TPM{Program: "none"}
	files := begin(t, tpm, &control.StartRequest{})
	tpm.Arrive(t.Context(), nil)
	tpm.Abandon(&control.StartRequest{}, files)
	if err := tpm.Close(); err != nil || len(files) > 0 || tpm.PID() != 0 || tpm.Keeping() {
		t.Errorf("%v, %v, process %d", err, files, tpm.PID())
	}
}

// TestArrivedTPMStateIsKept: the state of a TPM that has arrived is kept as soon as the volume lets it, and a folder
// that is gone ends the attempts.
func TestArrivedTPMStateIsKept(t *testing.T) {
	tpm, _ := newTPM(t, waits)
	log := testkit.NewTranscript(t, "the log")
	tpm.Log = slog.New(slog.NewTextHandler(log, nil))
	request := requestTPM(t)
	request.Incoming, request.Machine.TPM.InState = true, true
	files := begin(t, tpm, request)
	folder, away := request.Machine.TPM.Folder, filepath.Join(t.TempDir(), "away")
	// A link in the folder's place: no attempt can succeed.
	if err := errors.Join(os.Rename(folder, away), os.Symlink(away, folder)); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		tpm.keep(t.Context(), time.Millisecond)
	}()
	log.Expect("until this succeeds")
	if err := unix.Renameat2(unix.AT_FDCWD, away, unix.AT_FDCWD, folder, unix.RENAME_EXCHANGE); err != nil {
		t.Fatal(err)
	}
	testkit.Receive(t, done, "the end of the attempts")
	if _, err := os.Stat(filepath.Join(folder, "1")); err != nil {
		t.Error(err)
	}
	tpm.keep(t.Context(), time.Hour) // it has its number
	disks.CloseAll(files)
	if err := tpm.Close(); err != nil {
		t.Error(err)
	}
}
