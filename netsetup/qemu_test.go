package netsetup

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestQEMUWithoutCapabilities has a real QEMU take the queues as uid 107 with no
// capability: all that it does with a tap it must be able to do with the descriptor.
func TestQEMUWithoutCapabilities(t *testing.T) {
	for _, queues := range []int{1, 4} {
		t.Run(fmt.Sprintf("%d queues", queues), func(t *testing.T) {
			p := newPod(t, Masquerade{Queues: queues})
			if err := Apply(p.pod, p.plan); err != nil {
				t.Fatal(err)
			}
			files, err := OpenTap(p.pod, p.plan)
			if err != nil {
				t.Fatal(err)
			}
			netdev, device := `{"type":"tap","id":"net0","fd":"3"}`, `{"driver":"virtio-net-pci","netdev":"net0","host_mtu":1450}`
			if queues > 1 {
				netdev = `{"type":"tap","id":"net0","fds":"3:4:5:6"}`
				device = `{"driver":"virtio-net-pci","netdev":"net0","mq":true,"vectors":10,"host_mtu":1450}`
			}
			cmd := exec.Command("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-machine", "q35", "-accel", "tcg,tb-size=32",
				"-m", "64", "-display", "none", "-S", "-netdev", netdev, "-device", device, "-qmp", "stdio")
			cmd.ExtraFiles = files
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 107, Gid: 107}, Pdeathsig: syscall.SIGKILL}
			var stderr strings.Builder
			cmd.Stderr = &stderr
			in, _ := cmd.StdinPipe()
			out, _ := cmd.StdoutPipe()
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				f.Close() // QEMU has them now
			}
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
			if err != nil || !strings.Contains(string(status), "CapEff:\t0000000000000000") {
				t.Errorf("QEMU has capabilities, or: %v", err)
			}
			talk(t, in, out, `{"execute":"qmp_capabilities"}`, `{"execute":"set_link","arguments":{"name":"net0","up":true}}`,
				`{"execute":"cont"}`)
			p.inside(p.pod, func() error {
				link, err := netlink.LinkByName("tap0")
				if err != nil {
					return err
				}
				if got := link.Attrs().NumRxQueues; got < queues {
					t.Errorf("tap has %d queues, want %d", got, queues)
				}
				return nil
			})
			talk(t, in, nil, `{"execute":"quit"}`)
			if err := cmd.Wait(); err != nil {
				t.Errorf("QEMU: %v", err)
			}
			if stderr.Len() > 0 {
				t.Errorf("QEMU complains: %s", stderr.String())
			}
			p.gone("tap0")
		})
	}
}

// talk sends commands and waits for each return, leaving out events.
func talk(t *testing.T, in io.Writer, out io.Reader, commands ...string) {
	t.Helper()
	var lines *bufio.Scanner
	if out != nil {
		lines = bufio.NewScanner(out)
	}
	for _, command := range commands {
		if _, err := io.WriteString(in, command+"\n"); err != nil {
			t.Fatal(err)
		}
		for lines != nil {
			if !lines.Scan() {
				t.Fatalf("QEMU ended before it answered %s", command)
			}
			var reply struct{ Return, Error json.RawMessage }
			if err := json.Unmarshal(lines.Bytes(), &reply); err != nil {
				t.Fatal(err)
			}
			if reply.Error != nil {
				t.Fatalf("%s: %s", command, reply.Error)
			}
			if reply.Return != nil {
				break
			}
		}
	}
}
