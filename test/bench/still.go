package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"time"
)

// still measures a group that makes its rows itself.
func still(measure func(context.Context, *bench) ([]row, error)) func(*run) {
	return func(r *run) {
		rows, err := measure(r, r.bench)
		copy(r.rows, rows)
		check(err)
	}
}

func lookedAt(pid int, guestRAM int64) (m memory, err error) {
	err = caught(func() { m = memoryOf(pid, guestRAM) })
	return m, err
}

func awaited(from net.Conn, mark string) error { return caught(func() { until(from, mark) }) }

func carriedBack(port net.Conn, size int) (seconds float64, err error) {
	err = caught(func() { seconds = thereAndBack(port, size) })
	return seconds, err
}

// until reads up to a mark.
func until(from net.Conn, mark string) {
	check(from.SetReadDeadline(time.Now().Add(patience)))
	var all []byte
	for chunk := make([]byte, 4096); !bytes.Contains(all, []byte(mark)); {
		n, err := from.Read(chunk)
		all = append(all, chunk[:n]...)
		check(err, fmt.Sprintf("read up to %q, after %q", mark, all))
	}
}
