package launcher

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/launchertest"
	"github.com/kubeqemu/kubeqemu/netsetup/dhcp"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

func encode(t *testing.T, value any) []byte {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestStart(t *testing.T) {
	t.Parallel()
	v := launch(t)
	before := time.Now()
	v.must(v.call(control.CommandStart, v.request, nil))
	preparing := v.expectState(control.StatePreparing)
	if preparing.Machine == nil || preparing.StartedAt != nil || preparing.QEMUPID != 0 {
		t.Errorf("while preparing: %+v", preparing)
	}
	running := v.expectState(control.StateRunning)
	if running.StartedAt == nil || running.StartedAt.Before(before) || running.StartedAt.After(time.Now()) {
		t.Errorf("started at %v, it was between %v and now", running.StartedAt, before)
	}
	if !reflect.DeepEqual(running.Machine, &v.request.Machine) {
		t.Errorf("machine %+v\nwas sent as %+v", running.Machine, v.request.Machine)
	}
	exe, err := os.Readlink("/proc/" + itoa(running.QEMUPID) + "/exe")
	real, _ := filepath.EvalSymlinks(v.QEMU)
	if err != nil || exe != real {
		t.Errorf("process %d runs %s, want %s (%v)", running.QEMUPID, exe, real, err)
	}
	v.stdout.Expect(banner)
	var state control.StateReport
	v.must(v.call(control.CommandQueryState, nil, &state))
	sameState(t, state, running)
}

func TestStartFails(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name            string
		spoil           func(v *vm)
		message, stderr string
	}{
		{"machine type", func(v *vm) { v.request.Machine.Type = "pc-q35-99.9" }, "exited with code 1",
			"unsupported machine type"},
		{"CPU model", func(v *vm) { v.request.Machine.CPU.Model = "Z80" }, "exited with code 1",
			"unable to find CPU model 'Z80'"},
		{"missing disk", func(v *vm) { v.must(os.Remove(v.path("guest.img"))) }, "exited with code 1",
			"No such file or directory"},
		{"disk that is no qcow2", func(v *vm) { v.request.Machine.Disks[0].Image.Format = qemuargs.QCOW2 },
			"exited with code 1", "not in qcow2 format"},
		{"memory that no node has", func(v *vm) { v.request.Machine.MemoryBytes = 1 << 50 }, "exited with code 1",
			"annot allocate memory"},
		{"no folder for the overlay", func(v *vm) {
			v.request.Machine.Disks[0].Overlay = &qemuargs.Overlay{Path: v.path("none/root.qcow2"), VirtualSize: 1 << 20}
		}, "make image of disk root: make a qcow2 image: ", ""},
		{"no folder for the seed", func(v *vm) {
			v.request.Machine.Disks[0].Image.Path = v.path("none/seed.iso")
			v.request.CloudInit = []control.CloudInitSeed{{Volume: "root"}}
		}, "write cloud-init seed root", ""},
		{"console socket that cannot be made", func(v *vm) { v.must(os.MkdirAll(v.ConsoleSocket+"/x", 0o700)) },
			"listen for consoles", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := launch(t)
			tt.spoil(v)
			v.must(v.call(control.CommandStart, v.request, nil))
			end := v.expectEnd(control.ReasonStartFailed, tt.message)
			if !strings.Contains(end.Stderr, tt.stderr) || end.Succeeded() {
				t.Errorf("QEMU's stderr in the termination: %q, want %q in it", end.Stderr, tt.stderr)
			}
			if all, err := os.ReadFile(v.path("stderr")); err != nil || !strings.Contains(string(all), tt.stderr) {
				t.Errorf("stderr %q (%v), want %q in it", all, err, tt.stderr)
			}
			v.expectState(control.StatePreparing)
			exited := v.expectState(control.StateExited)
			if exited.StartedAt != nil {
				t.Errorf("started at %v", exited.StartedAt)
			}
			if exited.QEMUPID != 0 {
				v.qemuGone(exited)
			}
		})
	}
}

func TestQEMUMissing(t *testing.T) {
	t.Parallel()
	v := prepareVM(t, func(c *Config) { c.QEMU = "/nonexistent/qemu" })
	v.run()
	v.expectEnd(control.ReasonStartFailed, "/nonexistent/qemu")
}

// TestGuestWritesIntoTheOverlay: what the guest writes goes into the overlay.
func TestGuestWritesIntoTheOverlay(t *testing.T) {
	t.Parallel()
	v := launch(t)
	disk := &v.request.Machine.Disks[0]
	disk.Overlay = &qemuargs.Overlay{Path: filepath.Join(v.Overlays, "root.qcow2"), VirtualSize: 1 << 20}
	before, err := os.ReadFile(disk.Image.Path)
	v.must(err)
	v.boot()
	console := attach(v)
	console.say("W")
	console.Expect("w")
	console.say("P")
	v.expectEnd(control.ReasonGuestShutdown, "")
	after, err := os.ReadFile(disk.Image.Path)
	v.must(err)
	if !bytes.Equal(before, after) {
		t.Error("the guest has written into its container disk's image")
	}
	out, err := exec.Command(launchertest.Program(v.T, "qemu-img"), "info", "--output=json",
		disk.Overlay.Path).CombinedOutput()
	var info struct {
		Format  string
		Size    int64  `json:"virtual-size"`
		Backing string `json:"backing-filename"`
	}
	if err := errors.Join(err, json.Unmarshal(out, &info)); err != nil || info.Format != "qcow2" || info.Size != 1<<20 ||
		info.Backing != "" {
		t.Errorf("overlay %+v, error %v: %s", info, err, out)
	}
	// The second sector holds what was written: a copy of the first.
	out, err = exec.Command("qemu-io", "-r", "-f", "qcow2", "-c", "read -P 0x55 1022 1", "-c", "read -P 0xaa 1023 1",
		disk.Overlay.Path).CombinedOutput()
	if err != nil || bytes.Contains(out, []byte("failed")) {
		t.Errorf("read the overlay: %v: %s", err, out)
	}
}

// TestStorageFull: the state names the disk and the error that the guest was
// paused for.
func TestStorageFull(t *testing.T) {
	t.Parallel()
	v := launch(t)
	full := v.path("full")
	v.must(os.Mkdir(full, 0o700), unix.Mount("none", full, "tmpfs", 0, "size=260k"))
	t.Cleanup(func() { unix.Unmount(full, unix.MNT_DETACH) })
	v.request.Machine.Disks[0].Overlay = &qemuargs.Overlay{Path: full + "/root.qcow2", VirtualSize: 1 << 20}
	v.boot()
	// Now there is no room for one cluster more.
	filler, err := os.Create(full + "/filler")
	v.must(err)
	for err == nil {
		_, err = filler.Write(make([]byte, 4096))
	}
	filler.Close()
	attach(v).say("W")
	paused := v.expectState(control.StatePaused)
	want := control.Pause{Status: control.PausedIOError, Disk: "root", Operation: "write",
		Error: "No space left on device", NoSpace: true}
	if paused.Pause == nil || *paused.Pause != want {
		t.Errorf("paused for %+v, want %+v", paused.Pause, want)
	}
}

func TestCloudInitSeed(t *testing.T) {
	t.Parallel()
	v := launch(t)
	seed := v.path("seed.iso")
	v.request.Machine.Disks = append(v.request.Machine.Disks,
		qemuargs.Disk{Name: "seed", Driver: qemuargs.VirtioBlk, ReadOnly: true,
			PCI: &qemuargs.PCIAddress{Bus: "pci.2"}, Image: qemuargs.Image{Path: seed, Format: qemuargs.Raw}})
	v.request.CloudInit = []control.CloudInitSeed{{Volume: "seed", InstanceID: "i-1", Hostname: "h",
		UserData: []byte("#cloud-config\nsecret: 1\n"), NetworkData: []byte("version: 2\n")}}
	v.boot()
	for name, want := range map[string]string{"user-data": "#cloud-config\nsecret: 1\n", "network-config": "version: 2\n",
		"meta-data": `{"instance-id":"i-1","local-hostname":"h"}` + "\n"} {
		out, err := exec.Command("isoinfo", "-R", "-i", seed, "-x", "/"+name).Output()
		if err != nil || string(out) != want {
			t.Errorf("%s: %q (%v), want %q", name, out, err, want)
		}
	}
	stat, err := os.Stat(seed)
	v.must(err)
	if stat.Mode().Perm() != 0o600 {
		t.Errorf("the seed, with a secret in it, has mode %v", stat.Mode())
	}
	if strings.Contains(v.log.String(), "secret") {
		t.Error("user data in the log")
	}
}

// TestDHCP: the server answers to the guest's address when a guest renews its lease. The test asks on a socket of
// the handler's, on loopback.
func TestDHCP(t *testing.T) {
	t.Parallel()
	v := launch(t)
	v.must(os.WriteFile(v.ResolvConf, []byte("search a.test b.test\nnameserver 127.0.0.53\nnameserver ::1\n"), 0o644))
	server, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 77, 0, 1)})
	v.must(err)
	socket, err := server.File()
	v.must(err)
	guest, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 77, 0, 2), Port: dhcpv4.ClientPort})
	v.must(err)
	defer guest.Close()
	mac := net.HardwareAddr{0x52, 0x54, 0, 0, 0, 1}
	v.request.DHCP = []control.DHCPServer{{NIC: "default",
		Lease: dhcp.Lease{ClientMAC: mac.String(), ClientIP: netip.MustParsePrefix("127.77.0.2/8"),
			ServerIP: netip.MustParseAddr("127.77.0.1")}}}
	v.boot(control.File{Name: control.DHCPFile("default"), File: socket})
	address := server.LocalAddr()
	server.Close()
	socket.Close()

	request, err := dhcpv4.New(dhcpv4.WithHwAddr(mac), dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest),
		dhcpv4.WithClientIP(net.IPv4(127, 77, 0, 2)))
	v.must(err)
	_, err = guest.WriteTo(request.ToBytes(), address)
	v.must(err, guest.SetReadDeadline(time.Now().Add(patience)))
	buffer := make([]byte, 2000)
	n, _, err := guest.ReadFrom(buffer)
	v.must(err)
	reply, err := dhcpv4.FromBytes(buffer[:n])
	v.must(err)
	if reply.MessageType() != dhcpv4.MessageTypeAck || !reply.YourIPAddr.Equal(net.IPv4(127, 77, 0, 2)) ||
		len(reply.DNS()) != 1 ||
		!reply.DNS()[0].Equal(net.IPv4(127, 0, 0, 53)) || strings.Join(reply.DomainSearch().Labels, " ") != "a.test b.test" {
		t.Errorf("reply %s", reply.Summary())
	}
	attach(v).say("P")
	v.termination()
	// A goroutine that reads from the socket lets it go a moment after it was closed.
	testkit.Eventually(t, "the end of the launcher's socket", func() error {
		again, err := net.ListenUDP("udp4", address.(*net.UDPAddr))
		if err != nil {
			return err
		}
		return again.Close()
	})
}

// TestDHCPRefusesLease: a lease that cannot be told to the guest is an error, and is not left out silently.
func TestDHCPRefusesLease(t *testing.T) {
	t.Parallel()
	v := launch(t)
	zero, err := os.Open("/dev/zero")
	v.must(err)
	defer zero.Close()
	v.request.DHCP = []control.DHCPServer{{NIC: "default", Lease: dhcp.Lease{ClientMAC: "none"}}}
	v.must(v.call(control.CommandStart, v.request, nil, control.File{Name: control.DHCPFile("default"), File: zero}))
	v.expectEnd(control.ReasonStartFailed, `serve DHCP to default: lease for MAC "none"`)
}

// TestIPv6RefusesLease: an address that cannot be told to the guest is an error, too. Both sockets have to come.
func TestIPv6RefusesLease(t *testing.T) {
	t.Parallel()
	v := launch(t)
	zero, err := os.Open("/dev/zero")
	v.must(err)
	defer zero.Close()
	v.request.IPv6 = []control.IPv6Server{{NIC: "default"}}
	router, server := control.File{Name: control.RouterFile("default"), File: zero},
		control.File{Name: control.DHCP6File("default"), File: zero}
	if err := v.call(control.CommandStart, v.request, nil, router); err == nil ||
		!strings.Contains(err.Error(), `"dhcp6/default"`) {
		t.Errorf("start without a socket: %v", err)
	}
	v.must(v.call(control.CommandStart, v.request, nil, router, server))
	v.expectEnd(control.ReasonStartFailed, "serve IPv6 to default: lease of address")
}

// TestSetLink: QEMU takes the links of cards up and down, before the guest runs and later, and the Machine says what
// they are.
func TestSetLink(t *testing.T) {
	t.Parallel()
	v := launch(t)
	var files []control.File
	for i, driver := range []string{"virtio-net-pci-non-transitional", "e1000e"} {
		tap, _ := newTap(t)
		defer tap.Close()
		name := string(rune('a' + i))
		files = append(files, control.File{Name: "tap/" + name + "/0", File: tap})
		v.request.Machine.NICs = append(v.request.Machine.NICs,
			qemuargs.NIC{Name: name, Driver: driver, MAC: "52:54:00:00:00:0" + name, Queues: 1,
				PCI: qemuargs.PCIAddress{Bus: fmt.Sprintf("pci.%d", 2+i)}, Down: i == 0})
	}
	down := func(report control.StateReport) (out string) {
		for _, n := range report.Machine.NICs {
			if n.Down {
				out += n.Name
			}
		}
		return out
	}
	report := v.boot(files...)
	if got := down(report); got != "a" {
		t.Errorf("down are %q", got)
	}
	m := *report.Machine
	for _, c := range []struct {
		nic  int
		down bool
		want string
	}{{1, true, "ab"}, {1, true, "ab"}, {0, false, "b"}, {1, false, ""}} {
		next := m
		next.NICs = slices.Clone(m.NICs)
		next.NICs[c.nic].Down = c.down
		job, now, err := v.becomes(next)
		if got := down(control.StateReport{Machine: &now}); err != nil || job.State != control.JobDone || got != c.want {
			t.Errorf("after %+v: %q, want %q: %+v, %v", c, got, c.want, job, err)
		}
		m = now
	}
}

// TestTapGoesWithQEMU: a tap goes with QEMU. The launcher does not hold it.
func TestTapGoesWithQEMU(t *testing.T) {
	t.Parallel()
	v := launch(t)
	tap, name := newTap(t)
	v.request.Machine.NICs = []qemuargs.NIC{{Name: "default", Driver: "virtio-net-pci-non-transitional",
		MAC: "52:54:00:00:00:01", MTU: 1400, Queues: 1, PCI: qemuargs.PCIAddress{Bus: "pci.2"}}}
	v.boot(control.File{Name: "tap/default/0", File: tap})
	tap.Close()
	if _, err := os.Stat("/sys/class/net/" + name); err != nil {
		t.Fatalf("QEMU does not hold the tap: %v", err)
	}
	v.must(unix.Kill(receiveState(v).QEMUPID, unix.SIGKILL))
	v.expectEnd(control.ReasonQEMUExited, "signal 9")
	// A child that another test has forked and not executed yet holds all files.
	testkit.Eventually(t, "the end of the tap", func() error {
		if _, err := os.Stat("/sys/class/net/" + name); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("it outlives QEMU: %w", err)
		}
		return nil
	})
}

func receiveState(v *vm) (state control.StateReport) {
	v.Helper()
	v.must(v.call(control.CommandQueryState, nil, &state))
	return state
}

// newTap makes a tap that goes when it is closed and carries nothing: it is never up.
func newTap(t *testing.T) (*os.File, string) {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatalf("open /dev/net/tun (run the tests as root): %v", err)
	}
	request, err := unix.NewIfreq("kqtest%d")
	if err != nil {
		t.Fatal(err)
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		t.Fatalf("make tap (run the tests as root): %v", err)
	}
	return os.NewFile(uintptr(fd), "tap"), request.Name()
}

// TestVMLeavesNothingBehind: when a VM has ended, no file of it is open and none of its goroutines runs, however far it
// came. The test is not parallel, so that the counts are this VM's.
func TestVMLeavesNothingBehind(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which would close files that were forgotten
	for name, live := range map[string]func(v *vm){
		"runs": func(v *vm) {
			v.boot()
			console := attach(v)
			v.must(v.call(control.CommandInspect, control.InspectRequest{}, nil))
			console.say("P")
			v.expectEnd(control.ReasonGuestShutdown, "")
		},
		"QEMU started, and the start failed": func(v *vm) {
			v.must(os.MkdirAll(v.ConsoleSocket+"/x", 0o700))
			v.must(v.call(control.CommandStart, v.request, nil))
			v.expectEnd(control.ReasonStartFailed, "listen for consoles")
		},
		"canceled while it waits for a disk": func(v *vm) {
			v.waitsForDisk()
			v.must(v.call(control.CommandStart, v.request, nil))
			v.log.Expect("waiting for a disk")
			v.cancel()
			v.expectEnd(control.ReasonNeverStarted, "the launcher is being ended")
		},
	} {
		t.Run(name, func(t *testing.T) {
			files, routines := openFiles(t), runtime.NumGoroutine()
			t.Run("VM", func(t *testing.T) { live(launch(t, func(c *Config) { c.DiskPatience = patience })) })
			// The copying goroutine of a closed connection ends a moment later.
			testkit.Eventually(t, "the end of all files and goroutines", func() error {
				if openFiles(t) <= files && runtime.NumGoroutine() <= routines {
					return nil
				}
				stacks := make([]byte, 1<<20)
				return fmt.Errorf("%d open files and %d goroutines, were %d and %d before:\n%s", openFiles(t),
					runtime.NumGoroutine(), files, routines, stacks[:runtime.Stack(stacks, true)])
			})
		})
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
