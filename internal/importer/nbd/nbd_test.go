package nbd

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

func random(size int) []byte {
	p := make([]byte, size)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(p)
	return p
}

// start serves a source until the test ends.
func start(t *testing.T, source io.ReaderAt, size int64) (*Server, string) {
	t.Helper()
	return startTold(t, source, size, func(int64) {})
}

func startTold(t *testing.T, source io.ReaderAt, size int64, told func(int64)) (*Server, string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "socket")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	server, ended := New(source, size, told), make(chan error)
	go func() { ended <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return server, socket
}

func url(socket string) string { return "nbd+unix:///?socket=" + socket }

// TestQEMUImgReadsAndCannotWrite: qemu-img reads what there is, whatever the size, and cannot write.
func TestQEMUImgReadsAndCannotWrite(t *testing.T) {
	t.Parallel()
	content := random(5<<20 + 512)
	var told atomic.Int64
	server, socket := startTold(t, bytes.NewReader(content), int64(len(content)), told.Store)
	whole := filepath.Join(t.TempDir(), "whole")
	if out, err := exec.Command("qemu-img", "convert", "-f", "raw", "-O", "raw", url(socket), whole).CombinedOutput(); err != nil {
		t.Fatalf("qemu-img convert: %v: %s", err, out)
	}
	if got, err := os.ReadFile(whole); err != nil || !bytes.Equal(got, content) {
		t.Errorf("qemu-img read %d other bytes: %v", len(got), err)
	}
	if server.Served() != int64(len(content)) || told.Load() != server.Served() {
		t.Errorf("served %d bytes and told %d of %d", server.Served(), told.Load(), len(content))
	}
	if out, err := exec.Command("qemu-io", "-f", "raw", "-c", "write 0 512", url(socket)).CombinedOutput(); err == nil || !strings.Contains(string(out), "Permission denied") {
		t.Errorf("qemu-io write: %v: %s", err, out)
	}
	if err := server.Err(); err != nil {
		t.Error(err)
	}
}

type failing struct{ err error }

func (f failing) ReadAt([]byte, int64) (int, error) { return 0, f.err }

// TestClientIsToldOfASourceError: the client is told of an error, and the server keeps the first.
func TestClientIsToldOfASourceError(t *testing.T) {
	t.Parallel()
	fault := errors.New("the fault")
	server, socket := start(t, failing{fault}, 1<<20)
	if out, err := exec.Command("qemu-io", "-r", "-f", "raw", "-c", "read 0 512", url(socket)).CombinedOutput(); !strings.Contains(string(out), "Input/output error") {
		t.Errorf("qemu-io read: %v: %s", err, out)
	}
	if !errors.Is(server.Err(), fault) {
		t.Errorf("the server's error is %v", server.Err())
	}
}

// client talks to a server by hand.
type client struct {
	t    *testing.T
	conn net.Conn
}

func dial(t *testing.T, socket string, flags uint32) *client {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	c := &client{t, conn}
	if greeting := c.read(18); string(greeting[:16]) != "NBDMAGICIHAVEOPT" {
		t.Fatalf("greeting %q", greeting)
	}
	c.write(flags)
	return c
}

func (c *client) write(fields ...any) {
	for _, f := range fields {
		_ = binary.Write(c.conn, binary.BigEndian, f) // the server may have gone already
	}
}

func (c *client) read(n int) []byte {
	p := make([]byte, n)
	got, _ := io.ReadFull(c.conn, p)
	return p[:got]
}

func (c *client) option(option uint32, data []byte) {
	c.write(uint64(optionMagic), option, uint32(len(data)), data)
}

// reply reads the reply to an option.
func (c *client) reply() (kind uint32, data []byte) {
	c.t.Helper()
	p := c.read(20)
	if len(p) < 20 || binary.BigEndian.Uint64(p) != answerMagic {
		c.t.Fatalf("reply %x", p)
	}
	return binary.BigEndian.Uint32(p[12:]), c.read(int(binary.BigEndian.Uint32(p[16:])))
}

func (c *client) ended() bool {
	n, err := c.conn.Read(make([]byte, 1))
	return n == 0 && err != nil
}

// TestAnswersInTheHandshake: what the handshake answers.
func TestAnswersInTheHandshake(t *testing.T) {
	t.Parallel()
	_, socket := start(t, bytes.NewReader(random(1<<20)), 1<<20)
	export := func(name string, requests uint16, rest ...byte) []byte {
		p := binary.BigEndian.AppendUint32(nil, uint32(len(name)))
		p = append(p, name...)
		return append(binary.BigEndian.AppendUint16(p, requests), rest...)
	}
	for name, c := range map[string]struct {
		option uint32
		data   []byte
		want   uint32
	}{
		"structured replies": {8, nil, answerUnsupported},
		"TLS":                {5, nil, answerUnsupported},
		"unknown":            {77, []byte("data"), answerUnsupported},
		"list":               {optionList, nil, answerServer},
		"list with data":     {optionList, []byte{1}, answerInvalid},
		"info":               {optionInfo, export("", 0), answerInfo},
		"info with requests": {optionInfo, export("", 1, 0, 3), answerInfo},
		"another export":     {optionGo, export("x", 0), answerUnknown},
		"cut off":            {optionGo, []byte{0, 0}, answerInvalid},
		"long name":          {optionGo, []byte{255, 255, 255, 255, 0, 0}, answerInvalid},
		"many requests":      {optionGo, export("", 9), answerInvalid},
		"abort":              {optionAbort, nil, answerAck},
	} {
		client := dial(t, socket, flagsFixed|flagsNoZeroes)
		client.option(c.option, c.data)
		if kind, _ := client.reply(); kind != c.want {
			t.Errorf("%s: answered with %#x, want %#x", name, kind, c.want)
		}
		client.conn.Close()
	}
	old := dial(t, socket, flagsFixed)
	old.option(optionExportName, nil)
	if p := old.read(134); len(p) != 134 || binary.BigEndian.Uint64(p) != 1<<20 || p[9] != transmissionFlags {
		t.Errorf("an old client gets %x", p)
	}
	old.conn.Close()
	for name, talk := range map[string]func(c *client){
		"another export": func(c *client) { c.option(optionExportName, []byte("x")) },
		"no option":      func(c *client) { c.write(uint64(7), uint64(7)) },
		"a long option":  func(c *client) { c.write(uint64(optionMagic), uint32(8), uint32(1<<31)) },
	} {
		client := dial(t, socket, flagsFixed|flagsNoZeroes)
		talk(client)
		if !client.ended() {
			t.Errorf("%s: the server goes on", name)
		}
	}
	if c := dial(t, socket, 4); !c.ended() {
		t.Error("unknown flags: the server goes on")
	}
}

// TestAnswersAfterTheHandshake: what is answered after the handshake.
func TestAnswersAfterTheHandshake(t *testing.T) {
	t.Parallel()
	content := random(3 << 20)
	_, socket := start(t, bytes.NewReader(content), int64(len(content)))
	ready := func() *client {
		c := dial(t, socket, flagsFixed|flagsNoZeroes)
		c.option(optionExportName, nil)
		c.read(10)
		return c
	}
	c := ready()
	for name, r := range map[string]struct {
		flags, kind uint16
		offset      uint64
		length      uint32
		code        uint32
	}{
		"the beginning":     {0, commandRead, 0, 512, 0},
		"odd":               {0, commandRead, 12345, 777, 0},
		"the largest":       {0, commandRead, 1 << 20, maxRead, 0},
		"too large":         {0, commandRead, 0, maxRead + 1, codeInvalid},
		"far too large":     {0, commandRead, 0, 1<<32 - 1, codeInvalid},
		"nothing":           {0, commandRead, 0, 0, codeInvalid},
		"past the end":      {0, commandRead, 3<<20 - 1, 2, codeInvalid},
		"far past the end":  {0, commandRead, 1<<64 - 1, 2, codeInvalid},
		"negative":          {0, commandRead, 1 << 63, 2, codeInvalid},
		"flags":             {4, commandRead, 0, 512, codeInvalid},
		"flush":             {0, 3, 0, 0, codeInvalid},
		"trim":              {0, 4, 0, 512, codeInvalid},
		"write zeroes":      {0, 6, 0, 512, codeInvalid},
		"block status":      {0, 7, 0, 512, codeInvalid},
		"an unknown action": {0, 99, 0, 512, codeInvalid},
	} {
		c.write(uint32(requestMagic), r.flags, r.kind, uint64(0x1122334455667788), r.offset, r.length)
		p := c.read(replyHeader)
		if len(p) != replyHeader || binary.BigEndian.Uint32(p) != replyMagic || binary.BigEndian.Uint64(p[8:]) != 0x1122334455667788 {
			t.Fatalf("%s: reply %x", name, p)
		}
		if code := binary.BigEndian.Uint32(p[4:]); code != r.code {
			t.Errorf("%s: code %d, want %d", name, code, r.code)
		} else if code == 0 {
			if got := c.read(int(r.length)); !bytes.Equal(got, content[r.offset:][:r.length]) {
				t.Errorf("%s: other bytes", name)
			}
		}
	}
	c.write(uint32(requestMagic), uint16(0), uint16(commandDisconnect), uint64(1), uint64(0), uint32(0))
	if !c.ended() {
		t.Error("the server goes on after the end")
	}
	for name, magic := range map[string]uint32{"a write": requestMagic, "no request": 1} {
		c := ready()
		c.write(magic, uint16(0), uint16(1), uint64(1), uint64(0), uint32(512), make([]byte, 512))
		if !c.ended() {
			t.Errorf("%s: the server goes on", name)
		}
	}
}

// TestConnectionWaitsForMemory: a connection that there is no memory for waits until another ends.
func TestConnectionWaitsForMemory(t *testing.T) {
	t.Parallel()
	_, socket := start(t, bytes.NewReader(random(1<<20)), 1<<20)
	var clients []*client
	for range maxConnections {
		clients = append(clients, dial(t, socket, flagsFixed|flagsNoZeroes))
	}
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d bytes: %v", n, err)
	}
	clients[0].conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Errorf("after another ended: %v", err)
	}
}

// script is a client whose input is known from the beginning.
type script struct {
	io.Reader
	written int
}

func (s *script) Write(p []byte) (int, error) { s.written += len(p); return len(p), nil }

// FuzzTalk: no client makes the server panic, or read outside of its source.
func FuzzTalk(f *testing.F) {
	option := func(option uint32, data string) string {
		p := binary.BigEndian.AppendUint64(nil, optionMagic)
		p = binary.BigEndian.AppendUint32(p, option)
		return string(binary.BigEndian.AppendUint32(p, uint32(len(data)))) + data
	}
	read := "\x25\x60\x95\x13\x00\x00\x00\x00cookie77\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x10"
	flags := "\x00\x00\x00\x03"
	f.Add([]byte(flags + option(optionGo, "\x00\x00\x00\x00\x00\x00") + read + read))
	f.Add([]byte(flags + option(optionList, "") + option(optionInfo, "\x00\x00\x00\x01x\x00\x00") + option(optionExportName, "") + read))
	f.Add([]byte("\x00\x00\x00\x01" + option(optionAbort, "")))
	f.Fuzz(func(t *testing.T, input []byte) {
		source := inside{t, 1000}
		s := &script{Reader: bytes.NewReader(input)}
		if err := New(source, source.size, func(int64) {}).talk(s); err == nil {
			t.Error("the talk ends without a reason")
		}
		if most := (len(input)/28 + 1) * (maxRead + replyHeader + 200); s.written > most {
			t.Errorf("%d bytes of input gave %d of output", len(input), s.written)
		}
	})
}

// inside is a source that must not be read outside of its size.
type inside struct {
	t    *testing.T
	size int64
}

func (s inside) ReadAt(p []byte, offset int64) (int, error) {
	if offset < 0 || int64(len(p)) > s.size-offset {
		s.t.Errorf("read %d bytes at %d of %d", len(p), offset, s.size)
	}
	return len(p), nil
}
