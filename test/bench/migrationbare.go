package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/kubeqemu/kubeqemu/controllers/node/peers"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

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
