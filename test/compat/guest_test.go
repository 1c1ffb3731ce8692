package compat

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	v1 "kubevirt.io/api/core/v1"
)

const userData = `#cloud-config
hostname: debian
users:
- name: demo
  plain_text_passwd: demo
  lock_passwd: false
  shell: /bin/bash
  sudo: ALL=(ALL) NOPASSWD:ALL
ssh_pwauth: true
`

// withDebian is a guest that has an agent and an SSH server.
func withDebian(spec *v1.VirtualMachineInstanceSpec) {
	guest := resource.MustParse("512Mi")
	spec.Domain.CPU, spec.Domain.Memory.Guest = &v1.CPU{Cores: 2}, &guest
	spec.Domain.Devices.Rng = &v1.Rng{}
	spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks, v1.Disk{Name: "seed", DiskDevice: v1.DiskDevice{Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}}})
	spec.Volumes[0].ContainerDisk.Image = debian
	spec.Volumes = append(spec.Volumes, v1.Volume{Name: "seed", VolumeSource: v1.VolumeSource{CloudInitNoCloud: &v1.CloudInitNoCloudSource{UserData: userData}}})
}

// ssh runs a command in the guest by a port-forward, as virtctl ssh does.
func (m *machine) ssh(command, input string) (string, error) {
	stream, err := m.client.VirtualMachineInstance(m.namespace).PortForward("vm", 22, "tcp")
	if err != nil {
		return "", err
	}
	conn := stream.AsConn()
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return "", err
	}
	config := &ssh.ClientConfig{User: "demo", Auth: []ssh.AuthMethod{ssh.Password("demo")}, HostKeyCallback: ssh.InsecureIgnoreHostKey()}
	c, channels, requests, err := ssh.NewClientConn(conn, "vm", config)
	if err != nil {
		return "", err
	}
	client := ssh.NewClient(c, channels, requests)
	defer client.Close()
	session, err := client.NewSession()
	if err != nil {
		return "", err
	}
	defer session.Close()
	session.Stdin = strings.NewReader(input)
	out, err := session.CombinedOutput(command)
	return string(out), err
}

// TestClientAsksAGuest asks a guest's agent and its SSH server, by KubeVirt's client.
func TestClientAsksAGuest(t *testing.T) {
	m := newMachine(t, withDebian)
	instances, ctx := m.client.VirtualMachineInstance(m.namespace), t.Context()
	m.must(m.client.VirtualMachine(m.namespace).Start(ctx, "vm", &v1.StartOptions{}))
	// The first answer is that there is no agent yet, and no such port.
	m.await("SSH", func() error {
		_, err := m.ssh("true", "")
		return err
	})
	if out, err := m.ssh("hostname; cat; exit 0", "typed\n"); err != nil || out != "debian\ntyped\n" {
		t.Errorf("by SSH it says %q (%v)", out, err)
	}
	const size = 4 << 20
	if out, err := m.ssh("wc -c", strings.Repeat("x", size)); err != nil || strings.TrimSpace(out) != fmt.Sprint(size) {
		t.Errorf("of %d bytes by SSH it got %q (%v)", size, out, err)
	}

	m.await("agent", func() error {
		_, err := instances.GuestOsInfo(ctx, "vm")
		return err
	})
	info, err := instances.GuestOsInfo(ctx, "vm")
	if err != nil || info.OS.ID != "debian" || info.Hostname != "debian" || len(info.FSInfo.Filesystems) == 0 {
		t.Errorf("guest info %+v (%v)", info, err)
	}
	systems, err := instances.FilesystemList(ctx, "vm")
	if err != nil || len(systems.Items) == 0 || systems.Items[0].MountPoint != "/" {
		t.Errorf("file systems %+v (%v)", systems, err)
	}
	s := m.console()
	s.shows("", "login:")
	s.shows("demo", "Password:")
	s.shows("demo", "demo@debian")
	m.await("users", func() error {
		users, err := instances.UserList(ctx, "vm")
		if err == nil && (len(users.Items) == 0 || users.Items[0].UserName != "demo") {
			err = fmt.Errorf("users %+v", users.Items)
		}
		return err
	})
	m.frozen()

	boot := func() (string, error) { return m.ssh("cat /proc/sys/kernel/random/boot_id", "") }
	before, err := boot()
	m.must(err)
	m.must(instances.SoftReboot(ctx, "vm"))
	m.await("reboot", func() error {
		after, err := boot()
		if err == nil && after == before {
			err = fmt.Errorf("it has not booted again")
		}
		return err
	})
	m.must(m.client.VirtualMachine(m.namespace).Stop(ctx, "vm", &v1.StopOptions{}))
	m.is(v1.VirtualMachineStatusStopped)
}

// frozen freezes and thaws the guest's file systems.
func (m *machine) frozen() {
	m.t.Helper()
	instances, ctx := m.client.VirtualMachineInstance(m.namespace), context.Background()
	status := func(want string) {
		m.t.Helper()
		m.await("freeze", func() error {
			vmi, err := instances.Get(ctx, "vm", metav1.GetOptions{})
			if err == nil && vmi.Status.FSFreezeStatus != want {
				err = fmt.Errorf("fsFreezeStatus is %q, want %q", vmi.Status.FSFreezeStatus, want)
			}
			return err
		})
	}
	m.must(instances.Freeze(ctx, "vm", time.Minute))
	status("frozen")
	m.must(instances.Unfreeze(ctx, "vm"))
	status("")
}
