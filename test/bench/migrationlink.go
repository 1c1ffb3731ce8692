package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubeqemu/kubeqemu/controllers/node/peers"
	"github.com/kubeqemu/kubeqemu/internal/authority"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

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
