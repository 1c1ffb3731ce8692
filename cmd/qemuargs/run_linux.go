package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kubeqemu/kubeqemu/cmd/qemuargs/local"
	"github.com/kubeqemu/kubeqemu/cmd/qemuargs/local/images"
	"github.com/kubeqemu/kubeqemu/internal/kvmcheck"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/manifest"
)

// runFlags are the flags of run, as they are given.
type runFlags struct {
	local.Options
	manifests   *files
	name        string
	accelerator string
	pull        string
	images      []string
	volumes     []string
	fileSystems []string
	forwards    []string
}

// runCommands are those that need Linux.
func runCommands() []*cobra.Command { return []*cobra.Command{startCommand(), kvmCheckCommand()} }

func startCommand() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run [FILE|FOLDER]...",
		Short: "Run the VM of a manifest on this machine",
		Long: `run starts the VM of a manifest here, without a cluster and without root. The guest gets the machine that it gets in a cluster. Only its
network is another: one inside QEMU, from which the guest reaches what this machine reaches,
the services on its 127.0.0.1 too. KVM runs the CPUs if it works for this
user, else they are emulated.

Container disks come from their registries, with the credentials of docker's configuration, and are kept in ` + "`$XDG_CACHE_HOME/kubeqemu`" + `.
--image takes an image from an archive (docker save, oci-archive), from a folder (an OCI layout, or the image's files), or from a disk's
file (raw, qcow2). --volume takes a file or a block device for a claim, and --filesystem a folder for a file system. Disks other than these end with the VM. Secrets with
cloud-init data must be among the manifests. A hostDisk is refused.

--forward leads a port of this machine to the guest; 127.0.0.1 listens, unless another address is named. Each port in the
manifest's interfaces[].ports is led to the guest too, under its own number if that is free and not below 1024.

The terminal is the guest's serial console, and each key goes to the guest. Ctrl+] leaves the console and presses the power button.
Without a console Ctrl+C presses the power button. In either case Ctrl+C then ends the VM at once. The guest has the VM's
terminationGracePeriodSeconds to power off.

Exit codes: 0 the guest has powered off; 1 the VM was not started; 2 wrong usage; 3 the guest's kernel panicked, or QEMU failed;
4 the guest did not power off, and was ended; 124 the time of --stop-after was over, whether the guest powered off
then or was ended.`,
		Example: `  qemuargs run vm.yaml --forward 2222:22
  qemuargs run config/samples/vmi-tiny.yaml --image root=_output/images/tiny-container-disk.tar
  qemuargs run vm.yaml --volume data=data.img --console=false --stop-after 10m`,
	}
	f.manifests = addFiles(c)
	flags := c.Flags()
	flags.StringVar(&f.name, "name", "", "which VM, if the manifests have several: NAME or NAMESPACE/NAME")
	flags.StringArrayVar(&f.images, "image", nil, "`IMAGE=PATH` or VOLUME=PATH: take a container image from an archive, a folder or a file")
	flags.StringArrayVar(&f.volumes, "volume", nil, "`VOLUME=FILE`: take a file or a block device for a claim")
	flags.StringArrayVar(&f.fileSystems, "filesystem", nil, "`NAME=FOLDER`: share a folder with the guest, as the file system of this name")
	flags.StringArrayVar(&f.forwards, "forward", nil, "`[ADDRESS:]PORT:GUESTPORT[/udp]`: lead a port of this machine to the guest")
	flags.StringVar(&f.pull, "pull", "", "when to ask a registry: Always, IfNotPresent or Never (default: the manifest's imagePullPolicy)")
	flags.StringVar(&f.QEMU, "qemu", qemuargs.AMD64.Program(), "QEMU's name or path; for a guest of arm64 qemu-system-aarch64 is the default")
	flags.StringVar(&f.Firmware, "firmware", layout.FirmwareDir, "the `folder` with OVMF's files by Debian's names, for UEFI; for a guest of arm64 "+layout.FirmwareDirARM64+" is the default")
	flags.StringVar(&f.TPM, "swtpm", "swtpm", "the name or path of swtpm, for a TPM")
	flags.StringVar(&f.VirtioFSD, "virtiofsd", layout.VirtioFSD, "the name or path of virtiofsd, for file systems")
	flags.StringVar(&f.accelerator, "accelerator", "", "kvm or tcg (default: kvm if it works)")
	flags.BoolVar(&f.Console, "console", true, "show the guest's serial console")
	flags.StringVar(&f.VNC, "vnc", "", "show the VNC socket's path; --vnc=`[ADDRESS:]PORT` listens there (default address: 127.0.0.1)")
	flags.Lookup("vnc").NoOptDefVal = local.UnixVNC
	flags.DurationVar(&f.StopAfter, "stop-after", 0, "press the power button when the guest has run so long, such as 90s")
	flags.BoolVar(&f.Verbose, "verbose", false, "show the launcher's log")
	complete(c, "pull", []string{string(images.Always), string(images.IfNotPresent), string(images.Never)})
	complete(c, "accelerator", []string{string(qemuargs.KVM), string(qemuargs.TCG)})
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := f.parse(); err != nil {
			return &usageError{c.CommandPath(), err}
		}
		names, err := f.manifests.names(c, args)
		if err != nil {
			return err
		}
		return f.run(c, names)
	}
	return c
}

// parse reads the flags that are more than text.
func (f *runFlags) parse() error {
	var err, problem error
	if f.Images, err = pairs("image", f.images); err != nil {
		problem = errors.Join(problem, err)
	}
	if f.Volumes, err = pairs("volume", f.volumes); err != nil {
		problem = errors.Join(problem, err)
	}
	if f.FileSystems, err = pairs("filesystem", f.fileSystems); err != nil {
		problem = errors.Join(problem, err)
	}
	for _, text := range f.forwards {
		forward, err := local.ParseForward(text)
		problem = errors.Join(problem, err)
		f.Forwards = append(f.Forwards, forward)
	}
	f.Accelerator = qemuargs.Accelerator(f.accelerator)
	if !slices.Contains([]qemuargs.Accelerator{"", qemuargs.KVM, qemuargs.TCG}, f.Accelerator) {
		problem = errors.Join(problem, fmt.Errorf("accelerator %q: want kvm or tcg", f.accelerator))
	}
	f.Pull = images.Policy(f.pull)
	if !slices.Contains([]images.Policy{"", images.Always, images.IfNotPresent, images.Never}, f.Pull) {
		problem = errors.Join(problem, fmt.Errorf("pull %q: want Always, IfNotPresent or Never", f.pull))
	}
	if f.VNC, err = local.ParseVNC(f.VNC); err != nil {
		problem = errors.Join(problem, err)
	}
	if f.StopAfter < 0 {
		problem = errors.Join(problem, fmt.Errorf("stop-after %s: want a time that is not negative", f.StopAfter))
	}
	return problem
}

// pairs reads NAME=PATH.
func pairs(flag string, texts []string) (map[string]string, error) {
	out := map[string]string{}
	for _, text := range texts {
		name, path, ok := strings.Cut(text, "=")
		if !ok || name == "" || path == "" {
			return nil, fmt.Errorf("%s %q: want NAME=PATH", flag, text)
		}
		if out[name] != "" {
			return nil, fmt.Errorf("%s %q: %s is given twice", flag, text, name)
		}
		out[name] = path
	}
	return out, nil
}

func (f *runFlags) run(c *cobra.Command, names []string) error {
	stdin := c.InOrStdin()
	set, err := manifest.Open(names, stdin)
	if err != nil {
		return err
	}
	if slices.Contains(names, manifest.Stdin) {
		stdin = bytes.NewReader(nil) // the manifests were all of it
	}
	object, err := f.choose(c, set, names)
	if err != nil {
		return err
	}
	folder, err := os.UserCacheDir()
	if err != nil {
		return fmt.Errorf("find the folder for the cache: %w; set XDG_CACHE_HOME to a folder", err)
	}
	f.Cache = filepath.Join(folder, "kubeqemu")
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	defer signal.Stop(signals)
	// Without this, a write to a pipe that nobody reads would end the program, and QEMU with it.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	defer signal.Stop(broken)
	ending, err := local.Run(c.Context(), set, object, f.Options,
		local.Streams{In: stdin, Out: c.OutOrStdout(), Notes: c.ErrOrStderr(), Signals: signals})
	if err != nil {
		return err
	}
	if code := ending.Code(); code != 0 {
		return endedError(code)
	}
	return nil
}

// choose finds the VM that is to run.
func (f *runFlags) choose(c *cobra.Command, set manifest.Set, names []string) (manifest.Instance, error) {
	all, err := instances(c, set, names)
	if err != nil {
		return manifest.Instance{}, err
	}
	var found []manifest.Instance
	var objects []string
	for _, i := range all {
		objects = append(objects, i.Object())
		if f.name == "" || f.name == i.Name || f.name == i.Namespace+"/"+i.Name {
			found = append(found, i)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) == 0:
		return manifest.Instance{}, fmt.Errorf("the manifests make no VM %q: choose one with --name: %s", f.name, strings.Join(objects, ", "))
	case f.name == "":
		return manifest.Instance{}, fmt.Errorf("the manifests make %d VMs: choose one with --name: %s", len(found), strings.Join(objects, ", "))
	}
	return manifest.Instance{}, fmt.Errorf("the manifests make %d VMs of the name %q: choose one with --name NAMESPACE/NAME: %s", len(found), f.name, strings.Join(objects, ", "))
}

// kvmCheckCommand is the process in which run checks KVM, which may hang.
func kvmCheckCommand() *cobra.Command {
	return &cobra.Command{Use: kvmcheck.Argument, Hidden: true, Args: wrong(cobra.NoArgs), RunE: func(c *cobra.Command, _ []string) error {
		if code := kvmcheck.Main(c.OutOrStdout()); code != 0 {
			return endedError(code)
		}
		return nil
	}}
}
