package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// debian makes a guest the demo's Debian guest, with a user demo and a key of the user's. Both its cards ask for their addresses.
func debian(key string) func(*v1.VirtualMachineInstanceSpec) {
	return func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Memory.Guest = ptr.To(resource.MustParse("384Mi"))
		s.Volumes[0].ContainerDisk.Image = "localhost/kubeqemu/debian-container-disk:dev"
		s.Domain.Devices.Disks = append(s.Domain.Devices.Disks, v1.Disk{Name: "seed", Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}})
		s.Volumes = append(s.Volumes, v1.Volume{Name: "seed", CloudInitNoCloud: &v1.CloudInitNoCloudSource{
			UserData:    "#cloud-config\nusers:\n- name: demo\n  shell: /bin/bash\n  sudo: ALL=(ALL) NOPASSWD:ALL\n  ssh_authorized_keys: ['" + key + "']\n",
			NetworkData: "version: 2\nethernets:\n  enp1s0: {dhcp4: true}\n  enp2s0: {dhcp4: true}\n"}})
	}
}

// ssh is the OpenSSH client in a network, as the user demo of a guest there.
func (l lan) ssh(ctx context.Context, identity, address, command string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", "--net="+l.netns.Path(), "ssh", "-F", "none", "-i", identity, "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no",
		"-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=20", "-o", "LogLevel=ERROR", "demo@"+address, command)
}

// report is a line of the guest's: how far it has counted, how long it is up, and which boot that is.
type report struct {
	count int
	up    float64
	boot  string
}

// session is an SSH session in which a guest counts. It writes each number to its disk with fsync before it tells the number.
type session struct {
	mu    sync.Mutex
	last  report
	at    time.Time
	gap   time.Duration // the longest wait for a line
	ended error
	done  chan struct{}
}

const countsAloud = `i=0; while :; do i=$((i+1)); echo $i >>numbers; sync numbers; echo $i $(cut -d' ' -f1 /proc/uptime) $(cat /proc/sys/kernel/random/boot_id); sleep 0.1; done`

// count begins a session.
func (l lan) count(identity, address string) *session {
	l.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	command := l.ssh(ctx, identity, address, countsAloud)
	out, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		cancel()
		l.t.Fatal(err)
	}
	s := &session{done: make(chan struct{})}
	go func() {
		defer close(s.done)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if err := s.tell(lines.Text()); err != nil {
				s.end(err)
				break
			}
		}
		cancel()
		s.end(errors.Join(errors.New("the session has ended"), lines.Err(), command.Wait()))
	}()
	l.t.Cleanup(func() { cancel(); <-s.done })
	return s
}

// tell notes a line.
func (s *session) tell(line string) error {
	var r report
	if _, err := fmt.Sscan(line, &r.count, &r.up, &r.boot); err != nil {
		return fmt.Errorf("the guest says %q: %w", line, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.count != s.last.count+1 || r.up < s.last.up || s.last.count > 0 && r.boot != s.last.boot {
		return fmt.Errorf("after %+v, the guest says %+v", s.last, r)
	}
	if s.last.count > 0 {
		s.gap = max(s.gap, time.Since(s.at))
	}
	s.last, s.at = r, time.Now()
	return nil
}

// end notes the first error.
func (s *session) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended == nil {
		s.ended = err
	}
}

// now is the last line.
func (s *session) now() (report, time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last, s.gap, s.ended
}

// TestMigrationSSH: a Debian guest counts in an SSH session over a LAN, writes each number with fsync, and answers TCP. It goes 20 times
// back and forth between two nodes, and neither the session nor the connection ends.
func TestMigrationSSH(t *testing.T) {
	newSecondNode(t)
	ns := namespace(t)
	l := newLAN(t)
	installMultus(t)
	apply(t, ns, lanNetwork)
	identity := filepath.Join(t.TempDir(), "key")
	if _, err := output("", "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", identity); err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(identity + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	kubectl(t, "cordon", secondName)
	m := createVM(t, ns, "debian", v1.RunStrategyAlways, debian(strings.TrimSpace(string(key))), on("lan", "lan"))
	m.runs("")
	kubectl(t, "uncordon", secondName)
	address := l.awaitLease(m.vmi, "lan")
	must := func(command string) string {
		t.Helper()
		text, err := l.ssh(t.Context(), identity, address, command).Output()
		if err != nil {
			t.Fatalf("%s: %v: %s", command, err, text)
		}
		return strings.TrimSpace(string(text))
	}
	if err := poll(func() error { return l.ssh(t.Context(), identity, address, "true").Run() }); err != nil {
		t.Fatalf("SSH to %s: %v", address, err)
	}
	must("cloud-init status --wait")
	const echo = `import socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile: self.wfile.write(line)
socketserver.ThreadingTCPServer(("", 7777), Echo).serve_forever()`
	must("sudo systemd-run --unit=echo python3 -c '" + echo + "'")
	err = poll(func() error {
		conn, err := l.dial(address, 7777)
		if err == nil {
			conn.Close()
		}
		return err
	})
	if err != nil {
		t.Fatalf("the guest's echo: %v", err)
	}
	s, talk := l.count(identity, address), l.talkTo(address, 7777)
	counted := func() report {
		t.Helper()
		r, _, err := s.now()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	uid := m.uid()
	for i := range 20 {
		to, before := []string{secondName, firstName}[i%2], counted()
		begun := time.Now()
		state := m.migrate(fmt.Sprint("move-", i), nil).ends(v1.MigrationSucceeded)
		downtime, _ := cost(state)
		t.Logf("to %s in %.1f s; QEMU's downtime is %d ms", to, time.Since(begun).Seconds(), downtime)
		if now := m.get(); now.UID != uid || now.Status.NodeName != to || now.Status.Phase != v1.Running {
			t.Fatalf("VMI %s is %s on %s", now.UID, now.Status.Phase, now.Status.NodeName)
		}
		err := pollFor(echoPatience, func() error {
			if now := counted(); now.count < before.count+10 {
				return fmt.Errorf("the session has told %+v, and before the migration %+v", now, before)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := talk.over(); err != nil {
		t.Errorf("the connection: %v", err)
	}
	last := counted()
	written := must(`sudo sh -c 'sync; echo 3 >/proc/sys/vm/drop_caches'; awk '$1 != NR {print "line " NR " is " $1; exit} END {print NR}' numbers`)
	if int(seconds(t, written)) < last.count {
		t.Errorf("the guest has told %d, and its disk has %s", last.count, written)
	}
	_, gap, _ := s.now()
	t.Logf("counted to %d in one session; the longest wait for a number is %d ms, and for one of %d echoes %d ms", last.count, gap.Milliseconds(), talk.lines, talk.gap.Milliseconds())
	kubectl(t, "-n", ns, "delete", "vm", m.name, "--timeout=600s")
}
