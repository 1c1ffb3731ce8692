package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
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
}

// arrival is what the server knows of the target's launcher. It is a peers.Target.
type arrival struct{ launcher atomic.Pointer[launched] }

func (a *arrival) Expects(context.Context, string) bool { return true }

// Prepare does nothing: the launcher is prepared already.
func (a *arrival) Prepare(context.Context, string, types.UID, *peers.Offer) (*peers.Answer, error) {
	return &peers.Answer{}, nil
}

func (a *arrival) State(ctx context.Context, _ string, _ types.UID) (net.Conn, error) {
	return a.launcher.Load().conn.CallForStream(ctx, control.CommandOpenChannel, nil)
}

// Disk fails: no disk is copied.
func (a *arrival) Disk(context.Context, string, types.UID, string) (net.Conn, error) {
	return nil, errors.New("no disk is copied")
}

func (a *arrival) Receive(ctx context.Context, _ string, _ types.UID) error {
	return a.launcher.Load().conn.Call(ctx, control.CommandReceive, nil, nil)
}

func newLink(r *run) *link {
	cas, _, err := authority.CAs(nil).Rotate(time.Now(), authority.New("virt-handler"))
	check(err)
	issue := func(role authority.Role, node string, names ...string) *tls.Certificate {
		subject := pkix.Name{Organization: []string{string(role)}, CommonName: node}
		certificate := &x509.Certificate{Subject: subject, ExtKeyUsage: []x509.ExtKeyUsage{role.ExtUsage()}, DNSNames: names}
		return must(cas.Certify(certificate, time.Now()))
	}
	client := issue(authority.HandlerClient, "source")
	server := issue(authority.HandlerServer, "target", authority.ServerName("target"))
	port := freePort()
	pool := func() (*x509.CertPool, error) { return authority.Pool(string(cas.Bundle())) }
	l := &link{target: &arrival{}, to: peers.Destination{Address: "127.0.0.1", Node: "target", Migration: "bench"}}
	l.client = peers.Client{Client: handlerapi.Client{Now: time.Now, Port: port, Roots: pool,
		Certificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return client, nil }}}
	s := &peers.Server{Target: l.target, Clock: clock.RealClock{}, Log: logr.Discard(),
		Address:     fmt.Sprintf("127.0.0.1:%d", port),
		Certificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return server, nil },
		Roots:       func(context.Context) (*x509.CertPool, error) { return pool() }}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = s.Start(ctx) }) // a server that does not serve is noticed by its clients
	r.after(func() error { cancel(); done.Wait(); return nil })
	return l
}

func freePort() int {
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// migrate has a guest boot in one launcher and move to another. The machine is the guest's, whose files are there until
// the end of the run's turn.
func (l *link) migrate(files *run, g traveller, in string) (took moved, machine *qemuargs.Machine) {
	files.turn(func(r *run) {
		source := g.launch(r, files.folder(in))
		machine = source.machine
		source.start(r)
		source.idle(r) // it has filled its memory
		target := g.launch(r, files.folder(in))
		request := control.StartRequest{Machine: *machine, Incoming: true}
		target.call(r, control.CommandStart, request, nil)
		target.comesTo(r, control.StateReceiving)
		l.target.launcher.Store(target)
		l.connect(r, source, g.bandwidth)
		took = l.move(r, source, target, g.bandwidth)
	})
	return took, machine
}

// connect connects the two launchers' channels, which carry no more than bandwidth, and waits for their end at the end
// of the turn.
func (l *link) connect(r *run, source *launched, bandwidth int64) {
	ours := must(source.conn.CallForStream(r, control.CommandOpenChannel, nil))
	var done sync.WaitGroup
	r.after(func() error { ours.Close(); done.Wait(); return nil })
	var theirs net.Conn
	r.await("the server listens", 50*time.Millisecond, patience, func() bool {
		var err error
		theirs, err = l.client.State(r, l.to)
		return err == nil
	})
	done.Go(func() { peers.Relay(context.Background(), ours, theirs, peers.NewPace(bandwidth)) })
}

// move times a migration over channels that are open.
func (l *link) move(r *run, source, target *launched, bandwidth int64) moved {
	warm(source.machine.MemoryBytes)
	begin := time.Now()
	check(l.client.Receive(r, l.to))
	var job control.JobReply
	source.call(r, control.CommandMigrate, control.MigrateRequest{BytesPerSecond: bandwidth,
		DowntimeMilliseconds: downtimeLimit, CompletionSeconds: 600, StallSeconds: 600}, &job)
	target.comesTo(r, control.StateReceived)
	target.call(r, control.CommandRun, control.RunRequest{}, nil)
	running := target.comesTo(r, control.StateRunning)
	// QEMU knows the downtime a moment after it has sent everything.
	sent := source.reports(r, "the job's end", func(s control.StateReport) bool {
		return len(s.Jobs) == 1 && s.Jobs[0].Finished()
	})
	if sent.Migration == nil {
		fail("the source does not report its downtime")
	}
	return moved{inMilliseconds(running.at.Sub(begin)), float64(sent.Migration.DowntimeMilliseconds)}
}

// launch launches a launcher whose guest this is.
func (v traveller) launch(r *run, folder string) *launched {
	l := launch(r, folder, v.bootSector())
	l.machine.MemoryBytes = v.memory
	return l
}
