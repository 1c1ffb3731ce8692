package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/template"
	"time"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// libvirtUser is the user nobody: libvirt looks its user up. As root it would use the
// machine's own folders and cgroups. KubeVirt runs libvirt unprivileged too.
const libvirtUser = 65534

// errNoLibvirt: there is nothing to compare with.
var errNoLibvirt = errors.New("libvirt is not installed (Debian: libvirt-daemon, libvirt-clients)")

// libvirt is a private libvirtd: its own home, sockets and cache, and a PID namespace of its
// own, so that virtlogd and QEMU, which libvirtd detaches, end with libvirtd.
type libvirt struct {
	home    string
	daemon  *exec.Cmd
	virsh   *exec.Cmd
	input   io.WriteCloser
	answers *bufio.Reader
	log     *os.File
}

func newLibvirt(home string) (*libvirt, error) {
	for _, program := range []string{"libvirtd", "virtlogd", "virsh", "setpriv", "stdbuf"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, errors.Join(errNoLibvirt, err)
		}
	}
	if err := os.MkdirAll(home, 0o755); err != nil {
		return nil, err
	}
	return &libvirt{home: home}, os.Chown(home, libvirtUser, libvirtUser)
}

// as is the command line that runs a program as libvirt's user.
func as(args ...string) []string {
	id := strconv.Itoa(libvirtUser)
	return append([]string{"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--pdeathsig", "KILL", "--"}, args...)
}

func (v *libvirt) environment() []string {
	return []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + v.home, "XDG_RUNTIME_DIR=" + v.home + "/run",
		"XDG_CACHE_HOME=" + v.home + "/cache", "XDG_CONFIG_HOME=" + v.home + "/config"}
}

// forget removes everything, also the cache of QEMU's capabilities. A libvirt in a new pod
// begins like that.
func (v *libvirt) forget() error {
	for _, name := range []string{"run", "cache", "config"} {
		folder := filepath.Join(v.home, name)
		if err := errors.Join(os.RemoveAll(folder), os.Mkdir(folder, 0o700), os.Chown(folder, libvirtUser, libvirtUser)); err != nil {
			return err
		}
	}
	return nil
}

// start returns when virsh is connected.
func (v *libvirt) start(ctx context.Context) error {
	log, err := os.Create(v.home + ".log")
	if err != nil {
		return err
	}
	v.log = log
	// PID 1 has to reap: libvirt waits until QEMUs that it detached are gone.
	args := append([]string{"-c", `mount -t proc proc /proc && "$@" & wait`, "sh"}, as("libvirtd", "--timeout", "0")...)
	v.daemon = exec.Command("sh", args...)
	v.daemon.Env, v.daemon.Stdout, v.daemon.Stderr = v.environment(), log, log
	v.daemon.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := v.daemon.Start(); err != nil {
		return fmt.Errorf("start libvirtd: %w", err)
	}
	if err := v.listening(ctx); err != nil {
		return err
	}
	args = as("stdbuf", "-oL", "virsh", "--connect", "qemu:///session")
	v.virsh = exec.Command(args[0], args[1:]...)
	v.virsh.Env, v.virsh.Stderr = v.environment(), log
	out, err := v.virsh.StdoutPipe()
	if err != nil {
		return err
	}
	v.answers = bufio.NewReader(out)
	if v.input, err = v.virsh.StdinPipe(); err != nil {
		return err
	}
	if err := v.virsh.Start(); err != nil {
		return fmt.Errorf("start virsh: %w", err)
	}
	return v.command("uri", "qemu:///session")
}

// listening waits for libvirtd's socket. A coarse poll would count as libvirtd's time.
func (v *libvirt) listening(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(filepath.Join(v.home, "run/libvirt/libvirt-sock")); err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for libvirtd's socket (see %s): %w", v.log.Name(), ctx.Err())
		}
	}
}

// command makes virsh run a command, and waits for the line that contains done. virsh stays
// connected, so that its own start is not measured.
func (v *libvirt) command(line, done string) error {
	if _, err := fmt.Fprintln(v.input, line); err != nil {
		return fmt.Errorf("virsh %s: %w", line, err)
	}
	timeout := time.AfterFunc(patience, func() { v.virsh.Process.Kill() })
	defer timeout.Stop()
	for {
		answer, err := v.answers.ReadString('\n')
		if err != nil {
			said, _ := os.ReadFile(v.log.Name())
			return fmt.Errorf("virsh %s: %w; it says:\n%s", line, err, bytes.TrimSpace(said[max(0, len(said)-2000):]))
		}
		if strings.Contains(answer, done) {
			return nil
		}
	}
}

// create makes a domain from a file and returns when it runs.
func (v *libvirt) create(file string) (time.Duration, error) {
	begin := time.Now()
	err := v.command("create "+file, "Domain 'bench' created")
	return time.Since(begin), err
}

func (v *libvirt) destroy() error { return v.command("destroy bench", "Domain 'bench' destroyed") }

// end kills libvirtd, which is PID 1 of its namespace: every process in it ends too.
func (v *libvirt) end() {
	for _, cmd := range []*exec.Cmd{v.virsh, v.daemon} {
		if cmd != nil && cmd.Process != nil {
			cmd.Process.Kill()
			cmd.Wait() // its error says only that it was killed
		}
	}
	v.virsh, v.daemon = nil, nil
	v.log.Close()
}

// timeCold is the time from the start of a libvirtd that does not know this QEMU yet to a
// running guest: this happens in each new pod of KubeVirt.
func (v *libvirt) timeCold(ctx context.Context, file string) (time.Duration, error) {
	if err := v.forget(); err != nil {
		return 0, err
	}
	begin := time.Now()
	defer v.end()
	if err := v.start(ctx); err != nil {
		return 0, err
	}
	if _, err := v.create(file); err != nil {
		return 0, err
	}
	took := time.Since(begin)
	return took, v.destroy()
}

// libvirtQEMU is the QEMU of the host's Debian, for which the host's libvirt was made.
const libvirtQEMU = "/usr/bin/qemu-system-x86_64"

// domain is the guest for libvirt, with the same devices as the Machine.
var domain = template.Must(template.New("domain").Parse(`<domain type='{{if eq .Accelerator "kvm"}}kvm{{else}}qemu{{end}}'>
  <name>bench</name>
  <uuid>{{.UUID}}</uuid>
  <memory unit='b'>{{.MemoryBytes}}</memory>
  <vcpu>1</vcpu>
  <os><type arch='x86_64' machine='{{.Type}}'>hvm</type></os>
  <features><acpi/></features>
  <cpu mode='{{if eq .Accelerator "kvm"}}host-passthrough{{else}}maximum{{end}}'/>
  <devices>
    <emulator>{{.QEMU}}</emulator>
    {{range .Disks}}<disk type='file' device='disk'>
      <driver name='qemu' type='qcow2' discard='unmap'{{if .Overlay.Direct}} cache='none'{{end}}/>
      <source file='{{.Overlay.Path}}'/>
      <backingStore type='file'><format type='{{.Image.Format}}'/><source file='{{.Image.Path}}'/><backingStore/></backingStore>
      <target dev='vda' bus='virtio'/>
    </disk>{{end}}
    <controller type='usb' model='none'/>
    <serial type='pty'/>
    <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
    <memballoon model='none'/>
  </devices>
</domain>
`))

// writeDomain writes the domain of a machine, makes the machine's overlay, and lets libvirt's
// user write to the overlay.
func writeDomain(ctx context.Context, m *qemuargs.Machine, file string) error {
	var text bytes.Buffer
	alike := *m
	alike.Type = "q35" // the newest q35 of the host's QEMU
	if err := domain.Execute(&text, struct {
		*qemuargs.Machine
		QEMU string
	}{&alike, libvirtQEMU}); err != nil {
		return err
	}
	if _, err := makeOverlay(m); err != nil {
		return err
	}
	return errors.Join(os.Chown(m.Disks[0].Overlay.Path, libvirtUser, libvirtUser), os.WriteFile(file, text.Bytes(), 0o644))
}
