// Command virt-image is what a container with a tenant's image runs in a VM's pod, where the cluster has no image
// volumes. virt-launcher's image brings it to the node, and virt-handler's device plugin mounts it into the container.
// For a container that only copies a kernel, another container copies the program. Each container disk has such a
// process. So it does without fmt and flag, which would take half a MiB of each, and has nothing of package os but its
// arguments.
package main

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/launcher/imagefile"
)

const usage = `Usage: virt-image COMMAND [FLAGS]

Commands:
  serve-image  hand out the disk in this container's image to the VM in this pod
               --path=PATH      of the disk in the image; without one, it is the only file in /disk
               --socket=PATH    to listen at
  copy-program copy this program to where the containers with other images run it
               --to=PATH        of the copy
  copy-files   copy files of this container's image to where the VM boots them: copy-files [FLAGS] -- FILES
               --to=FOLDER      of the copies
               --most=BYTES     that may be copied in all
`

// errUsage: the arguments are none of a command's.
var errUsage = errors.New("there is no such command or flag")

func main() {
	err := do(os.Args[1:])
	if err == nil {
		return
	}
	say(unix.Stderr, "virt-image: "+err.Error()+"\n")
	if errors.Is(err, errUsage) {
		say(unix.Stderr, "\n"+usage)
		unix.Exit(2)
	}
	unix.Exit(1)
}

// say writes a text to a descriptor, as far as it can be written.
func say(to int, text string) { _, _ = unix.Write(to, []byte(text)) }

// do does what the arguments say.
func do(args []string) error {
	if len(args) == 0 || args[0] == "--help" || args[0] == "help" {
		say(unix.Stdout, usage)
		return nil
	}
	a := arguments{rest: args[1:]}
	switch args[0] {
	case "serve-image":
		path, socket := a.flag("--path="), a.flag("--socket=")
		if socket == "" || len(a.rest) > 0 {
			return errUsage
		}
		return serve(socket, path)
	case "copy-program":
		to := a.flag("--to=")
		if to == "" || len(a.rest) > 0 {
			return errUsage
		}
		return imagefile.CopyProgram(to)
	case "copy-files":
		to := a.flag("--to=")
		most, err := strconv.ParseInt(a.flag("--most="), 10, 64)
		if err != nil || to == "" || len(a.rest) == 0 || a.rest[0] != "--" {
			return errUsage
		}
		return imagefile.CopyFiles("/", to, most, a.rest[1:]...)
	}
	return errUsage
}

// arguments are what is left of a command's arguments.
type arguments struct{ rest []string }

// flag returns the value of a flag, which it takes from the arguments before "--"; "" if there is none.
func (a *arguments) flag(name string) (value string) {
	for i, arg := range a.rest {
		if arg == "--" {
			break
		}
		if value, ok := strings.CutPrefix(arg, name); ok {
			a.rest = append(a.rest[:i:i], a.rest[i+1:]...)
			return value
		}
	}
	return ""
}

// serve hands out the disk in this container's image, as PID 1 of that container. SIGTERM ends it, with status 2. An
// image without such a disk is told to whoever asks for the disk: the VM's start then fails with that reason.
func serve(socket, path string) error {
	server, err := imagefile.Listen(socket)
	if err != nil {
		return err
	}
	return server.HandOut(func() (imagefile.File, error) {
		f, _, err := imagefile.Open("/", path)
		return f, err
	})
}
