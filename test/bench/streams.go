package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/client-go/rest"
)

const (
	// streamed is the guest's name.
	streamed   = "streamed"
	keystrokes = 100
	// forwarded is how much goes to the guest, and back, in each round.
	forwarded = 8 << 20
	// echoPort is where the tiny guest sends back everything that it gets.
	echoPort = 7
)

// measureStreams measures the console and a port of a guest through virt-api, as virtctl uses them, beside
// kubectl's way to the same guest, which goes through the guest's pod.
func measureStreams(r *run) {
	r.removeAfter("vmi")
	s := newStreamed(r)
	r.eachRound(func(r *run) {
		console, exec := typed(r, s.console), typed(r, s.exec)
		r.add("console", quantile(console, 0.5), quantile(exec, 0.5))
		r.add("console-p99", quantile(console, 0.99), quantile(exec, 0.99))
		r.add("portforward", forward(r, s.port), forward(r, s.kubectlForward))
	})
}

// streamedGuest is a guest that sends back what it gets, and where it is.
type streamedGuest struct {
	config *rest.Config
	pod    string
}

// newStreamed starts a guest whose terminal sends back every byte as it is.
func newStreamed(r *run) *streamedGuest {
	kube := r.kube()
	check(apply(r, guestVMI(benchNamespace, streamed, tinyImage)))
	idleVMs(r, kube, 1)
	config, _ := r.access()
	s := &streamedGuest{config, r.podOfVMI(kube).Name}
	r.turn(func(r *run) {
		console := s.console(r)
		// The mark is typed in two parts, so that the echo of the command is not taken for it.
		must(io.WriteString(console, "\nstty raw -echo; echo rea\"\"dy; cat\n"))
		until(console, "ready\n")
	})
	return s
}

// typed are the times from each key to its echo, in ms, sorted.
func typed(r *run, open func(*run) net.Conn) (times []float64) {
	r.turn(func(r *run) {
		console := open(r)
		for n := range keystrokes + 5 {
			key, echo := []byte{'a' + byte(n%26)}, []byte{0}
			begin := time.Now()
			check(console.SetDeadline(begin.Add(patience)))
			must(console.Write(key))
			for echo[0] != key[0] {
				must(console.Read(echo))
			}
			if n >= 5 { // the first ones warm up
				times = append(times, float64(time.Since(begin))/float64(time.Millisecond))
			}
		}
	})
	slices.Sort(times)
	return times
}

// forward is how long it takes to send to a port and to get it back, in seconds.
func forward(r *run, open func(*run) net.Conn) (took float64) {
	r.turn(func(r *run) { took = thereAndBack(open(r), forwarded) })
	return took
}

// thereAndBack is how long it takes, in seconds.
func thereAndBack(port net.Conn, size int) float64 {
	begin := time.Now()
	check(port.SetDeadline(begin.Add(2 * patience)))
	sent := make(chan error, 1)
	go func() {
		_, err := port.Write(make([]byte, size))
		sent <- err
	}()
	_, err := io.CopyN(io.Discard, port, int64(size))
	took := time.Since(begin).Seconds()
	check(errors.Join(err, <-sent), "send to a port and back")
	return took
}

func (s *streamedGuest) console(r *run) net.Conn { return s.dial(r, "console") }

func (s *streamedGuest) port(r *run) net.Conn {
	return s.dial(r, fmt.Sprintf("portforward/%d", echoPort))
}

// dial opens a stream of subresources.kubevirt.io through the API server.
func (s *streamedGuest) dial(r *run, subresource string) net.Conn {
	dialer := websocket.Dialer{TLSClientConfig: must(rest.TLSConfigFor(s.config)),
		Subprotocols: []string{"plain.kubevirt.io"}, HandshakeTimeout: patience}
	address := must(url.Parse(s.config.Host))
	address.Scheme = "wss"
	address.Path = "/apis/subresources.kubevirt.io/v1/namespaces/" + benchNamespace +
		"/virtualmachineinstances/" + streamed + "/" + subresource
	header := http.Header{}
	if s.config.BearerToken != "" {
		header.Set("Authorization", "Bearer "+s.config.BearerToken)
	}
	conn, _, err := dialer.DialContext(r, address.String(), header)
	check(err, "open "+subresource)
	r.after(func() error { conn.Close(); return nil }) // which fails if the other end was first
	return &websocketConn{conn, websocket.JoinMessages(conn, "")}
}

// websocketConn reads and writes bytes as a websocket's binary messages.
type websocketConn struct {
	*websocket.Conn
	messages io.Reader
}

func (c *websocketConn) Read(p []byte) (int, error) { return c.messages.Read(p) }

func (c *websocketConn) Write(p []byte) (int, error) {
	for chunk := range slices.Chunk(p, 32<<10) { // as virtctl does
		if err := c.WriteMessage(websocket.BinaryMessage, chunk); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func (c *websocketConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// exec attaches to the console in the pod.
func (s *streamedGuest) exec(r *run) net.Conn {
	ours, theirs := net.Pipe()
	cmd := exec.CommandContext(r, "kubectl", "-n", benchNamespace, "exec", "-i", s.pod, "--", "virt-launcher", "console")
	cmd.Stdin, cmd.Stdout, cmd.WaitDelay = theirs, theirs, time.Second
	r.start(cmd)
	r.after(theirs.Close)
	r.after(ours.Close)
	return ours
}

// kubectlForward connects with the guest's port by kubectl port-forward.
func (s *streamedGuest) kubectlForward(r *run) net.Conn {
	cmd := exec.CommandContext(r, "kubectl", "-n", benchNamespace, "port-forward", s.pod, fmt.Sprintf(":%d", echoPort))
	stdout := must(cmd.StdoutPipe())
	r.start(cmd)
	// Forwarding from 127.0.0.1:40001 -> 7
	line := must(bufio.NewReader(stdout).ReadString('\n'))
	fields := strings.Fields(line)
	if len(fields) < 3 {
		fail("kubectl port-forward said %q", line)
	}
	conn := must((&net.Dialer{}).DialContext(r, "tcp", fields[2]))
	r.after(func() error { conn.Close(); return nil })
	return conn
}
