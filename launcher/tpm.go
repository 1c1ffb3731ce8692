package launcher

import (
	"context"

	"github.com/kubeqemu/kubeqemu/launcher/life"
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
	log := podlog.New(l.Stderr, "messages of the TPM", stderrBytesPerSecond, stderrBurst, l.Log)
	tpm, file, err := process.StartTPM(l.TPM, m, log)
	if err != nil {
		return err
	}
	l.tpm, l.files[string(qemuargs.InheritedTPM)] = tpm, file
	l.later(ctx, func() error {
		<-tpm.Ended()
		return nil
	}, func(error) {
		l.Log.Info("the TPM's emulator has ended", "exit", tpm.Exit().String())
		l.hear(ctx, life.TPMEnded{Exit: tpm.Exit(), Said: lastLine(tpm.Said())}, nil)
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
