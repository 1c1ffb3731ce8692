package launcher

import (
	"context"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/disks"
	"github.com/kubeqemu/kubeqemu/launcher/podlog"
	"github.com/kubeqemu/kubeqemu/launcher/process"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// startTPM starts the emulator of the machine's TPM, if it has one. The emulator ends with QEMU.
func (l *launcher) startTPM(ctx context.Context) error {
	m := l.start.Machine.TPM
	if m == nil {
		return nil
	}
	folder := l.files[disks.TPMFolder]
	if m.InState && l.start.Incoming {
		delete(l.files, disks.TPMFolder) // which close alone closes
		l.arrivingTPM = folder
	}
	log := podlog.New(l.Stderr, "messages of the TPM", stderrBytesPerSecond, stderrBurst, l.Log)
	tpm, file, err := process.StartTPM(l.TPM, folder, log)
	if err != nil {
		return err
	}
	l.tpm, l.files[string(qemuargs.InheritedTPM)] = tpm, file
	l.later(ctx, func() error {
		<-tpm.Ended()
		return nil
	}, func(error) {
		end := tpm.Ending()
		l.Log.Info("the TPM's emulator has ended", "exit", end.Exit.String())
		l.hear(ctx, end, nil)
	})
	return nil
}

// closeTPM waits until the TPM's emulator has ended after QEMU. The error says how it failed.
func (l *launcher) closeTPM() error {
	if l.tpm == nil {
		return nil
	}
	tpm := l.tpm
	l.tpm = nil
	return tpm.Close()
}

// endTPM ends the emulator of a QEMU that could not be started. The emulator itself ends only after QEMU has talked
// to it.
func (l *launcher) endTPM() {
	if l.tpm != nil {
		l.tpm.Destroy()
		l.tpm = nil
	}
}

// keepTPMPause is the time between the first two attempts to keep the state of a TPM that has arrived.
const keepTPMPause = time.Second

// keepTPM makes the state of a TPM that has arrived the one that the VM's next start finds. It runs beside the loop.
func (l *launcher) keepTPM(ctx context.Context) {
	folder, machine, log := l.arrivingTPM, l.start.Machine.TPM, l.Log
	if folder == nil {
		return
	}
	l.arrivingTPM, l.keepingTPM = nil, true
	l.later(ctx, func() error {
		defer folder.Close()
		disks.ArrivedTPM(ctx, machine, folder, keepTPMPause, log)
		return nil
	}, func(error) { l.keepingTPM = false })
}

// forgetTPM removes the state of a TPM that has not arrived.
func (l *launcher) forgetTPM() {
	if l.arrivingTPM != nil {
		disks.ForgetTPM(l.start.Machine.TPM, l.arrivingTPM)
		l.arrivingTPM.Close()
	}
}
