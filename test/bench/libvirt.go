package main

import (
	"bufio"
	"bytes"
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
	virsh   *exec.Cmd
	input   io.WriteCloser
	answers *bufio.Reader
}

func newLibvirt(home string) *libvirt {
	for _, program := range []string{"libvirtd", "virtlogd", "virsh", "setpriv", "stdbuf"} {
		if _, err := exec.LookPath(program); err != nil {
			check(errors.Join(errNoLibvirt, err))
		}
	}
	check(errors.Join(os.MkdirAll(home, 0o755), os.Chown(home, libvirtUser, libvirtUser)))
	return &libvirt{home: home}
}

// as is the command line that runs a program as libvirt's user.
func as(args ...string) []string {
	id := strconv.Itoa(libvirtUser)
	user := []string{"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--pdeathsig", "KILL", "--"}
	return append(user, args...)
}

// forget removes everything, also the cache of QEMU's capabilities. A libvirt in a new pod
// begins like that.
func (v *libvirt) forget() {
	for _, name := range []string{"run", "cache", "config"} {
		folder := filepath.Join(v.home, name)
		check(errors.Join(os.RemoveAll(folder), os.Mkdir(folder, 0o700), os.Chown(folder, libvirtUser, libvirtUser)))
	}
}

func (v *libvirt) log() string { return v.home + ".log" }

// start returns when virsh is connected. libvirtd is PID 1 of its namespace: every process in it ends with it.
func (v *libvirt) start(r *run) {
	log := must(os.Create(v.log()))
	defer log.Close()
	start := func(cmd *exec.Cmd) {
		cmd.Env = []string{"LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + v.home,
			"XDG_RUNTIME_DIR=" + v.home + "/run", "XDG_CACHE_HOME=" + v.home + "/cache",
			"XDG_CONFIG_HOME=" + v.home + "/config"}
		cmd.Stderr = log
		r.start(cmd)
	}
	// PID 1 has to reap: libvirt waits until QEMUs that it detached are gone.
	daemon := exec.Command("sh", append([]string{"-c", `mount -t proc proc /proc && "$@" & wait`, "sh"},
		as("libvirtd", "--timeout", "0")...)...)
	daemon.Stdout = log
	daemon.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS,
		Pdeathsig: syscall.SIGKILL}
	start(daemon)
	// A coarse poll would count as libvirtd's time.
	r.await("libvirtd listens (see "+v.log()+")", time.Millisecond, patience, func() bool {
		_, err := os.Stat(filepath.Join(v.home, "run/libvirt/libvirt-sock"))
		return err == nil
	})
	args := as("stdbuf", "-oL", "virsh", "--connect", "qemu:///session")
	v.virsh = exec.Command(args[0], args[1:]...)
	v.answers, v.input = bufio.NewReader(must(v.virsh.StdoutPipe())), must(v.virsh.StdinPipe())
	start(v.virsh)
	v.command("uri", "qemu:///session")
}

// command makes virsh run a command, and waits for the line that contains done. virsh stays
// connected, so that its own start is not measured.
func (v *libvirt) command(line, done string) {
	_, err := fmt.Fprintln(v.input, line)
	check(err, "virsh "+line)
	timeout := time.AfterFunc(patience, func() { v.virsh.Process.Kill() })
	defer timeout.Stop()
	for {
		answer, err := v.answers.ReadString('\n')
		if err != nil {
			fail("virsh %s: %w; it says:\n%s", line, err, tail(v.log()))
		}
		if strings.Contains(answer, done) {
			return
		}
	}
}

// create makes a domain from a file and returns when it runs.
func (v *libvirt) create(file string) time.Duration {
	begin := time.Now()
	v.command("create "+file, "Domain 'bench' created")
	return time.Since(begin)
}

func (v *libvirt) destroy() { v.command("destroy bench", "Domain 'bench' destroyed") }

// timeCold is the time from the start of a libvirtd that does not know this QEMU yet to a
// running guest: this happens in each new pod of KubeVirt.
func (v *libvirt) timeCold(r *run, file string) (took time.Duration) {
	v.forget()
	r.turn(func(r *run) {
		begin := time.Now()
		v.start(r)
		v.create(file)
		took = time.Since(begin)
		v.destroy()
	})
	return took
}

// libvirtQEMU is the QEMU of the host's Debian, for which the host's libvirt was made.
const libvirtQEMU = "/usr/bin/qemu-system-x86_64"

// domain is the guest for libvirt, with the same devices as the Machine.
var domain = template.Must(template.New("domain").Parse(`
<domain type='{{if eq .Accelerator "kvm"}}kvm{{else}}qemu{{end}}'>
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
      <backingStore type='file'>
        <format type='{{.Image.Format}}'/><source file='{{.Image.Path}}'/><backingStore/>
      </backingStore>
      <target dev='vda' bus='virtio'/>
    </disk>{{end}}
    <controller type='usb' model='none'/>
    <serial type='pty'/>
    <channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
    <memballoon model='none'/>
  </devices>
</domain>
`))

// writeDomain writes the domain of a machine into a folder, makes the machine's overlay, and lets libvirt's
// user write to the overlay.
func writeDomain(m *qemuargs.Machine, folder string) (file string) {
	var text bytes.Buffer
	alike := *m
	alike.Type = "q35" // the newest q35 of the host's QEMU
	check(domain.Execute(&text, struct {
		*qemuargs.Machine
		QEMU string
	}{&alike, libvirtQEMU}))
	makeOverlay(m)
	file = filepath.Join(folder, "domain.xml")
	check(os.WriteFile(file, text.Bytes(), 0o644))
	check(os.Chown(m.Disks[0].Overlay.Path, libvirtUser, libvirtUser))
	return file
}
