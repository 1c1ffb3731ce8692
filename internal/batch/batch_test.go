package batch

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// counting counts the calls.
type counting struct {
	net.Conn
	reads, writes atomic.Int64
}

func (c *counting) Read(p []byte) (int, error) {
	c.reads.Add(1)
	return c.Conn.Read(p)
}

func (c *counting) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// pair is the two ends of a TLS connection over TCP, and what is beneath them.
func pair(t *testing.T) (client, server *tls.Conn, beneath [2]*counting) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dialed, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := (Listener{listener}).Accept()
	if err != nil {
		t.Fatal(err)
	}
	beneath = [2]*counting{{Conn: dialed}, {Conn: accepted.(*Conn).Conn}}
	client = tls.Client(New(beneath[0]), &tls.Config{InsecureSkipVerify: true})
	server = tls.Server(New(beneath[1]), &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	t.Cleanup(func() { client.Close(); server.Close() })
	shaken := make(chan error, 1)
	go func() { shaken <- server.Handshake() }()
	if err := client.Handshake(); err != nil {
		t.Fatal(err)
	}
	if err := <-shaken; err != nil {
		t.Fatal(err)
	}
	return client, server, beneath
}

// TestManyRecordsGoWithFewCalls: the bytes are the same, and many records go with few calls.
func TestManyRecordsGoWithFewCalls(t *testing.T) {
	client, server, beneath := pair(t)
	text := make([]byte, 8<<20)
	rand.Read(text)
	const size = 128 << 10
	out, in := Of(client), Of(server)
	if _, err := client.Write(text[:10]); err != nil { // at once, before Begin
		t.Fatal(err)
	}
	got := make([]byte, 0, len(text))
	first := make([]byte, 10)
	if _, err := io.ReadFull(server, first); err != nil {
		t.Fatal(err)
	}
	got = append(got, first...)
	out.Begin(size)
	in.Begin(size)
	before := [2]int64{beneath[0].writes.Load(), beneath[1].reads.Load()}
	sent := make(chan error, 1)
	go func() {
		for rest := text[10:]; len(rest) > 0; {
			n := min(len(rest), size)
			if _, err := client.Write(rest[:n]); err != nil {
				sent <- err
				return
			}
			if err := out.Flush(); err != nil {
				sent <- err
				return
			}
			rest = rest[n:]
		}
		sent <- nil
	}()
	buffer, most := make([]byte, size), 0
	for len(got) < len(text) {
		n, err := server.Read(buffer)
		for err == nil && len(buffer)-n >= Record && in.More() {
			var more int
			more, err = server.Read(buffer[n:])
			n += more
		}
		if err != nil {
			t.Fatal(err)
		}
		most = max(most, n)
		got = append(got, buffer[:n]...)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, text) {
		t.Error("other bytes arrived than were sent")
	}
	records := int64(len(text) / (16 << 10))
	if writes := beneath[0].writes.Load() - before[0]; writes > records/3 {
		t.Errorf("%d records took %d writes", records, writes)
	}
	t.Logf("%d records took %d writes and %d reads; at most %d bytes were read at once", records, beneath[0].writes.Load()-before[0], beneath[1].reads.Load()-before[1], most)
	client.Close()
	if n, err := server.Read(buffer); n != 0 || err == nil {
		t.Errorf("after the end %d bytes were read (%v)", n, err)
	}
}

// TestConnectionWithoutConnBeneath: a connection without a Conn beneath it has none.
func TestConnectionWithoutConnBeneath(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if c := Of(a); c != nil {
		t.Errorf("%+v", c)
	}
	c := New(a)
	if c.More() {
		t.Error("there is more before Begin")
	}
	if err := c.Flush(); err != nil {
		t.Error(err)
	}
}
