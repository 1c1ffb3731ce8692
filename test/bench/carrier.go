package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

const (
	// carried is how much goes to the guest over the network, and back, each time.
	carried = 32 << 20
	// trips is how often one byte goes to the guest and back, each time.
	trips = 500
	// written is how much the guest writes to its disk, and reads, each time.
	written = 64 << 20
)

// carrierMachine is the tiny guest's, booted directly, with a network. Its files are in folder.
func carrierMachine(ctx context.Context, b *bench, folder string) (*qemuargs.Machine, error) {
	kernel := &qemuargs.Kernel{Path: filepath.Join(folder, "vmlinuz"), Initrd: filepath.Join(folder, "initrd"), Args: kernelArgs}
	if err := unpackKernel(b.output("images", "tiny-virtio-container-disk.tar"), kernel); err != nil {
		return nil, fmt.Errorf("unpack the kernel: %w", err)
	}
	l, err := launch(ctx, b, folder)
	if err != nil {
		return nil, err
	}
	m, err := l.resolve(ctx, b.accelerator, map[string]resolve.NIC{"default": {MTU: linkMTU}})
	if err := errors.Join(err, l.end()); err != nil {
		return nil, err
	}
	m.Kernel = kernel
	return m, nil
}

// carrier is a guest whose root shell is on the serial port.
type carrier struct {
	serial net.Conn
	link   *guestLink
	done   int
	end    func() error
}

// startMachine boots a Machine's guest. The guest has the link's tap, and its address.
// Its disk is written to the file overlay.
func startMachine(ctx context.Context, b *bench, m *qemuargs.Machine, overlay string, link *guestLink) (*carrier, error) {
	own := *m
	own.Disks = slices.Clone(m.Disks)
	disk := *m.Disks[0].Overlay
	disk.Path, disk.VirtualSize = overlay, 2*written
	own.Disks[0].Overlay = &disk
	m = &own
	if _, err := makeOverlay(m); err != nil {
		return nil, errors.Join(err, link.tap.Close())
	}
	q, err := execBare(ctx, b.qemu, m, link.tap)
	if err != nil {
		return nil, err
	}
	guest := &carrier{serial: q.serial, link: link, end: q.end}
	if err = q.run(); err == nil {
		err = guest.boots()
	}
	if err == nil {
		_, err = guest.do(fmt.Sprintf("killall udhcpc; ip addr flush dev eth0; ip link set eth0 up && ip addr add %s dev eth0", link.guest))
	}
	if err == nil && link.router.IsValid() {
		_, err = guest.do(fmt.Sprintf("ip route replace default via %s dev eth0 onlink", link.router))
	}
	if err != nil {
		return nil, errors.Join(err, guest.end())
	}
	return guest, nil
}

// startRaw boots the same guest with as few arguments as do, and a raw disk whose cache is the overlay's.
func startRaw(ctx context.Context, b *bench, m *qemuargs.Machine, disk string) (*carrier, error) {
	if err := errors.Join(os.WriteFile(disk, nil, 0o600), os.Truncate(disk, 2*written)); err != nil {
		return nil, err
	}
	serial, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	cache := "writeback"
	if m.Disks[0].Overlay.Direct {
		cache = "none"
	}
	args := append(plainArgs(m), "-drive", "file="+disk+",format=raw,if=virtio,cache="+cache)
	cmd := exec.CommandContext(ctx, b.qemu, args...)
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		serial.Close()
		return nil, fmt.Errorf("start QEMU: %w", err)
	}
	guest := &carrier{serial: serial, end: func() error {
		cmd.Process.Kill()
		cmd.Wait() // killed, it says
		return serial.Close()
	}}
	if err := guest.boots(); err != nil {
		return nil, errors.Join(err, guest.end())
	}
	return guest, nil
}

// boots waits for the guest's shell, and has it print nothing of itself.
func (g *carrier) boots() error {
	if err := awaited(g.serial, "tiny# "); err != nil {
		return fmt.Errorf("wait for the guest's shell: %w", err)
	}
	_, err := g.do("stty -echo; PS1=")
	return err
}

// do has the guest's shell run a command, and returns how long it took.
func (g *carrier) do(command string) (time.Duration, error) {
	g.done++
	begin := time.Now()
	if err := g.serial.SetWriteDeadline(begin.Add(patience)); err != nil {
		return 0, err
	}
	// The mark is typed in two parts, lest its echo be taken for it.
	if _, err := fmt.Fprintf(g.serial, "%s\necho status $? do\"\"ne-%d.\n", command, g.done); err != nil {
		return 0, fmt.Errorf("have the guest run %q: %w", command, err)
	}
	if err := awaited(g.serial, fmt.Sprintf("status 0 done-%d.", g.done)); err != nil {
		return 0, fmt.Errorf("have the guest run %q: %w", command, err)
	}
	return time.Since(begin), nil
}

// carry sends to the guest, which sends all back.
func (g *carrier) carry() (rate float64, err error) {
	conn, err := g.dial()
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	took, err := carriedBack(conn, carried)
	return carried / 1e6 / took, err
}

// trip sends one byte to the guest, which sends it back, many times. It returns the mean in milliseconds.
func (g *carrier) trip() (mean float64, err error) {
	conn, err := g.dial()
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	begin := time.Now()
	for range trips {
		if _, err := carriedBack(conn, 1); err != nil {
			return 0, err
		}
	}
	return float64(time.Since(begin).Microseconds()) / 1000 / trips, nil
}

// dial connects with the guest's program that sends all back.
func (g *carrier) dial() (conn net.Conn, err error) {
	err = g.link.client.Do(func(ns.NetNS) (err error) {
		conn, err = net.DialTimeout("tcp", netip.AddrPortFrom(g.link.address, echoPort).String(), patience)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connect with the guest: %w", err)
	}
	return conn, nil
}

func (g *carrier) write() (float64, error) {
	took, err := g.do(fmt.Sprintf("dd if=/dev/zero of=/dev/vda bs=1M count=%d conv=fsync 2>/dev/null", written>>20))
	return written / 1e6 / took.Seconds(), err
}

// read reads what was written, past the guest's cache.
func (g *carrier) read() (float64, error) {
	if _, err := g.do("echo 3 >/proc/sys/vm/drop_caches"); err != nil {
		return 0, err
	}
	took, err := g.do(fmt.Sprintf("dd if=/dev/vda of=/dev/null bs=1M count=%d 2>/dev/null", written>>20))
	return written / 1e6 / took.Seconds(), err
}
