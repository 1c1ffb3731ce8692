package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
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

// streamRows: the console and a port of a guest through virt-api, as virtctl uses them, beside
// kubectl's way to the same guest, which goes through the guest's pod.
func streamRows(ctx context.Context, b *bench) ([]row, error) {
	beside := []series{{Name: "`kubectl exec` into the pod, and the launcher's console there"}}
	rows := []row{
		{ID: "console", What: fmt.Sprintf("console through virt-api, one key and its echo, median of %d", keystrokes), Unit: milliseconds, Ours: series{Name: "virt-api"}, Beside: beside},
		{ID: "console-p99", What: "the same, 99th percentile", Unit: milliseconds, Ours: series{Name: "virt-api"}, Beside: slices.Clone(beside)},
		{ID: "portforward", What: fmt.Sprintf("port-forward through virt-api, %d MiB to the guest and back", forwarded>>20), Unit: seconds,
			Ours: series{Name: "virt-api"}, Beside: []series{{Name: "`kubectl port-forward` of the pod, to the same guest"}}},
	}
	defer remove(ctx, "vmi")
	s, err := newStreamed(ctx, b)
	if err != nil {
		return rows, err
	}
	for round := range b.rounds + 1 {
		if err := s.round(ctx, rows, round > 0); err != nil {
			return rows, fmt.Errorf("round %d: %w", round, err)
		}
		if round > 0 {
			b.say("streams, round %d: a key %.1f ms, %d MiB there and back %.2f s", round, rows[0].Ours.Samples[round-1], forwarded>>20, rows[2].Ours.Samples[round-1])
		}
	}
	return rows, nil
}

// streamedGuest is a guest that sends back what it gets, and where it is.
type streamedGuest struct {
	config *rest.Config
	pod    string
}

// newStreamed starts a guest whose terminal sends back every byte as it is.
func newStreamed(ctx context.Context, b *bench) (*streamedGuest, error) {
	kube, err := b.kube()
	if err != nil {
		return nil, err
	}
	s := &streamedGuest{}
	if s.config, err = clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG")); err != nil {
		return nil, err
	}
	vmi := guestVMI(streamed, tinyImage)
	vmi.Namespace = benchNamespace
	if err := apply(ctx, vmi); err != nil {
		return nil, err
	}
	if _, err := idleVMs(ctx, kube, 1); err != nil {
		return nil, err
	}
	var pods corev1.PodList
	if err := kube.List(ctx, &pods, client.InNamespace(benchNamespace), client.HasLabels{v1.CreatedByLabel}); err != nil {
		return nil, err
	}
	if len(pods.Items) != 1 {
		return nil, fmt.Errorf("find the VMI's pod: there are %d", len(pods.Items))
	}
	s.pod = pods.Items[0].Name
	console, err := s.dial(ctx, "console")
	if err != nil {
		return nil, err
	}
	defer console.Close()
	// The mark is typed in two parts, so that the echo of the command is not taken for it.
	if _, err := io.WriteString(console, "\nstty raw -echo; echo rea\"\"dy; cat\n"); err != nil {
		return nil, err
	}
	return s, until(console, "ready\n")
}

// until reads up to a mark.
func until(from net.Conn, mark string) error {
	if err := from.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	var all []byte
	for chunk := make([]byte, 4096); !bytes.Contains(all, []byte(mark)); {
		n, err := from.Read(chunk)
		all = append(all, chunk[:n]...)
		if err != nil {
			return fmt.Errorf("read up to %q, after %q: %w", mark, all, err)
		}
	}
	return nil
}

func (s *streamedGuest) round(ctx context.Context, rows []row, counts bool) error {
	var medians, slowest [2]float64
	for i, open := range []func(context.Context) (net.Conn, error){
		func(ctx context.Context) (net.Conn, error) { return s.dial(ctx, "console") }, s.exec} {
		console, err := open(ctx)
		if err != nil {
			return err
		}
		times, err := typed(console)
		console.Close()
		if err != nil {
			return fmt.Errorf("type: %w", err)
		}
		medians[i], slowest[i] = quantile(times, 0.5), quantile(times, 0.99)
	}
	var forwards [2]float64
	for i, open := range []func(context.Context) (net.Conn, error){
		func(ctx context.Context) (net.Conn, error) {
			return s.dial(ctx, fmt.Sprintf("portforward/%d", echoPort))
		}, s.kubectlForward} {
		port, err := open(ctx)
		if err != nil {
			return err
		}
		forwards[i], err = thereAndBack(port, forwarded)
		port.Close()
		if err != nil {
			return fmt.Errorf("send to a port: %w", err)
		}
	}
	if !counts {
		return nil
	}
	for i, pair := range [][2]float64{medians, slowest, forwards} {
		add(&rows[i].Ours, pair[0])
		add(&rows[i].Beside[0], pair[1])
	}
	return nil
}

// typed are the times from each key to its echo, in ms, sorted.
func typed(console net.Conn) ([]float64, error) {
	var times []float64
	for n := range keystrokes + 5 {
		key, echo := []byte{'a' + byte(n%26)}, []byte{0}
		begin := time.Now()
		if err := console.SetDeadline(begin.Add(patience)); err != nil {
			return nil, err
		}
		if _, err := console.Write(key); err != nil {
			return nil, err
		}
		for echo[0] != key[0] {
			if _, err := console.Read(echo); err != nil {
				return nil, err
			}
		}
		if n >= 5 { // the first ones warm up
			times = append(times, float64(time.Since(begin))/float64(time.Millisecond))
		}
	}
	slices.Sort(times)
	return times, nil
}

// thereAndBack is how long it takes, in seconds.
func thereAndBack(port net.Conn, size int) (float64, error) {
	begin := time.Now()
	if err := port.SetDeadline(begin.Add(2 * patience)); err != nil {
		return 0, err
	}
	sent := make(chan error, 1)
	go func() {
		_, err := port.Write(make([]byte, size))
		sent <- err
	}()
	_, err := io.CopyN(io.Discard, port, int64(size))
	return time.Since(begin).Seconds(), errors.Join(err, <-sent)
}

// dial opens a stream of subresources.kubevirt.io through the API server.
func (s *streamedGuest) dial(ctx context.Context, subresource string) (net.Conn, error) {
	tlsConfig, err := rest.TLSConfigFor(s.config)
	if err != nil {
		return nil, err
	}
	address, err := url.Parse(s.config.Host)
	if err != nil {
		return nil, err
	}
	address.Scheme = "wss"
	address.Path = "/apis/subresources.kubevirt.io/v1/namespaces/" + benchNamespace + "/virtualmachineinstances/" + streamed + "/" + subresource
	header := http.Header{}
	if s.config.BearerToken != "" {
		header.Set("Authorization", "Bearer "+s.config.BearerToken)
	}
	dialer := websocket.Dialer{TLSClientConfig: tlsConfig, Subprotocols: []string{"plain.kubevirt.io"}, HandshakeTimeout: patience}
	conn, _, err := dialer.DialContext(ctx, address.String(), header)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", subresource, err)
	}
	return &websocketConn{Conn: conn}, nil
}

// websocketConn reads and writes bytes as a websocket's binary messages.
type websocketConn struct {
	*websocket.Conn
	message io.Reader
}

func (c *websocketConn) Read(p []byte) (int, error) {
	for {
		if c.message == nil {
			_, message, err := c.NextReader()
			if err != nil {
				return 0, err
			}
			c.message = message
		}
		n, err := c.message.Read(p)
		if errors.Is(err, io.EOF) {
			c.message, err = nil, nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

func (c *websocketConn) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(len(rest), 32<<10) // as virtctl does
		if err := c.WriteMessage(websocket.BinaryMessage, rest[:n]); err != nil {
			return len(p) - len(rest), err
		}
		rest = rest[n:]
	}
	return len(p), nil
}

func (c *websocketConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// exec attaches to the console in the pod.
func (s *streamedGuest) exec(ctx context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	ctx, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, "kubectl", "-n", benchNamespace, "exec", "-i", s.pod, "--", "virt-launcher", "console")
	cmd.Stdin, cmd.Stdout = theirs, theirs
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, err
	}
	return &commandConn{Conn: ours, end: func() {
		cancel()
		theirs.Close()
		_ = cmd.Wait() // killed
	}}, nil
}

// commandConn is a connection through a command. Close ends the command too.
type commandConn struct {
	net.Conn
	end func()
}

func (c *commandConn) Close() error {
	err := c.Conn.Close()
	c.end()
	return err
}

// kubectlForward connects with the guest's port by kubectl port-forward.
func (s *streamedGuest) kubectlForward(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, "kubectl", "-n", benchNamespace, "port-forward", s.pod, fmt.Sprintf(":%d", echoPort))
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	end := func() {
		cancel()
		_ = cmd.Wait() // killed
	}
	// Forwarding from 127.0.0.1:40001 -> 7
	line, err := bufio.NewReader(stdout).ReadString('\n')
	fields := strings.Fields(line)
	var conn net.Conn
	if err == nil && len(fields) > 2 {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", fields[2])
	} else if err == nil {
		err = fmt.Errorf("kubectl port-forward said %q", line)
	}
	if err != nil {
		end()
		return nil, err
	}
	return &commandConn{Conn: conn, end: end}, nil
}
