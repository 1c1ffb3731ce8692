package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/kubeqemu/kubeqemu/controllers/node/peers"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// route is how the bytes go from one bare QEMU to another.
type route int

const (
	// direct is a unix socket between the two, with one relay for its bandwidth, if the bandwidth has a limit. A downtime
	// lasts until the source has written all.
	direct route = iota
	// relayed is the route of launchers without TLS: two relays with TCP between them. QEMU's return path is on, as with
	// launchers: a downtime lasts until the target has loaded all.
	relayed
)

// passOn listens on a unix socket until the end of the turn, and connects its first client with another socket, which
// carries no more than bandwidth.
func passOn(r *run, socket, to string, bandwidth int64, by route) {
	listener := must(net.Listen("unix", socket))
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		from, err := listener.Accept()
		if err != nil {
			return
		}
		there, err := net.Dial("unix", to)
		if err == nil && by == relayed {
			there, err = overTCP(ctx, &done, there)
		}
		if err != nil {
			from.Close() // QEMU says that the migration failed
			return
		}
		peers.Relay(ctx, from, there, peers.NewPace(bandwidth))
	})
	r.after(func() error { listener.Close(); cancel(); done.Wait(); return nil })
}

// overTCP relays a connection to one over TCP, whose other end it returns.
func overTCP(ctx context.Context, done *sync.WaitGroup, there net.Conn) (here net.Conn, err error) {
	var accepted net.Conn
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		defer listener.Close()
		here, err = net.Dial("tcp", listener.Addr().String())
	}
	if err == nil {
		accepted, err = listener.Accept()
	}
	if err != nil {
		there.Close()
		return nil, err
	}
	done.Go(func() { peers.Relay(ctx, accepted, there, nil) })
	return here, nil
}

// migrateBare does the same with two bare QEMUs and QEMU's own migrate.
func migrateBare(r *run, m *qemuargs.Machine, folder string, bandwidth int64, by route) (took moved) {
	r.turn(func(r *run) {
		r.lockThread()
		makeOverlay(m)
		source := execBare(r, m, nil)
		source.run()
		until(source.serial, string(banner)) // it has filled its memory
		socket := filepath.Join(folder, fmt.Sprint("socket", by))
		target := execBare(r, m, nil, "-incoming", "unix:"+socket)
		target.ask("qmp_capabilities", nil, nil)
		for _, q := range []*bareQEMU{target, source} {
			q.ask("migrate-set-capabilities", map[string]any{
				"capabilities": []any{map[string]any{"capability": "return-path", "state": by == relayed}}}, nil)
		}
		source.ask("migrate-set-parameters", map[string]any{
			"max-bandwidth": cmp.Or(bandwidth, math.MaxInt32<<10), "downtime-limit": downtimeLimit}, nil)
		if bandwidth != 0 || by == relayed {
			passOn(r, socket+"-link", socket, bandwidth, by)
			socket += "-link"
		}
		warm(m.MemoryBytes)
		took = travel(r, source, target, "unix:"+socket)
	})
	return took
}

// travel times QEMU's migrate.
func travel(r *run, source, target *bareQEMU, to string) moved {
	const often = 2 * time.Millisecond // what is asked for is timed
	begin := time.Now()
	source.ask("migrate", map[string]any{"uri": to}, nil)
	var state struct {
		Status   string  `json:"status"`
		Downtime float64 `json:"downtime"`
	}
	r.await("the guest has moved", often, patience, func() bool {
		source.ask("query-migrate", nil, &state)
		if state.Status == "failed" {
			fail("the migration failed")
		}
		return state.Status == "completed"
	})
	// The target takes the last of it after the source has sent it.
	r.await("the target has the guest", often, patience, func() bool {
		var status struct {
			Status string `json:"status"`
		}
		target.ask("query-status", nil, &status)
		return status.Status == "paused"
	})
	target.ask("cont", nil, nil)
	return moved{inMilliseconds(time.Since(begin)), state.Downtime}
}
