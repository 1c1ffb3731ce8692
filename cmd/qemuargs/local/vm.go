// Package local runs a VM on this machine, without a cluster: it makes the machine by the same
// code as virt-handler (handover, qemuargs/resolve), and has virt-launcher's code (launcher)
// run it. It needs no right that an ordinary user lacks. The network is one inside QEMU.
package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/api/validation"
	"github.com/kubeqemu/kubeqemu/cmd/qemuargs/local/images"
	"github.com/kubeqemu/kubeqemu/controllers/handover"
	"github.com/kubeqemu/kubeqemu/internal/kvmcheck"
	"github.com/kubeqemu/kubeqemu/internal/zone"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/manifest"
)

// Options are what a user chooses besides the manifest.
type Options struct {
	// QEMU is the program's name or path.
	QEMU string
	// Firmware is the folder with OVMF's files, for UEFI; empty means Debian's.
	Firmware string
	// TPM is the name or path of swtpm, for a TPM.
	TPM string
	// VirtioFSD is the name or path of virtiofsd, for file systems.
	VirtioFSD string
	// Accelerator is empty for KVM if it works, and else emulation.
	Accelerator qemuargs.Accelerator
	// Images are archives, folders or files, by an image's reference or by its volume.
	Images map[string]string
	// Volumes are files or block devices that stand for claims, by volume.
	Volumes map[string]string
	// FileSystems are folders that the guest shares, by file system.
	FileSystems map[string]string
	// Forwards lead to the first interface.
	Forwards []qemuargs.Forward
	// Pull, unless it is empty, stands for each image's own policy.
	Pull images.Policy
	// Cache is a folder for what is kept for the next run.
	Cache string
	// Console: the streams are the guest's serial console.
	Console bool
	// VNC is empty, or UnixVNC, or an address on which to listen for VNC clients.
	VNC string
	// StopAfter is how long the guest runs before its power button is pressed; 0 means that
	// nobody presses it.
	StopAfter time.Duration
	// Verbose: the launcher's log is shown.
	Verbose bool
}

// UnixVNC has the path of QEMU's VNC socket shown.
const UnixVNC = "unix"

// Streams are the user's.
type Streams struct {
	In         io.Reader
	Out, Notes io.Writer
	// Signals ask for the power button. The user's second (SIGINT, SIGTERM, SIGQUIT) asks for
	// the VM's end at once.
	Signals <-chan os.Signal
}

// Ending is how a VM ended.
type Ending struct {
	control.Termination
	// StopAfter: Options.StopAfter was over.
	StopAfter bool
}

// Codes are exit codes that say how a VM ended.
const (
	CodePoweredOff = 0
	CodeNotStarted = 1
	CodeFailed     = 3
	CodeEnded      = 4
	CodeStopAfter  = 124 // as timeout(1) has it
)

// Code is the exit code of a program whose VM ended like this.
func (e Ending) Code() int {
	switch {
	case e.StopAfter:
		return CodeStopAfter
	case e.Succeeded():
		return CodePoweredOff
	case e.Reason == control.ReasonNeverStarted || e.Reason == control.ReasonStartFailed:
		return CodeNotStarted
	case e.Reason == control.ReasonGracePeriodOver:
		return CodeEnded
	}
	return CodeFailed
}

// vm is a VM on its way.
type vm struct {
	Options
	Streams
	notes  *notes
	set    manifest.Set
	object manifest.Instance
	// vmi is the VMI with its defaults, as the API server keeps it.
	vmi    *v1.VirtualMachineInstance
	qemu   program
	folder *folder
	ports  ports
}

// Run runs a VMI of the documents to its end. An error means that its QEMU was not started.
func Run(ctx context.Context, set manifest.Set, object manifest.Instance, o Options, s Streams) (Ending, error) {
	v := &vm{Options: o, Streams: s, notes: newNotes(s.Notes), set: set, object: object, vmi: object.DeepCopy()}
	v1.Default(v.vmi)
	v.forArchitecture()
	if err := v.check(); err != nil {
		return Ending{}, err
	}
	defer v.cleanUp()
	request, err := v.prepareUnlessStopped(ctx)
	if err != nil {
		return Ending{}, err
	}
	return v.run(ctx, request)
}

// forArchitecture takes QEMU and firmware of the guest's architecture, unless others are named.
func (v *vm) forArchitecture() {
	arch := qemuargs.Arch(v.vmi.Spec.Architecture)
	if v.QEMU == qemuargs.AMD64.Program() {
		v.QEMU = arch.Program()
	}
	if v.Firmware == layout.FirmwareDir && arch == qemuargs.ARM64 {
		v.Firmware = layout.FirmwareDirARM64
	}
}

// isForeign says whether the guest is of another architecture than this machine, and can only be emulated.
func (v *vm) isForeign() bool { return v.vmi.Spec.Architecture != runtime.GOARCH }

var errStopped = errors.New("asked to end before the VM was started")

// check finds what cannot be had here before anything is fetched.
func (v *vm) check() error {
	errs, unused := v.checkDisks(v.vmi)
	errs = append(errs, missing(v.set, v.vmi.Namespace, handover.Secrets(v.vmi))...)
	_, noFiles := configFiles(v.set, v.vmi)
	errs = append(errs, noFiles...)
	if invalid := validation.ValidateVirtualMachineInstance(v.vmi); len(invalid) > 0 {
		errs = invalid // the volumes may be of no kind at all
	}
	if len(errs) > 0 {
		unused = append(unused, v.object.Invalid(errs))
	}
	if d := v.vmi.Spec.Domain.Devices.AutoattachGraphicsDevice; v.VNC != "" && d != nil && !*d {
		unused = append(unused, errors.New("--vnc: the VM has no graphics device (autoattachGraphicsDevice)"))
	}
	return errors.Join(unused...)
}

// prepareUnlessStopped is prepare, which a signal ends.
func (v *vm) prepareUnlessStopped(ctx context.Context) (control.StartRequest, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	prepared, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-v.Signals:
			stop(errStopped)
		case <-prepared:
		}
	}()
	request, err := v.prepare(ctx)
	close(prepared)
	<-watched
	if cause := context.Cause(ctx); cause != nil {
		return request, cause
	}
	return request, err
}

// prepare makes everything up to QEMU's start.
func (v *vm) prepare(ctx context.Context) (control.StartRequest, error) {
	var request control.StartRequest
	var err error
	if v.qemu, err = findQEMU(ctx, v.QEMU, v.Cache); err != nil {
		return request, err
	}
	if v.folder, err = makeFolder(temporary()); err != nil {
		return request, err
	}
	host, err := v.host(ctx)
	if err != nil {
		return request, err
	}
	machine, errs := resolve.Machine(v.vmi, host)
	if len(errs) > 0 {
		return request, v.object.Invalid(errs)
	}
	if machine.TPM != nil {
		if v.TPM, err = findTPM(v.TPM); err != nil {
			return request, err
		}
	}
	if err := v.prepareFileSystems(machine); err != nil {
		return request, err
	}
	if machine.Kernel != nil && strings.ContainsAny(v.folder.path, ", ") {
		return request, fmt.Errorf("boot a kernel below %s: QEMU splits paths at commas and spaces; set TMPDIR to a folder without", v.folder.path)
	}
	if err := v.folder.writeSecrets(v.set, v.vmi.Namespace, handover.Secrets(v.vmi)); err != nil {
		return request, err
	}
	for _, note := range networkNotes(machine, v.vmi) {
		v.notes.say("%s", note)
	}
	return v.request(machine)
}

// request is the request that starts the machine. A pod's log, a launcher that outlives its VM
// and a VM that waits for an unpause have no sense here.
func (v *vm) request(machine *qemuargs.Machine) (control.StartRequest, error) {
	request, err := handover.Start(v.vmi, machine)
	if request.Paused {
		v.notes.say("the VM's startStrategy is Paused, and it is started all the same")
	}
	if request.DedicatedCPUs != nil {
		v.notes.say("the VM's CPUs are to be dedicated, and here they run on all CPUs of this machine: only a kubelet gives CPUs away")
		request.DedicatedCPUs = nil
	}
	request.Paused, request.KeepLauncher, request.NoSerialLog = false, false, true
	return request, err
}

// host gathers what resolve.Machine needs besides the VMI.
func (v *vm) host(ctx context.Context) (resolve.Host, error) {
	host := resolve.Host{Accelerator: v.Accelerator, QEMUVersion: v.qemu.version, NICs: map[string]resolve.NIC{}, Root: v.folder.path, FirmwareDir: v.Firmware}
	now := time.Now()
	host.Now, host.ZoneOffset = now.Unix(), zone.Offset(v.vmi.Spec.Domain.Timezone(), now)
	switch {
	case v.isForeign() && host.Accelerator == qemuargs.KVM:
		return host, fmt.Errorf("--accelerator kvm: KVM runs guests of %s here, and the guest is of %s", runtime.GOARCH, v.vmi.Spec.Architecture)
	case v.isForeign() && host.Accelerator == "":
		host.Accelerator = qemuargs.TCG
		v.notes.say("the CPUs are emulated, which is slow: the guest is of %s, and this machine of %s", v.vmi.Spec.Architecture, runtime.GOARCH)
	}
	if host.Accelerator == "" {
		var why string
		if host.Accelerator, why = chooseAccelerator(ctx, v.Cache); why != "" {
			v.notes.say("the CPUs are emulated, which is slow; KVM does not work: %s", why)
		}
	}
	if host.Accelerator == qemuargs.KVM {
		hyperV, err := kvmcheck.HasHyperV()
		host.NoHyperV = err == nil && !hyperV
	}
	asked, err := v.inspection(ctx)
	if err != nil {
		return host, err
	}
	files, _ := configFiles(v.set, v.vmi) // check has looked at the errors
	if err := v.folder.writeConfig(files); err != nil {
		return host, err
	}
	reply, err := v.folder.folders().Inspect(ctx, asked)
	if err != nil {
		return host, err
	}
	if err := handover.Take(&host, asked, reply); err != nil {
		return host, err
	}
	for _, volume := range v.vmi.Spec.Volumes {
		if volume.Claim() != nil && !v.vmi.Spec.IsFilesystem(volume.Name) {
			if host.Claims[volume.Name], err = claimFacts(v.vmi, volume, v.Volumes[volume.Name]); err != nil {
				return host, err
			}
		}
	}
	forwards, err := forwards(v.vmi, v.Forwards, v.ports.claim)
	if err != nil {
		return host, err
	}
	for _, nic := range v.vmi.Spec.Domain.Devices.Interfaces {
		if host.NICs[nic.Name], err = network(v.vmi, nic, forwards[nic.Name]); err != nil {
			return host, err
		}
	}
	return host, nil
}

// inspection brings the images, and asks about them as virt-handler does.
func (v *vm) inspection(ctx context.Context) (control.InspectRequest, error) {
	asked := handover.Inspection(v.vmi)
	asked.CPUs = false // no kubelet has given any: a guest with NUMA nodes has one
	disks, err := v.bringAll(ctx, v.folder, &images.Cache{Folder: v.Cache, Report: v.notes.progress}, v.vmi)
	for i := range asked.ContainerDisks {
		if disk, ok := disks[asked.ContainerDisks[i].Volume]; ok {
			asked.ContainerDisks[i].Path = disk
		}
	}
	return asked, err
}

// cleanUp removes all that was made for the VM.
func (v *vm) cleanUp() {
	v.ports.release()
	if v.folder == nil {
		return
	}
	if err := v.folder.remove(); err != nil {
		v.notes.say("the VM's folder is left behind: %v", err)
	}
}
