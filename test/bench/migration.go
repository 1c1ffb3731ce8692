package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubeqemu/kubeqemu/controllers/node/peers"
	"github.com/kubeqemu/kubeqemu/internal/authority"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

const (
	// dirtied is how much memory a guest that is not idle writes to, again and again.
	dirtied = 32 << 20
	// downtimeLimit of all migrations here, in milliseconds.
	downtimeLimit = 300
)

// traveller is a guest that moves.
type traveller struct {
	memory int64 // bytes
	busy   bool  // it writes to its memory all the time
	// bandwidth is what the migration may send in a second, in bytes; 0 is no limit.
	bandwidth int64
}

// gigabit is what a link of 1 Gbit/s carries in a second, in bytes. Most links between two nodes carry less than QEMU sends without a limit.
const gigabit = 1_000_000_000 / 8

func (v traveller) String() string {
	text := fmt.Sprintf("%d MiB, %s", v.memory>>20, map[bool]string{false: "idle", true: "writing to 32 MiB"}[v.busy])
	if v.bandwidth != 0 {
		text += fmt.Sprintf(", at most %d MB/s", v.bandwidth/1_000_000)
	}
	return text
}

// bootSector is a guest that fills three quarters of its memory, writes the banner, and then halts or writes on.
func (v traveller) bootSector() []byte {
	const origin, begin = 0x7c00, 1 << 20
	word := func(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }
	var code []byte
	emit := func(parts ...[]byte) {
		for _, p := range parts {
			code = append(code, p...)
		}
	}
	// 16 bits: load a flat segment for code and one for data, and go to 32 bits.
	const protected, table, pointer = 0x18, 0xc0, 0xf0
	emit([]byte{0xfa, 0x31, 0xc0, 0x8e, 0xd8}, // cli; xor ax, ax; mov ds, ax
		[]byte{0x0f, 0x01, 0x16, pointer, 0x7c},                // lgdt [pointer]
		[]byte{0x0f, 0x20, 0xc0, 0x0c, 0x01, 0x0f, 0x22, 0xc0}, // mov eax, cr0; or al, 1; mov cr0, eax
		[]byte{0xea, protected, 0x7c, 0x08, 0x00})              // jmp 8:protected
	code = append(code, make([]byte, protected-len(code))...)
	emit([]byte{0x66, 0xb8, 0x10, 0x00, 0x8e, 0xd8}, // mov ax, 16; mov ds, ax
		[]byte{0xbf}, word(begin), []byte{0xb9}, word(uint32(v.memory*3/4/4)), // mov edi, begin; mov ecx, words
		[]byte{0x89, 0x3f, 0x83, 0xc7, 0x04, 0x49, 0x75, 0xf8},               // fill: mov [edi], edi; add edi, 4; dec ecx; jnz fill
		[]byte{0x66, 0xba, 0xf8, 0x03, 0xb0, banner, 0xee, 0xb0, '\n', 0xee}) // mov dx, COM1; out banner and newline
	if v.busy {
		emit([]byte{0xbf}, word(begin), []byte{0xb9}, word(dirtied/4096), // again: mov edi, begin; mov ecx, pages
			[]byte{0xff, 0x07, 0x81, 0xc7}, word(4096), []byte{0x49, 0x75, 0xf5, 0xeb, 0xe9}) // next: inc [edi]; add edi, 4096; dec ecx; jnz next; jmp again
	} else {
		emit([]byte{0xf4, 0xeb, 0xfd}) // hlt; jmp to hlt
	}
	sector := make([]byte, 512)
	copy(sector, code)
	descriptors := []uint64{0, 0x00cf9a000000ffff, 0x00cf92000000ffff}
	for i, d := range descriptors {
		binary.LittleEndian.PutUint64(sector[table+8*i:], d)
	}
	binary.LittleEndian.PutUint16(sector[pointer:], uint16(8*len(descriptors)-1))
	binary.LittleEndian.PutUint32(sector[pointer+2:], origin+table)
	sector[510], sector[511] = 0x55, 0xaa
	return sector
}

// travellers are the guests that are measured, without a limit and with the link that two nodes often have. Then QEMU has the link's bandwidth as its limit, and
// the channel carries no more: for the last of a guest QEMU knows no limit.
func travellers() (all []traveller) {
	for _, bandwidth := range []int64{0, gigabit} {
		for _, memory := range []int64{256 << 20, 1 << 30} {
			for _, busy := range []bool{false, true} {
				all = append(all, traveller{memory, busy, bandwidth})
			}
		}
	}
	return all
}

// migrationRows: a guest moves from one launcher to another, over the mTLS channel of two virt-handlers, and beside it from one bare QEMU to another.
func migrationRows(ctx context.Context, b *bench) (rows []row, err error) {
	guests := travellers()
	for _, g := range guests {
		id := strings.NewReplacer(" ", "-", ",", "", "/", "-").Replace(g.String())
		for _, r := range []row{{ID: "migration-time-" + id, What: "migration, told to migrate → guest runs on the target, " + g.String()}, {ID: "migration-downtime-" + id, What: "its downtime by query-migrate"}} {
			bare := "migrate between two bare QEMUs, same arguments"
			if g.bandwidth != 0 {
				bare += ", channel of the same width"
			}
			r.Unit, r.Ours, r.Limit, r.OfRatio = milliseconds, series{Name: "two launchers, two virt-handlers"}, 1.2, true
			r.Beside = []series{{Name: bare}, {Name: "two bare QEMUs, two relays without TLS, return path"}}
			rows = append(rows, r)
		}
	}
	folder, err := os.MkdirTemp("", "kubeqemu-bench-")
	if err != nil {
		return rows, err
	}
	defer os.RemoveAll(folder)
	link, err := newLink()
	if err != nil {
		return rows, err
	}
	defer link.close()
	for round := range b.rounds + 1 {
		for i, g := range guests {
			own := filepath.Join(folder, fmt.Sprintf("%d-%d", round, i))
			ours, machine, err := link.migrate(ctx, b, g, own)
			if err != nil {
				return rows, fmt.Errorf("round %d, %s: %w", round, g, err)
			}
			bare, err := migrateBare(ctx, b.qemu, machine, own, g.bandwidth, direct)
			if err != nil {
				return rows, fmt.Errorf("round %d, %s, bare: %w", round, g, err)
			}
			farther, err := migrateBare(ctx, b.qemu, machine, own, g.bandwidth, relayed)
			if err = errors.Join(err, os.RemoveAll(own)); err != nil {
				return rows, fmt.Errorf("round %d, %s, bare through relays: %w", round, g, err)
			}
			b.say("migration, round %d, %s: %v, %v bare, %v bare with two relays", round, g, ours, bare, farther)
			if round == 0 {
				continue
			}
			total, downtime := &rows[2*i], &rows[2*i+1]
			add(&total.Ours, inMilliseconds(ours.total))
			add(&downtime.Ours, inMilliseconds(ours.downtime))
			for j, m := range []moved{bare, farther} {
				add(&total.Beside[j], inMilliseconds(m.total))
				add(&downtime.Beside[j], inMilliseconds(m.downtime))
			}
		}
	}
	return rows, nil
}

// moved is what a migration took.
type moved struct{ total, downtime time.Duration }

func (m moved) String() string {
	return fmt.Sprintf("%.2f s and %d ms", m.total.Seconds(), m.downtime.Milliseconds())
}

// link is the connection of two virt-handlers: the target's server, and the source's client.
type link struct {
	client peers.Client
	to     peers.Destination
	target *arrival
	stop   func()
}

// arrival is what the server knows of the target's launcher.
type arrival struct {
	mu       sync.Mutex
	launcher *launched
}

func (a *arrival) set(l *launched) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.launcher = l
}

func (a *arrival) get() *launched {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.launcher
}

// Expects is peers.Target's.
func (a *arrival) Expects(context.Context, string) bool { return true }

// Prepare is peers.Target's. The launcher is prepared already.
func (a *arrival) Prepare(context.Context, string, types.UID, *peers.Offer) (*peers.Answer, error) {
	return &peers.Answer{}, nil
}

// State is peers.Target's.
func (a *arrival) State(ctx context.Context, _ string, _ types.UID) (net.Conn, error) {
	return a.get().conn.CallForStream(ctx, control.CommandOpenChannel, nil)
}

// Disk is peers.Target's. No disk is copied.
func (a *arrival) Disk(context.Context, string, types.UID, string) (net.Conn, error) {
	return nil, errors.New("no disk is copied")
}

// Receive is peers.Target's.
func (a *arrival) Receive(ctx context.Context, _ string, _ types.UID) error {
	return a.get().conn.Call(ctx, control.CommandReceive, nil, nil)
}

func newLink() (*link, error) {
	cas, _, err := authority.CAs(nil).Rotate(time.Now(), authority.New("virt-handler"))
	if err != nil {
		return nil, err
	}
	issue := func(role authority.Role, node string) (*tls.Certificate, error) {
		names := &x509.Certificate{Subject: pkix.Name{Organization: []string{string(role)}, CommonName: node}, ExtKeyUsage: []x509.ExtKeyUsage{role.ExtUsage()}}
		if role == authority.HandlerServer {
			names.DNSNames = []string{authority.ServerName(node)}
		}
		return cas.Certify(names, time.Now())
	}
	client, err := issue(authority.HandlerClient, "source")
	if err != nil {
		return nil, err
	}
	server, err := issue(authority.HandlerServer, "target")
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	pool := func() (*x509.CertPool, error) { return authority.Pool(string(cas.Bundle())) }
	l := &link{target: &arrival{}, to: peers.Destination{Address: "127.0.0.1", Node: "target", Migration: "bench"}}
	l.client = peers.Client{Client: handlerapi.Client{Now: time.Now, Port: port, Roots: pool, Certificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return client, nil }}}
	s := &peers.Server{Target: l.target, Clock: clock.RealClock{}, Log: logr.Discard(), Address: fmt.Sprintf("127.0.0.1:%d", port),
		Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return server, nil }, Roots: func(context.Context) (*x509.CertPool, error) { return pool() }}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = s.Start(ctx) }) // a server that does not serve is noticed by its clients
	l.stop = func() { cancel(); done.Wait() }
	return l, nil
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

func (l *link) close() { l.stop() }

// migrate has a guest boot in one launcher and move to another. The machine is the guest's.
func (l *link) migrate(ctx context.Context, b *bench, g traveller, folder string) (took moved, machine *qemuargs.Machine, err error) {
	source, err := g.launch(ctx, b, filepath.Join(folder, "source"))
	if err != nil {
		return took, nil, err
	}
	defer func() { err = errors.Join(err, source.end()) }()
	if _, err := source.start(ctx); err != nil {
		return took, nil, err
	}
	if err := source.idle(ctx); err != nil {
		return took, nil, fmt.Errorf("wait until the guest has filled its memory: %w", err)
	}
	target, err := g.launch(ctx, b, filepath.Join(folder, "target"))
	if err != nil {
		return took, nil, err
	}
	defer func() { err = errors.Join(err, target.end()) }()
	request := control.StartRequest{Machine: *source.machine, Incoming: true}
	request.Needs = request.NeededFeatures()
	if err := target.conn.Call(ctx, control.CommandStart, request, nil); err != nil {
		return took, nil, fmt.Errorf("have the target wait for the guest: %w", err)
	}
	if _, err := target.comesTo(ctx, control.StateReceiving); err != nil {
		return took, nil, err
	}
	l.target.set(target)
	relayed, err := l.connect(ctx, source, g.bandwidth)
	if err != nil {
		return took, nil, err
	}
	defer relayed()
	took, err = l.move(ctx, source, target, g.bandwidth)
	return took, source.machine, err
}

// connect connects the two launchers' channels, which carry no more than bandwidth. The returned function waits for the end of the channel.
func (l *link) connect(ctx context.Context, source *launched, bandwidth int64) (wait func(), err error) {
	ours, err := source.conn.CallForStream(ctx, control.CommandOpenChannel, nil)
	if err != nil {
		return nil, fmt.Errorf("open the source's channel: %w", err)
	}
	var theirs net.Conn
	err = poll(ctx, patience, func() (bool, error) {
		theirs, err = l.client.State(ctx, l.to)
		return err == nil, nil // the server may not listen yet
	})
	if err != nil {
		ours.Close()
		return nil, err
	}
	var done sync.WaitGroup
	done.Go(func() { peers.Relay(context.Background(), ours, theirs, peers.NewPace(bandwidth)) })
	return func() { ours.Close(); done.Wait() }, nil
}

// move times a migration over channels that are open.
func (l *link) move(ctx context.Context, source, target *launched, bandwidth int64) (moved, error) {
	if err := warm(source.machine.MemoryBytes); err != nil {
		return moved{}, err
	}
	begin := time.Now()
	if err := l.client.Receive(ctx, l.to); err != nil {
		return moved{}, err
	}
	limits := control.MigrateRequest{BytesPerSecond: bandwidth, DowntimeMilliseconds: downtimeLimit, CompletionSeconds: 600, StallSeconds: 600}
	var job control.JobReply
	if err := source.conn.Call(ctx, control.CommandMigrate, limits, &job); err != nil {
		return moved{}, fmt.Errorf("tell the source to migrate: %w", err)
	}
	if _, err := target.comesTo(ctx, control.StateReceived); err != nil {
		return moved{}, err
	}
	if err := target.conn.Call(ctx, control.CommandRun, control.RunRequest{}, nil); err != nil {
		return moved{}, fmt.Errorf("let the guest run on the target: %w", err)
	}
	running, err := target.comesTo(ctx, control.StateRunning)
	if err != nil {
		return moved{}, err
	}
	// QEMU knows the downtime a moment after it has sent everything.
	sent, err := source.reports(ctx, "the job's end", func(r control.StateReport) bool { return len(r.Jobs) == 1 && r.Jobs[0].Finished() })
	if err != nil {
		return moved{}, err
	}
	if sent.Migration == nil {
		return moved{}, errors.New("the source does not report its downtime")
	}
	return moved{running.at.Sub(begin), time.Duration(sent.Migration.DowntimeMilliseconds) * time.Millisecond}, nil
}

// launch launches a launcher whose guest this is.
func (v traveller) launch(ctx context.Context, b *bench, folder string) (*launched, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	l, err := launch(ctx, b, folder)
	if err != nil {
		return nil, err
	}
	l.machine.MemoryBytes = v.memory
	file := filepath.Join(l.path("images"), diskVolume, "disk", "disk.img")
	if err := errors.Join(os.WriteFile(file, v.bootSector(), 0o644), os.Truncate(file, 1<<20)); err != nil {
		return nil, errors.Join(err, l.end())
	}
	return l, nil
}

// comesTo waits for a state, whatever states come before.
func (l *launched) comesTo(ctx context.Context, want control.State) (stateAt, error) {
	return l.reports(ctx, "state "+string(want), func(r control.StateReport) bool { return r.State == want })
}

// reports waits for a report.
func (l *launched) reports(ctx context.Context, what string, is func(control.StateReport) bool) (stateAt, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		select {
		case s := <-l.states:
			switch {
			case s.err != nil:
				return s, fmt.Errorf("read virt-launcher's state: %w", s.err)
			case is(s.StateReport):
				return s, nil
			case s.State == control.StateExited:
				return s, fmt.Errorf("wait for %s: the VM has ended", what)
			}
		case <-ctx.Done():
			return stateAt{}, fmt.Errorf("wait for %s: %w", what, ctx.Err())
		}
	}
}

// warm takes as much memory as a guest has, and gives it back, right before a target takes it. If the bench's machine is virtual, its hypervisor takes
// back memory that is free for some seconds. The first process to use such memory waits for the hypervisor: 1 s of CPU time for 768 MiB was seen. Without warm,
// the launchers waited, and the bare QEMUs got the memory of the launchers' guests.
func warm(bytes int64) error {
	memory, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("take memory: %w", err)
	}
	_ = unix.Madvise(memory, unix.MADV_HUGEPAGE) // as QEMU does for its guest; a kernel without huge pages has none for QEMU either
	for i := 0; i < len(memory); i += os.Getpagesize() {
		memory[i] = 1
	}
	return unix.Munmap(memory)
}

// route is how the bytes go from one bare QEMU to another.
type route int

const (
	// direct is a unix socket between the two, with one relay for its bandwidth, if the bandwidth has a limit. A downtime lasts until the source
	// has written all.
	direct route = iota
	// relayed is the route of launchers without TLS: two relays with TCP between them. QEMU's return path is on, as with launchers: a downtime
	// lasts until the target has loaded all.
	relayed
)

// passOn listens on a unix socket, and connects its first client with another socket, which carries no more than bandwidth.
func passOn(socket, to string, bandwidth int64, by route) (stop func(), err error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		from, err := listener.Accept()
		if err != nil {
			return
		}
		there, err := net.Dial("unix", to)
		if err == nil && by == relayed {
			var other net.Conn
			if other, err = overTCP(ctx, &done, there); err != nil {
				there.Close()
			}
			there = other
		}
		if err != nil {
			from.Close() // QEMU says that the migration failed
			return
		}
		peers.Relay(ctx, from, there, peers.NewPace(bandwidth))
	})
	return func() { listener.Close(); cancel(); done.Wait() }, nil
}

// overTCP relays a connection to one over TCP, whose other end it returns.
func overTCP(ctx context.Context, done *sync.WaitGroup, there net.Conn) (net.Conn, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	here, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		return nil, err
	}
	accepted, err := listener.Accept()
	if err != nil {
		here.Close()
		return nil, err
	}
	done.Go(func() { peers.Relay(ctx, accepted, there, nil) })
	return here, nil
}

// migrateBare does the same with two bare QEMUs and QEMU's own migrate.
func migrateBare(ctx context.Context, program string, m *qemuargs.Machine, folder string, bandwidth int64, by route) (took moved, err error) {
	// QEMU ends with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if _, err := makeOverlay(m); err != nil {
		return took, err
	}
	source, err := execBare(ctx, program, m)
	if err != nil {
		return took, err
	}
	defer func() { err = errors.Join(err, source.end()) }()
	if err := source.run(); err != nil {
		return took, err
	}
	source.serial.SetDeadline(time.Now().Add(patience))
	for said := [1]byte{}; said[0] != banner; {
		if _, err := source.serial.Read(said[:]); err != nil {
			return took, fmt.Errorf("wait until the guest has filled its memory: %w", err)
		}
	}
	socket := filepath.Join(folder, fmt.Sprint("socket", by))
	target, err := execBareWith(ctx, program, []string{"-incoming", "unix:" + socket}, m)
	if err != nil {
		return took, err
	}
	defer func() { err = errors.Join(err, target.end()) }()
	limits := map[string]any{"max-bandwidth": cmp.Or(bandwidth, math.MaxInt32<<10), "downtime-limit": downtimeLimit}
	capabilities := map[string]any{"capabilities": []any{map[string]any{"capability": "return-path", "state": by == relayed}}}
	if err := errors.Join(target.ask("qmp_capabilities", nil, nil), target.ask("migrate-set-capabilities", capabilities, nil),
		source.ask("migrate-set-capabilities", capabilities, nil), source.ask("migrate-set-parameters", limits, nil)); err != nil {
		return took, err
	}
	if bandwidth != 0 || by == relayed {
		stop, err := passOn(socket+"-link", socket, bandwidth, by)
		if err != nil {
			return took, err
		}
		defer stop()
		socket += "-link"
	}
	if err := warm(m.MemoryBytes); err != nil {
		return took, err
	}
	return travel(ctx, source, target, "unix:"+socket)
}

// travel times QEMU's migrate.
func travel(ctx context.Context, source, target *bareQEMU, to string) (took moved, err error) {
	begin := time.Now()
	if err := source.ask("migrate", map[string]any{"uri": to}, nil); err != nil {
		return took, err
	}
	var state struct {
		Status   string `json:"status"`
		Downtime int64  `json:"downtime"`
	}
	err = askOften(ctx, func() (bool, error) {
		if err := source.ask("query-migrate", nil, &state); err != nil {
			return false, err
		}
		if state.Status == "failed" {
			return false, errors.New("the migration failed")
		}
		return state.Status == "completed", nil
	})
	if err != nil {
		return took, err
	}
	// The target takes the last of it after the source has sent it.
	err = askOften(ctx, func() (bool, error) {
		var status struct {
			Status string `json:"status"`
		}
		err := target.ask("query-status", nil, &status)
		return status.Status == "paused", err
	})
	if err == nil {
		err = target.ask("cont", nil, nil)
	}
	return moved{time.Since(begin), time.Duration(state.Downtime) * time.Millisecond}, err
}

// askOften asks every 2 ms until the answer is yes: what is asked for is timed.
func askOften(ctx context.Context, ask func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if ok, err := ask(); ok || err != nil {
			return err
		}
		if err := pause(ctx, 2*time.Millisecond); err != nil {
			return err
		}
	}
}
