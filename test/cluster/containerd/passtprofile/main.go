// Command passtprofile prints config/passt/passt.json: what containerd's default seccomp profile permits a container without
// capabilities, and the system calls by which passt locks itself up.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func main() {
	text, err := profile()
	if err != nil {
		fmt.Fprintln(os.Stderr, "passtprofile:", err)
		os.Exit(1)
	}
	os.Stdout.Write(text)
}

func profile() ([]byte, error) {
	p := seccomp.DefaultProfile(&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}})
	p.Architectures = []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32, specs.ArchAARCH64, specs.ArchARM}
	p.Syscalls = append(p.Syscalls, lockUp()...)
	text, err := json.MarshalIndent(p, "", "\t")
	if err != nil {
		return nil, fmt.Errorf("encode the profile: %w", err)
	}
	return append(text, '\n'), nil
}

// lockUp are the system calls that passt makes once, before it takes a connection: it goes into a user namespace, in there into namespaces without
// processes, files and names of others, and makes an empty folder the root. Each has the very flags that passt has, so that nobody gets another kind of
// namespace, above all none of networks, nor a mount that can be written to or executed from.
func lockUp() []specs.LinuxSyscall {
	return []specs.LinuxSyscall{
		with("unshare", 0, unix.CLONE_NEWUSER),
		with("unshare", 0, unix.CLONE_NEWNS|unix.CLONE_NEWUTS|unix.CLONE_NEWIPC|unix.CLONE_NEWPID),
		with("mount", 3, unix.MS_UNBINDABLE|unix.MS_REC),
		with("mount", 3, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC),
		{Names: []string{"pivot_root"}, Action: specs.ActAllow},
		with("umount2", 1, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW),
	}
}

// with permits a system call whose argument has a value.
func with(name string, argument uint, value uint64) specs.LinuxSyscall {
	return specs.LinuxSyscall{Names: []string{name}, Action: specs.ActAllow,
		Args: []specs.LinuxSeccompArg{{Index: argument, Value: value, Op: specs.OpEqualTo}}}
}
