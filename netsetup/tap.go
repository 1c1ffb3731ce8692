package netsetup

import (
	"errors"
	"fmt"
	"os"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrTapInUse means that some process still holds a queue of the tap: most likely
// the launcher or QEMU of an earlier attempt. The tap vanishes when they close it.
var ErrTapInUse = errors.New("tap is in use")

// OpenTap makes the tap, puts it on the plan's bridge and returns its queues, to
// be handed to QEMU (-netdev tap,fd=…, or fds=… for several). It needs Apply to
// have run. The tap is not persistent: it goes when the last queue is closed.
// ErrTapInUse is returned while the tap of an earlier call is open anywhere.
//
// The queues carry Ethernet frames behind a virtio-net header (IFF_VNET_HDR) and
// do not block. QEMU chooses the header's size and the offloads itself
// (TUNSETVNETHDRSZ, TUNSETOFFLOAD); the kernel asks for no capability there, nor
// for TUNSETQUEUE, since the descriptor is the right.
func OpenTap(netns ns.NetNS, plan *Plan) ([]*os.File, error) {
	var queues []*os.File
	err := netns.Do(func(ns.NetNS) (err error) {
		queues, err = openQueues(plan.Tap)
		if err != nil {
			return err
		}
		return connectTap(plan.Tap)
	})
	if err != nil {
		CloseAll(queues)
		return nil, fmt.Errorf("open tap %q: %w", plan.Tap.Name, err)
	}
	return queues, nil
}

func openQueues(t Tap) (queues []*os.File, err error) {
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if t.Queues > 1 {
		flags |= unix.IFF_MULTI_QUEUE
	}
	for i := range t.Queues {
		queueFlags := flags
		if i == 0 {
			// The first must make the tap. Without this a second call would add its
			// queues to a tap that a running QEMU has, and take packets from it.
			queueFlags |= unix.IFF_TUN_EXCL
		}
		f, err := openQueue(t.Name, queueFlags)
		if err != nil {
			return queues, fmt.Errorf("queue %d: %w", i, err)
		}
		queues = append(queues, f)
	}
	return queues, nil
}

func openQueue(name string, flags uint16) (*os.File, error) {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	request.SetUint16(flags)
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EBUSY) {
			return nil, errors.Join(ErrTapInUse, err)
		}
		return nil, fmt.Errorf("attach queue: %w", err)
	}
	// Any process of the pod that gets at a /dev/net/tun may attach to a tap without an owner,
	// but not to a tap that root owns.
	if err := unix.IoctlSetInt(fd, unix.TUNSETOWNER, 0); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("set owner: %w", err)
	}
	// Only now: a tun descriptor is not pollable before it is attached.
	return os.NewFile(uintptr(fd), "tap:"+name), nil
}

func connectTap(t Tap) error {
	bridge, err := netlink.LinkByName(t.Bridge)
	if err != nil {
		return fmt.Errorf("find bridge %q: %w", t.Bridge, err)
	}
	tap, err := netlink.LinkByName(t.Name)
	if err != nil {
		return err
	}
	// The tap itself has nothing to say to the guest: no router solicitations.
	quiet := Sysctl{Name: "net/ipv6/conf/" + t.Name + "/disable_ipv6", Value: "1", Optional: true}
	if err := quiet.write(); err != nil {
		return err
	}
	if err := netlink.LinkSetMTU(tap, t.MTU); err != nil {
		return fmt.Errorf("set MTU %d: %w", t.MTU, err)
	}
	if err := netlink.LinkSetMaster(tap, bridge); err != nil {
		return fmt.Errorf("add to bridge %q: %w", t.Bridge, err)
	}
	if t.NoLearning {
		if err := netlink.LinkSetLearning(tap, false); err != nil {
			return fmt.Errorf("keep the bridge from learning: %w", err)
		}
	}
	if err := netlink.LinkSetUp(tap); err != nil {
		return fmt.Errorf("bring up: %w", err)
	}
	return nil
}
