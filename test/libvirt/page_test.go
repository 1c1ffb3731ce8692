package libvirt

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
)

func TestMain(m *testing.M) { golden.Main(m, "testdata/domains/*.xml") }

// pageHead is what docs/libvirt.md says before the list.
const pageHead = `# QEMU's arguments here and libvirt's

<!-- written by go test ./test/libvirt -update, from test/libvirt/testdata/differences.yaml -->

For each VMI of the [catalogue of fields](arguments.md), libvirt is asked for its arguments of QEMU, and they are compared with ours. This page
lists all that they differ in, with the reasons.

` + "`make libvirt-diff`" + ` compares again, on Debian 12 with its libvirt 9.0 and QEMU 7.2. It needs root, and takes half a minute.

1. The VMI is resolved for a node with QEMU 7.2, once with KVM and once with TCG.
2. The Machine is described to libvirt as KubeVirt's converter would describe the VMI. Only the PCI addresses are the Machine's own.
3. ` + "`virsh domxml-to-native`" + ` prints libvirt's arguments. It drops address, MTU and queues of a network interface. So libvirt starts a
   domain with interfaces. A stand-in for QEMU writes its arguments down and ends.
4. Devices are matched by their addresses, and backends by their devices. Ids, names of block nodes and numbers of files do not count.
5. The test fails on a difference that is not in this list, and on a line of this list that no VMI needs.

The first comparison showed four things that libvirt did better. They are done here since:

- The firmware boots from the devices with a boot index, and tries no others (` + "`-boot strict=on`" + `). SeaBIOS then does not set up the other
  disks.
- With KVM and ` + "`/dev/vhost-net`" + ` the node's kernel moves the packets of a virtio card ([network.md](network.md#which-process-moves-the-packets)).
- An I/O error on a CD-ROM stops the guest, as one on a disk does (` + "`werror=stop`, `rerror=stop`" + `).
- A SCSI drive's ` + "`device_id`" + ` is the whole serial number, or without one KubeVirt's id of the disk. Linux makes the names in
  ` + "`/dev/disk/by-id`" + ` of it.

"there" stands for an argument that the other command line lacks. ` + "`*`" + ` stands for any text, and N for a number that the program chose.

`

// TestPageIsTheReviewedList: docs/libvirt.md is the reviewed list.
func TestPageIsTheReviewedList(t *testing.T) {
	groups, err := Reviewed(reviewedFile)
	if err != nil {
		t.Fatal(err)
	}
	var page strings.Builder
	page.WriteString(pageHead)
	for _, g := range groups {
		fmt.Fprintf(&page, "## %s\n\n%s\n\n| argument | here | libvirt |\n|---|---|---|\n", g.Title, strings.TrimSpace(g.Reason))
		for _, p := range g.Differences {
			what := strings.TrimSpace(p.Argument + " " + p.Property)
			fmt.Fprintf(&page, "| `%s` | %s | %s |\n", what, cell(p.Ours), cell(p.Libvirt))
		}
		page.WriteString("\n")
	}
	golden.Compare(t, "../../docs/libvirt.md", strings.TrimRight(page.String(), "\n")+"\n")
}

// cell is a value in a table.
func cell(value string) string {
	if value == "unset" || value == "there" {
		return value
	}
	return "`" + value + "`"
}
