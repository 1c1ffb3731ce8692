package resolve

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/hugepagetest"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/diskimage"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// isForeign reports whether a case's guest is of another architecture than the QEMUs that the tests have. Then
// TestARM64Starts starts it.
func isForeign(m *qemuargs.Machine) bool { return m.Arch != qemuargs.AMD64 }

// TestGoldensStart starts every golden machine in the real QEMUs, the host's and
// the image's: a golden only proves that nothing changed, this that QEMU takes it.
// Disks are files of the right format in a temporary folder, taps are real ones
// where the test may make them; guests are emulated, whatever the golden says,
// since not every machine that runs tests has a KVM that works.
func TestGoldensStart(t *testing.T) {
	started := map[string]bool{}
	for _, q := range qemus(t) {
		for _, dir := range cases(t, machineCases) {
			vmi, host := load(t, dir, hosts[0])
			host.Accelerator, host.QEMUVersion = qemuargs.TCG, q.version
			machine, errs := Machine(vmi, host)
			if len(errs) > 0 || isForeign(machine) || isAgain(started, q, machine) {
				continue
			}
			t.Run(filepath.Base(dir)+"/"+q.version, func(t *testing.T) {
				besideOthers(t, machine)
				if refusal := lacksDevice(machine); refusal != "" {
					refusesDevice(t, q, machine, refusal)
					return
				}
				said := startStopped(t, q, machine)
				if m := vmi.Spec.Domain.Machine; m != nil && m.Type != "" {
					// That it is old is its owner's choice.
					said = regexp.MustCompile(`(?m)^.*[Mm]achine type.*deprecated.*$`).ReplaceAllString(said, "")
				}
				if strings.Contains(said, "deprecated") {
					t.Errorf("QEMU %s warns:\n%s", q.version, said)
				}
			})
		}
	}
}

// TestMovedMachineStartsInAnotherQEMU: a machine keeps what its guest sees where another QEMU runs it.
func TestMovedMachineStartsInAnotherQEMU(t *testing.T) {
	both := qemus(t)
	old, new := both[0], both[1]
	started := map[string]bool{}
	for _, dir := range cases(t, machineCases) {
		vmi, host := load(t, dir, hosts[0])
		host.Accelerator, host.QEMUVersion = qemuargs.TCG, old.version
		machine, errs := Machine(vmi, host)
		if len(errs) > 0 || isForeign(machine) {
			continue
		}
		machine.MonitorObject = monitorObject(new.version)
		if lacksDevice(machine) != "" || isAgain(started, new, machine) {
			continue // TestGoldensStart has why
		}
		t.Run(filepath.Base(dir), func(t *testing.T) {
			besideOthers(t, machine)
			startStopped(t, new, machine)
		})
	}
}

// besideOthers lets the test run beside others, unless it takes much of the machine's memory for huge pages.
func besideOthers(t *testing.T, m *qemuargs.Machine) {
	t.Helper()
	if m.HugePageBytes == 0 {
		t.Parallel()
	}
}

// ownWords matches what is each guest's own, and what relocate changes: names, UUIDs, MAC addresses and paths.
var ownWords = regexp.MustCompile(`^guest=[^,]*|"/[^"]*"|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|([0-9a-f]{2}:){5}[0-9a-f]{2}`)

// isAgain reports whether QEMU was given the same arguments before, but for the guest's own words, and remembers them.
func isAgain(started map[string]bool, q program, m *qemuargs.Machine) bool {
	key := q.version
	for _, word := range qemuargs.Strings(m.Args()) {
		key += "\n" + ownWords.ReplaceAllString(word, "X")
	}
	again := started[key]
	started[key] = true
	return again
}

// lacksDevice returns a part of what QEMU says where the machine needs a device that there is not: a disk that takes
// SCSI commands, or a network card of the node. It is empty for other machines.
func lacksDevice(m *qemuargs.Machine) string {
	if slices.ContainsFunc(m.Disks, func(d qemuargs.Disk) bool { return d.Driver == qemuargs.SCSIBlock }) {
		return "SG_IO"
	}
	for _, nic := range m.NICs {
		if nic.HostDevice != "" {
			return "vfio /sys/bus/pci/devices/" + nic.HostDevice + ": no such host device"
		}
	}
	return ""
}

// refusesDevice: QEMU knows all of the machine's arguments, and then asks the device.
func refusesDevice(t *testing.T, q program, m *qemuargs.Machine, refusal string) {
	relocate(t, m)
	_, files := inherited(t, m)
	cmd := q.command(qemuargs.Strings(m.Args())...)
	cmd.ExtraFiles = files
	said, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(said), refusal) {
		t.Errorf("QEMU %s ended with %v: %s", q.version, err, said)
	}
}

// startStopped starts the machine and returns what QEMU said on standard error.
func startStopped(t *testing.T, q program, m *qemuargs.Machine) (said string) {
	relocate(t, m)
	lendPages(t, m)
	monitor, files := inherited(t, m)
	args := m.Args()
	cmd := q.command(qemuargs.Strings(args)...)
	cmd.ExtraFiles = files
	var stderr strings.Builder
	cmd.Stderr = &stderr
	defer func() { said = stderr.String() }()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// QEMU has its own copies. Were the monitor's other end open here too, a QEMU that ends would be waited for until the
	// deadline.
	for _, f := range files {
		f.Close()
	}
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("QEMU's stderr:\n%s\ncommand line:\n%s", stderr.String(), qemuargs.Quote(q.path, args))
		}
	}()
	monitor.SetDeadline(time.Now().Add(testkit.Patience))
	r := bufio.NewReader(monitor)
	ask := func(command string) map[string]any {
		t.Helper()
		if command != "" {
			if _, err := monitor.Write([]byte(`{"execute":"` + command + `"}`)); err != nil {
				t.Fatalf("%s: %v", command, err)
			}
		}
		for {
			line, err := r.ReadBytes('\n')
			if err != nil {
				t.Fatalf("QEMU did not come up: %v", err)
			}
			var reply map[string]any
			if err := json.Unmarshal(line, &reply); err != nil {
				t.Fatal(err)
			}
			if reply["event"] == nil { // QEMU tells that it is connected to passt
				return reply
			}
		}
	}
	if greeting := ask(""); greeting["QMP"] == nil {
		t.Fatalf("no greeting: %v", greeting)
	}
	ask("qmp_capabilities")
	status, _ := ask("query-status")["return"].(map[string]any)
	if status["status"] != "prelaunch" {
		t.Errorf("status %v, want prelaunch: QEMU must wait for cont", status)
	}
	return ""
}

// acpiHeader is the size of the header of an ACPI table, in bytes.
const acpiHeader = 36

// relocate gives the machine files that exist.
func relocate(t *testing.T, m *qemuargs.Machine) {
	dir := t.TempDir()
	for i := range m.Disks {
		if m.Disks[i].Image.Path != "" || m.Disks[i].Image.Volume == qemuargs.HandedOut {
			relocateDisk(t, dir, &m.Disks[i])
		}
	}
	if m.Kernel != nil {
		for _, path := range []*string{&m.Kernel.Path, &m.Kernel.Initrd} {
			if *path != "" {
				*path = filepath.Join(dir, filepath.Base(*path))
				// QEMU reads the header of the kernel before it starts.
				if err := os.WriteFile(*path, bzImage(), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if f := m.Firmware; f != nil {
		f.Code, f.Variables.Path = filepath.Join(dir, "code.fd"), filepath.Join(dir, "variables.fd")
		for path, size := range map[string]int64{f.Code: f.CodeSize(), f.Variables.Path: f.VariablesSize()} {
			if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, size)); err != nil {
				t.Fatal(err)
			}
		}
		if f.Format == qemuargs.QCOW2 {
			if out, err := exec.Command("qemu-img", "create", "-q", "-f", "qcow2", f.Code, fmt.Sprint(f.CodeSize())).CombinedOutput(); err != nil {
				t.Fatalf("make the firmware: %v: %s", err, out)
			}
		}
	}
	for i := range m.ACPITables {
		table := &m.ACPITables[i]
		table.Path = filepath.Join(dir, table.Name)
		// The table's header: signature and length, and nothing that QEMU looks at.
		header := binary.LittleEndian.AppendUint32([]byte(table.Name), acpiHeader)
		if err := os.WriteFile(table.Path, append(header, make([]byte, acpiHeader-len(header))...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if m.Graphics != nil {
		m.Graphics.Socket = filepath.Join(dir, "vnc")
	}
}

// relocateDisk gives the disk images that exist.
func relocateDisk(t *testing.T, dir string, d *qemuargs.Disk) {
	t.Helper()
	d.Image.Path = filepath.Join(dir, d.Name+","+string(d.Image.Format))
	create(t, d.Image.Path, d.Image.Format)
	if d.Image.Volume == qemuargs.BlockVolume {
		d.Image.Path = loopDevice(t, d.Image.Path)
	}
	if d.Overlay != nil {
		d.Overlay.Path = filepath.Join(dir, d.Name+".overlay")
		create(t, d.Overlay.Path, qemuargs.QCOW2)
	}
	// Temporary folders may be in memory.
	direct := diskimage.DirectWorks(dir)
	d.Image.Direct = d.Image.Direct && direct
	if d.Overlay != nil {
		d.Overlay.Direct = d.Overlay.Direct && direct
	}
	if d.AIO == qemuargs.Native && !direct {
		d.AIO = qemuargs.Threads
	}
}

// lendPages lends the machine huge pages. Few kernels have 1 GiB in one piece once they run: then pages of 2 MiB are
// the machine's, with the same arguments but for the number.
func lendPages(t *testing.T, m *qemuargs.Machine) {
	if m.HugePageBytes == 0 {
		return
	}
	err := hugepagetest.Lend(t, m.HugePageBytes, m.MemoryBytes)
	if err != nil && m.HugePageBytes > 2<<20 {
		t.Logf("pages of 2 MiB instead of %d MiB: %v", m.HugePageBytes>>20, err)
		m.HugePageBytes = 2 << 20
		err = hugepagetest.Lend(t, m.HugePageBytes, m.MemoryBytes)
	}
	if err != nil {
		t.Fatalf("THIS MACHINE HAS NO HUGE PAGES, and they cannot be tested (run the tests as root): %v", err)
	}
}

// loopDevice makes a block device of a file.
func loopDevice(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.Command("losetup", "--find", "--show", path).CombinedOutput()
	if err != nil {
		t.Fatalf("THIS MACHINE HAS NO LOOP DEVICES, and block volumes cannot be tested: losetup: %v: %s", err, out)
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() { exec.Command("losetup", "--detach", device).Run() })
	return device
}

// bzImage returns the least that QEMU takes for a Linux kernel (the kernel's
// Documentation/arch/x86/boot.rst): a boot sector and four sectors of setup.
func bzImage() []byte {
	image := make([]byte, 16*512)
	image[0x1f1] = 4                                    // setup_sects
	copy(image[0x202:], "HdrS\x0c\x02")                 // protocol 2.12
	image[0x211] = 1                                    // LOADED_HIGH
	copy(image[0x22c:], []byte{0xff, 0xff, 0xff, 0x7f}) // initrd_addr_max
	copy(image[0x238:], []byte{0xff, 0x07, 0, 0})       // cmdline_size
	return image
}

func create(t *testing.T, path string, format qemuargs.ImageFormat) {
	t.Helper()
	if out, err := exec.Command("qemu-img", "create", "-q", "-f", string(format), path, "1M").CombinedOutput(); err != nil {
		t.Fatalf("qemu-img: %v: %s", err, out)
	}
}

// inherited makes the files of Machine.Files and returns this end of QMP.
func inherited(t *testing.T, m *qemuargs.Machine) (net.Conn, []*os.File) {
	t.Helper()
	var files []*os.File
	add := func(f *os.File) {
		files = append(files, f)
		t.Cleanup(func() { f.Close() })
	}
	pair := func() net.Conn {
		ours, theirs := testkit.SocketFiles(t)
		add(theirs)
		defer ours.Close()
		conn, err := net.FileConn(ours)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	var monitor net.Conn
	taps := map[string]string{}
	for _, i := range m.Inherits() {
		switch i.Kind {
		case qemuargs.InheritedQMP:
			monitor = pair()
		case qemuargs.InheritedSerial, qemuargs.InheritedAgent, qemuargs.InheritedLifeline, qemuargs.InheritedPasstLifeline:
			pair()
		case qemuargs.InheritedTPM:
			add(tpmEmulator(t))
		case qemuargs.InheritedFileSystem:
			add(virtiofsd(t))
		case qemuargs.InheritedPasst:
			pair() // QEMU asks nothing of it
		case qemuargs.InheritedTap:
			if taps[i.Name] == "" {
				taps[i.Name] = "kqtest%d"
			}
			nic := slices.IndexFunc(m.NICs, func(n qemuargs.NIC) bool { return n.Name == i.Name })
			var queue *os.File
			queue, taps[i.Name] = tap(t, taps[i.Name], m.NICs[nic].Queues > 1)
			add(queue)
		case qemuargs.InheritedVariables:
			f, err := os.OpenFile(m.Firmware.Variables.Path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			add(f)
		case qemuargs.InheritedImage:
			d := m.Disks[slices.IndexFunc(m.Disks, func(d qemuargs.Disk) bool { return d.Name == i.Name })]
			f, err := os.Open(d.Image.Path) // relocateDisk made it; on the command line is the descriptor's set
			if err != nil {
				t.Fatal(err)
			}
			if d.Image.Direct {
				err = diskimage.SetDirect(f)
			}
			if err != nil {
				t.Fatal(err)
			}
			add(f)
		case qemuargs.InheritedDisk:
			d := m.Disks[slices.IndexFunc(m.Disks, func(d qemuargs.Disk) bool { return d.Name == i.Name })]
			flags := os.O_RDWR
			if d.ReadOnly || d.Overlay != nil {
				flags = os.O_RDONLY
			}
			if d.Image.Direct {
				flags |= unix.O_DIRECT
			}
			f, err := os.OpenFile(d.Image.Path, flags, 0)
			if err != nil {
				t.Fatal(err)
			}
			add(f)
		}
	}
	return monitor, files
}

// tap makes a queue of a tap that goes when it is closed and carries nothing:
// it is never up. It returns the tap's name, for further queues.
func tap(t *testing.T, name string, multiQueue bool) (*os.File, string) {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatalf("open /dev/net/tun (run the tests as root): %v", err)
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		t.Fatal(err)
	}
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if multiQueue {
		flags |= unix.IFF_MULTI_QUEUE
	}
	request.SetUint16(flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		t.Fatalf("make tap (run the tests as root): %v", err)
	}
	return os.NewFile(uintptr(fd), "tap"), request.Name()
}
