package launcher

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/qmp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// changing is a real QEMU, of the launcher's image, with a Linux guest, which becomes one machine after another.
type changing struct {
	*testing.T
	becoming
	dir  string
	now  qemuargs.Machine
	sets qemuargs.Sets
	out  *testkit.Transcript
}

// tinyGuest unpacks the kernel of the tests' Linux guest.
func tinyGuest(t *testing.T, dir string) *qemuargs.Kernel {
	t.Helper()
	image, err := filepath.Abs("../_output/images/tiny-container-disk.tar")
	if err == nil {
		_, err = os.Stat(image)
	}
	if err != nil {
		t.Fatalf("find the tiny guest (run config/images/build.sh tiny): %v", err)
	}
	unpack := exec.Command("sh", "-ec", `tar xf "$0" && tar xzf *.tar.gz boot/vmlinuz boot/initrd`, image)
	unpack.Dir = dir
	if said, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("unpack the tiny guest: %v: %s", err, said)
	}
	return &qemuargs.Kernel{Path: filepath.Join(dir, "boot/vmlinuz"), Initrd: filepath.Join(dir, "boot/initrd"),
		Args: "console=ttyS0 quiet no_timer_check"}
}

// newChanging boots the guest.
func newChanging(t *testing.T) *changing {
	t.Helper()
	c := &changing{T: t, dir: t.TempDir(), out: testkit.NewTranscript(t, "the guest's output")}
	c.now = qemuargs.Machine{Version: qemuargs.Version, Arch: qemuargs.AMD64, Name: "changing", Type: "q35",
		UUID: "6b756265-7165-4d75-8000-000000000002", Accelerator: qemuargs.TCG, MemoryBytes: 192 << 20, MonitorObject: true,
		CPU: qemuargs.CPU{Model: "max", Sockets: 1, Cores: 1, Threads: 1, MaxSockets: 3}, Serial: &qemuargs.Serial{},
		Kernel: tinyGuest(t, c.dir)}
	for i := range uint8(8) {
		c.now.RootPorts = append(c.now.RootPorts, qemuargs.RootPort{ID: fmt.Sprintf("pci.%d", i+1), Chassis: i + 1,
			Spare: true, PCI: qemuargs.PCIAddress{Bus: qemuargs.RootBus, Slot: 2, Function: i}})
	}
	monitor, monitorFile := testkit.SocketFiles(t)
	serial, serialFile := testkit.SocketFiles(t)
	cmd := exec.Command(imageQEMU(t, filepath.Join(c.dir, "qemu")), qemuargs.Strings(c.now.Args())...)
	cmd.ExtraFiles = []*os.File{monitorFile, serialFile}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	monitorFile.Close()
	serialFile.Close()
	conn, err := net.FileConn(monitor)
	if err != nil {
		t.Fatal(err)
	}
	monitor.Close()
	var reading sync.WaitGroup
	reading.Go(func() { _, _ = io.Copy(c.out, serial) })
	client := qmp.New(conn.(*net.UnixConn), qmp.Options{})
	var events awaited
	t.Cleanup(func() {
		client.Close()
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait()
		serial.Close()
		reading.Wait()
		if t.Failed() {
			t.Logf("QEMU's stderr: %s\nthe guest's output: %q\ncommand line:\n%s", said.String(), last(c.out.String(), 2000),
				qemuargs.Quote(cmd.Path, c.now.Args()))
		}
	})
	told, err := client.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	reading.Go(func() {
		for e := range told {
			events.note(e)
		}
	})
	if err := client.Connect(); err != nil {
		t.Fatal(err)
	}
	if err := client.Cont(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.out.Expect("tiny: up")
	c.sets = c.now.Sets()
	c.becoming = becoming{client: client, events: &events, log: slog.New(slog.DiscardHandler), was: c.now,
		changed: func(change qemuargs.Change, _ map[string]string) error {
			c.sets, c.now = setsAfter(c.sets, change), c.now.Apply(change)
			return nil
		}}
	return c
}

// wanted returns a machine that the present one can become: any disks, drives, media, cards, links, threads and CPUs.
// What stays keeps its place.
func (c *changing) wanted(r *rand.Rand) qemuargs.Machine {
	next := c.now
	next.Disks, next.NICs, next.IOThreads, next.CPU.Plugged = nil, nil, nil, c.now.CPU.Plugged
	ports := map[string]string{}
	for _, p := range c.now.Places() {
		if p.Address.Bus != qemuargs.RootBus {
			ports[p.Part] = p.Address.Bus
		}
	}
	place := func(part string) qemuargs.PCIAddress {
		if bus, has := ports[part]; has {
			return qemuargs.PCIAddress{Bus: bus}
		}
		taken := slices.Collect(maps.Values(ports))
		i := slices.IndexFunc(next.RootPorts, func(p qemuargs.RootPort) bool { return !slices.Contains(taken, p.ID) })
		ports[part] = next.RootPorts[i].ID
		return qemuargs.PCIAddress{Bus: ports[part]}
	}
	coin := func() bool { return r.IntN(2) == 0 }
	for i, name := range []string{"a", "b"} {
		if coin() {
			continue
		}
		at := place("disks[" + name + "]")
		d := qemuargs.Disk{Name: name, Driver: qemuargs.VirtioBlk, PCI: &at, Image: c.image(name)}
		if i == 0 {
			d.IOThread, next.IOThreads = "iothread1", []qemuargs.IOThread{{ID: "iothread1"}}
		}
		next.Disks = append(next.Disks, d)
	}
	next.SCSI = c.now.SCSI
	for lun, name := range []string{"s", "t", "cd"} {
		if coin() {
			continue
		}
		if next.SCSI == nil {
			next.SCSI = &qemuargs.SCSI{Queues: 1, QueueSize: 256, PCI: place("scsi")}
		}
		d := qemuargs.Disk{Name: name, Driver: qemuargs.SCSIDisk, Bus: qemuargs.SCSIBus, LUN: &lun, Image: c.image(name)}
		if name == "cd" {
			d.Driver, d.ReadOnly, d.Image = qemuargs.SCSICD, true, qemuargs.Image{}
			if medium := r.IntN(3); medium > 0 {
				d.Image = qemuargs.Image{Path: fmt.Sprintf("%s/medium%d", c.dir, medium), Format: qemuargs.Raw}
			}
		}
		next.Disks = append(next.Disks, d)
	}
	if coin() && !slices.ContainsFunc(next.Disks, func(d qemuargs.Disk) bool { return d.Bus == qemuargs.SCSIBus }) {
		next.SCSI = nil
	}
	for i, name := range []string{"lan", "wan"} {
		if coin() {
			continue
		}
		next.NICs = append(next.NICs, qemuargs.NIC{Name: name, Driver: "virtio-net-pci-non-transitional",
			MAC: fmt.Sprintf("52:54:00:00:00:0%d", i), Queues: 1, PCI: place("nics[" + name + "]"), Down: coin()})
	}
	if n := len(next.CPU.Plugged); n < 2 && r.IntN(4) == 0 {
		next.CPU.Plugged = append(slices.Clone(next.CPU.Plugged),
			qemuargs.PluggedCPU{ID: fmt.Sprintf("cpu-%d-0-0", n+1), Socket: uint32(n + 1)})
	}
	return next
}

// image returns that of a disk in a volume, which is made where it is missing.
func (c *changing) image(name string) qemuargs.Image {
	return qemuargs.Image{Path: filepath.Join(c.dir, "volume-"+name, "disk.img"), Format: qemuargs.Raw,
		Volume: qemuargs.FileVolume, Create: 4 << 20}
}

// become makes the machine another, and checks that QEMU has what that one has.
func (c *changing) become(next qemuargs.Machine) {
	c.Helper()
	changes, restart := qemuargs.Become(&c.now, &next, c.sets)
	if len(restart) > 0 {
		c.Fatalf("needs a restart: %q", restart)
	}
	c.files = map[string]*os.File{}
	for _, name := range broughtTo(changes) {
		c.files[name], _ = newTap(c.T)
	}
	c.was = c.now
	done, err := c.run(c.Context(), changes)
	for _, f := range c.files {
		f.Close()
	}
	if err != nil || int(done) != len(changes) {
		c.Fatalf("%d of %d changes: %v", done, len(changes), err)
	}
	if more, left := qemuargs.Become(&c.now, &next, c.sets); len(more)+len(left) > 0 {
		c.Fatalf("there is more to do: %+v, %q", more, left)
	}
	c.agrees()
}

// agrees checks that QEMU has the devices, block nodes, backends and descriptor sets of the Machine, and no others.
func (c *changing) agrees() {
	c.Helper()
	want := map[string][]string{}
	for _, arg := range c.now.Args() {
		var p struct {
			ID       string `json:"id"`
			NodeName string `json:"node-name"`
			QOMType  string `json:"qom-type"`
		}
		text := qemuargs.Strings([]qemuargs.Arg{arg})
		if len(text) < 2 || json.Unmarshal([]byte(text[1]), &p) != nil {
			continue
		}
		switch {
		case arg.Flag == "-device":
			want["devices"] = append(want["devices"], p.ID)
		case arg.Flag == "-blockdev":
			want["nodes"] = append(want["nodes"], p.NodeName)
		case p.QOMType == "iothread":
			want["threads"] = append(want["threads"], p.ID)
		}
	}
	for _, set := range c.sets {
		want["sets"] = append(want["sets"], fmt.Sprint(set))
	}
	has := map[string][]string{}
	var peripherals []struct{ Name, Type string }
	c.ask("qom-list", map[string]any{"path": "/machine/peripheral"}, &peripherals)
	for _, p := range peripherals {
		if strings.HasPrefix(p.Type, "child<") {
			has["devices"] = append(has["devices"], p.Name)
		}
	}
	var nodes []struct {
		Name string `json:"node-name"`
	}
	c.ask("query-named-block-nodes", map[string]any{"flat": true}, &nodes)
	for _, n := range nodes {
		has["nodes"] = append(has["nodes"], n.Name)
	}
	var threads []struct{ ID string }
	c.ask("query-iothreads", nil, &threads)
	for _, th := range threads {
		has["threads"] = append(has["threads"], th.ID)
	}
	var sets []struct {
		ID int `json:"fdset-id"`
	}
	c.ask("query-fdsets", nil, &sets)
	for _, s := range sets {
		has["sets"] = append(has["sets"], fmt.Sprint(s.ID))
	}
	for _, what := range []string{"devices", "nodes", "threads", "sets"} {
		slices.Sort(want[what])
		slices.Sort(has[what])
		if !slices.Equal(want[what], has[what]) {
			c.Fatalf("QEMU has the %s %q, and the Machine %q", what, has[what], want[what])
		}
	}
}

func (c *changing) ask(command string, arguments, result any) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), testkit.Patience)
	defer cancel()
	if err := c.client.Execute(ctx, command, arguments, result); err != nil {
		c.Fatal(err)
	}
}

// becomesAtRandom makes a machine one random other after another.
func becomesAtRandom(t *testing.T, times int) {
	c := newChanging(t)
	for i := range 2 {
		if err := os.WriteFile(fmt.Sprintf("%s/medium%d", c.dir, i+1), make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"a", "b", "s", "t"} {
		if err := os.Mkdir(filepath.Join(c.dir, "volume-"+name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("the seed is %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range times {
		next := c.wanted(r)
		// A guest may have opened its drive.
		if slices.ContainsFunc(c.now.Disks, func(d qemuargs.Disk) bool { return d.Name == "cd" }) && r.IntN(2) == 0 {
			c.ask("blockdev-open-tray", map[string]any{"id": "disk-cd", "force": true}, nil)
		}
		c.become(next)
	}
}

// TestMachineBecomesAnyOther: after each of several random changes of a running Linux guest's machine, QEMU has what
// the Machine has, and there is nothing more to change.
func TestMachineBecomesAnyOther(t *testing.T) {
	t.Parallel()
	becomesAtRandom(t, 10)
}
