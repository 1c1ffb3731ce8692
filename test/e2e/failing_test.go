package e2e

import (
	"fmt"
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestFailingDiskPausesTheGuest: a guest whose disk fails to read is paused, says which and why,
// and goes on once the disk does: a loop device whose file was cut short, and,
// where the kernel has it, a device mapper that answers with errors only.
func TestFailingDiskPausesTheGuest(t *testing.T) {
	t.Parallel()
	for kind, device := range map[string]func(claims, string) faulty{"loop": cutShort, "device-mapper": mapped} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			c := claims{t, namespace(t)}
			folder := c.nodeFolder("failing")
			c.onNode(`mkdir -p "$1"`, folder)
			t.Cleanup(func() { onNode(`rm -rf --one-file-system "$1"`, folder) })
			d := device(c, folder+"/device")
			c.volume("failing", "Block", "100Mi", d.path)
			c.claim("failing", "Block", "100Mi")
			v := create(t, c.namespace, tiny("failing", offline, onClaim("failing")))
			v.await(v1.Running)
			shell := v.shell()
			qemu := v.qemu()
			v.in(shell, "echo before it failed | dd of=/dev/vdb bs=1M seek=10 conv=sync,fsync 2>/dev/null")
			d.fails()
			// Where nobody has read yet.
			shell.send("dd if=/dev/vdb of=/dev/null bs=1M skip=60 count=4 && echo read''all\n")
			v.awaitCondition(v1.ConditionPaused, "PausedIOError", `"failing"`, "Input/output error")
			v.awaitEvents("Started", "IOerror")
			d.works()
			shell.shows("readall")
			v.awaitReady("GuestRunning")
			if got := v.in(shell, `echo 3 > /proc/sys/vm/drop_caches; dd if=/dev/vdb bs=1M skip=10 count=1 2>/dev/null | tr -d '\000'`); got != "before it failed" {
				t.Errorf("after it failed the disk holds %q", got)
			}
			if now := v.qemu(); now.PID != qemu.PID || now.Start != qemu.Start {
				t.Errorf("QEMU is %d, was %d", now.PID, qemu.PID)
			}
			v.delete()
		})
	}
}

// faulty is a device of the node that fails, and works, when it is told to.
type faulty struct {
	path         string
	fails, works func()
}

func (c claims) onNode(script string, args ...string) string {
	c.t.Helper()
	out, err := onNode(script, args...)
	if err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(out)
}

// cutShort is a loop device: what its file does not have any more, it cannot read.
func cutShort(c claims, file string) faulty {
	device := c.loopDevice(file, "100M")
	return faulty{device,
		func() { c.onNode(`truncate -s 40M "$1"`, file) },
		func() { c.onNode(`truncate -s 100M "$1"`, file) },
	}
}

// mapped is a device of the device mapper over a loop device.
func mapped(c claims, file string) faulty {
	if out, _ := onNode(`modprobe -a dm_mod 2>/dev/null; grep -w device-mapper /proc/misc`); out == "" {
		c.t.Skip("THIS MACHINE'S KERNEL HAS NO DEVICE MAPPER, and disks that it makes fail cannot be tested")
	}
	name := "e2e-" + c.namespace
	const sectors = 100 << 20 / 512
	table := func(target string) string { return fmt.Sprintf("0 %d %s", sectors, target) }
	works := table("linear " + c.loopDevice(file, "100M") + " 0")
	path := c.onNode(`dmsetup create "$1" --table "$2" && realpath /dev/mapper/"$1"`, name, works)
	c.t.Cleanup(func() {
		if _, err := onNode(`dmsetup remove --retry "$1"`, name); err != nil {
			c.t.Error(err)
		}
	})
	become := func(table string) func() {
		return func() {
			c.onNode(`dmsetup suspend --noflush "$1" && dmsetup load "$1" --table "$2" && dmsetup resume "$1"`, name, table)
		}
	}
	return faulty{path, become(table("error")), become(works)}
}
