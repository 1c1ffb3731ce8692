// Package parts holds what a VM has beside its QEMU: helper programs, the guest's agent, its serial port, and so on.
// Each part is a file, a type and a test. No part knows another part, or the launcher's loop. A part tells the loop
// something by an event of package life.
package parts

import (
	"cmp"
	"context"
	"errors"
	"os"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/process"
)

// Part has the verbs that the parts have in common. The launcher goes through its parts with one verb after the other,
// in this order. Prepare and Close may wait, and each of these waits has a bound. The other verbs do not wait.
type Part interface {
	// Prepare makes and opens what the start needs, and adds it to files by name. After an error the caller closes
	// the files. Prepare runs beside the launcher's loop, so it changes nothing of the part.
	Prepare(ctx context.Context, request *control.StartRequest, files map[string]*os.File) error
	// Start starts the part, before QEMU starts. It takes the files that the part keeps, and adds those that QEMU gets
	// from the part.
	Start(request *control.StartRequest, files map[string]*os.File) error
	// Attach connects the part to QEMU, which has just been started.
	Attach(request *control.StartRequest, qemu *process.QEMU) error
	// Arrive notes that the guest has come from another launcher, and may run here from now on. What takes longer goes
	// on beside the loop. ctx ends with the launcher.
	Arrive(ctx context.Context, request *control.StartRequest)
	// Close ends the part. QEMU has ended, or was never started. The error says how the part has failed.
	Close() error
}

// None is a part that does nothing. A part embeds None for the verbs that it does not need.
type None struct{}

// Prepare does nothing.
func (None) Prepare(context.Context, *control.StartRequest, map[string]*os.File) error { return nil }

// Start does nothing.
func (None) Start(*control.StartRequest, map[string]*os.File) error { return nil }

// Attach does nothing.
func (None) Attach(*control.StartRequest, *process.QEMU) error { return nil }

// Arrive does nothing.
func (None) Arrive(context.Context, *control.StartRequest) {}

// Close does nothing.
func (None) Close() error { return nil }

// List is several parts in their order. Each verb goes through them in this order, and ends with the first error. Only
// Close goes through all.
type List []Part

// Prepare makes and opens what the start needs of all parts. It fails once ctx has ended: nobody starts the VM then.
func (l List) Prepare(ctx context.Context, request *control.StartRequest, files map[string]*os.File) error {
	return l.each(func(p Part) error { return cmp.Or(p.Prepare(ctx, request, files), ctx.Err()) })
}

// Start starts the parts.
func (l List) Start(request *control.StartRequest, files map[string]*os.File) error {
	return l.each(func(p Part) error { return p.Start(request, files) })
}

// Attach connects the parts to QEMU.
func (l List) Attach(request *control.StartRequest, qemu *process.QEMU) error {
	return l.each(func(p Part) error { return p.Attach(request, qemu) })
}

// Arrive lets the parts keep what has come with the guest.
func (l List) Arrive(ctx context.Context, request *control.StartRequest) {
	for _, p := range l {
		p.Arrive(ctx, request)
	}
}

// Close ends the parts.
func (l List) Close() (err error) {
	for _, p := range l {
		err = errors.Join(err, p.Close())
	}
	return err
}

func (l List) each(do func(Part) error) error {
	for _, p := range l {
		if err := do(p); err != nil {
			return err
		}
	}
	return nil
}
