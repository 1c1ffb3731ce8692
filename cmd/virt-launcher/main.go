// Command virt-launcher is PID 1 of a VM's pod: it starts QEMU and drives it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/podlog"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

const usage = `Usage: virt-launcher COMMAND [FLAGS]

Commands:
  run         wait for virt-handler, run the VM it describes, and end with it: the first process of a VM's pod, which the pod has already
  args        print the arguments of the QEMU that runs in this pod, as lines for a shell
  console     attach to the serial console of the VM in this pod; leave with Ctrl+]
  bind-claims end at once: a pod that does nothing else has its claims bound where a VM will run
  serve-files share a folder with the VM in this pod, by virtiofsd: serve-files [FLAGS] -- FLAGS OF VIRTIOFSD
  serve-network   connect the VM in this pod, by passt: serve-network [FLAGS] -- FLAGS OF PASST
  copy-root   copy this container's image to a folder: copy-root --to=FOLDER
  guest-ping  ask whether QEMU's guest agent answers in the VM in this pod
  guest-exec  run a command in it by that agent: guest-exec [FLAGS] -- COMMAND [ARGS...]

The flags of a command: virt-launcher COMMAND --help
`

func main() {
	if len(os.Args) < 2 {
		fmt.Print(usage)
		return
	}
	command, args := os.Args[1], os.Args[2:]
	switch command {
	case "help", "-h", "-help", "--help":
		fmt.Print(usage)
	case "run":
		os.Exit(run(args))
	case "args":
		os.Exit(showArgs(args))
	case "console":
		os.Exit(console(args))
	case "bind-claims":
		parse(flag.NewFlagSet("bind-claims", flag.ExitOnError), args)
	case "serve-files":
		os.Exit(serveFiles(args))
	case "serve-network":
		os.Exit(serveNetwork(args))
	case "copy-root":
		os.Exit(copyRoot(args))
	case "guest-ping":
		os.Exit(guestPing(args))
	case "guest-exec":
		os.Exit(guestExec(args))
	default:
		fmt.Fprintf(os.Stderr, "virt-launcher: there is no command %q\n\n%s", command, usage)
		os.Exit(2)
	}
}

func parse(flags *flag.FlagSet, args []string) {
	parseFlags(flags, args)
	if flags.NArg() > 0 {
		fmt.Fprintf(flags.Output(), "virt-launcher: unexpected argument %q\n", flags.Arg(0))
		os.Exit(2)
	}
}

// parseFlags parses the flags. It leaves further arguments to the command.
func parseFlags(flags *flag.FlagSet, args []string) {
	flags.Usage = func() {
		fmt.Fprintf(flags.Output(), "%s\nFlags of %s:\n", usage, flags.Name())
		flags.PrintDefaults()
	}
	flags.Parse(args) // exits on error
}

// diskPatience is how long a start waits for a disk that is still in use. It is enough for a
// QEMU that is being killed: the kubelet and the launcher each allow some seconds for that.
const diskPatience = 20 * time.Second

func run(args []string) int {
	// The launcher allocates little and seldom. Early collection keeps its heap small beside
	// the guest.
	debug.SetGCPercent(20)
	debug.SetMemoryLimit(6 << 20)

	flags := flag.NewFlagSet("run", flag.ExitOnError)
	config := launcher.Config{PID: os.Getpid(), DiskPatience: diskPatience, Stdout: os.Stdout, Stderr: os.Stderr}
	flags.StringVar(&config.SlotSocket, "slot", layout.SlotSocket, "`socket` of virt-handler")
	flags.StringVar(&config.QEMU, "qemu", layout.QEMU, "`path` of QEMU")
	flags.StringVar(&config.QEMUVersion, "qemu-version", "", "`file` with QEMU's version, if it is not the image's QEMU; without one, QEMU is asked")
	flags.StringVar(&config.ConsoleSocket, "console", layout.ConsoleSocket, "`socket` to listen on for consoles")
	flags.StringVar(&config.AgentSocket, "agent", layout.AgentSocket, "`socket` to listen on for probes")
	flags.StringVar(&config.Images, "images", layout.ImageVolumeDir, "`folder` with one image volume per container disk")
	flags.StringVar(&config.Overlays, "overlays", layout.OverlayDir, "`folder` for the disks' overlays")
	termination := flags.String("termination-log", layout.TerminationLog, "`file` that gets the reason for the end, as JSON")
	verbosity := flags.Int("verbosity", 0, "how much is logged; 4 and more is for whoever looks for a fault")
	parse(flags, args)
	// A second launcher would take virt-handler's socket from the first, and answer the probes for it.
	if pid := os.Getpid(); pid != 1 && config.SlotSocket == layout.SlotSocket {
		fmt.Fprintf(os.Stderr, "virt-launcher: run is for the first process of a VM's pod, and this is process %d: the pod has its launcher already\n", pid)
		return 2
	}

	log := podlog.NewWriter(os.Stderr)
	defer log.Close()
	config.Log = slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelInfo - slog.Level(*verbosity)}))
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	config.Signals = signals

	end := launcher.Run(context.Background(), config)
	if err := writeTermination(*termination, end); err != nil {
		config.Log.Error("write termination message", "error", err)
	}
	if end.Succeeded() {
		return 0
	}
	return 1
}

// writeTermination writes into the file that the kubelet made. Outside of a pod there is no
// such file, and it makes none.
func writeTermination(path string, end control.Termination) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := f.Write(end.Encode()); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
