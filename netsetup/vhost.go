package netsetup

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// vhostDevice is the kernel's vhost-net. The first open loads the module.
const vhostDevice = "/dev/vhost-net"

// OpenVhostNet opens vhost-net once for each queue of a tap (-netdev tap,vhostfd=…, or
// vhostfds=… for several). The files are bound to nothing yet. QEMU makes itself their owner
// (VHOST_SET_OWNER), and the kernel then reaches QEMU's memory alone, whoever opened the file.
// The kernel's threads that move the packets count as QEMU's: their CPU time is the pod's.
func OpenVhostNet(queues int) (files []*os.File, err error) {
	for range queues {
		fd, err := unix.Open(vhostDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			CloseAll(files)
			return nil, fmt.Errorf("open %s: %w", vhostDevice, err)
		}
		files = append(files, os.NewFile(uintptr(fd), "vhost-net"))
	}
	return files, nil
}

// CloseAll closes files.
func CloseAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
