package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/importer/webtest"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

const mib = 1 << 20

// program builds virt-importer once for all tests.
var buildOnce = sync.OnceValues(func() (string, error) {
	folder, err := os.MkdirTemp("", "virt-importer-*")
	if err != nil {
		return "", err
	}
	path := filepath.Join(folder, "virt-importer")
	cmd := exec.Command("go", "build", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return path, err
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := buildOnce(); err == nil {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// pod is where virt-importer runs as in a pod.
type pod struct {
	t      testing.TB
	folder string
	task   importer.Task
	listen string
	flags  []string
}

func newPod(t testing.TB, source string) *pod {
	t.Helper()
	p := &pod{t: t, folder: t.TempDir(), listen: freeAddress(t)}
	p.task = importer.Task{Permitted: []string{"127.0.0.0/8"}, Target: importer.Target{Bytes: 50 * mib}, Source: importer.Source{HTTP: &importer.HTTP{URL: source}}}
	for _, name := range []string{"disk", "work"} {
		if err := os.Mkdir(p.path(name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func freeAddress(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func (p *pod) path(name string) string { return filepath.Join(p.folder, name) }

// start starts virt-importer.
func (p *pod) start() *exec.Cmd {
	p.t.Helper()
	program, err := buildOnce()
	if err != nil {
		p.t.Fatal(err)
	}
	task, err := json.Marshal(p.task)
	if err := errors.Join(err, os.WriteFile(p.path("termination"), nil, 0o600)); err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(program, append([]string{"-disk", p.path("disk/disk.img"), "-work", p.path("work"),
		"-termination-log", p.path("termination"), "-progress", p.listen}, p.flags...)...)
	cmd.Env = []string{importer.TaskVariable + "=" + string(task), importer.HostAddressesVariable + "=192.0.2.1,2001:db8::1", "KUBERNETES_SERVICE_HOST=10.96.0.1"}
	cmd.Stderr = &bytes.Buffer{}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd
}

// progress asks for the progress, as virt-controller does.
func (p *pod) progress() (progress importer.Progress, err error) {
	response, err := http.Get("http://" + p.listen + importer.ProgressPath)
	if err != nil {
		return progress, err
	}
	defer response.Body.Close()
	return progress, json.NewDecoder(response.Body).Decode(&progress)
}

// image makes a qcow2 image with 30 MiB that do not compress, and returns it with the disk that it has.
func image(t testing.TB) (file, raw []byte) {
	t.Helper()
	folder := t.TempDir()
	raw = make([]byte, 40*mib)
	random := rand.NewChaCha8([32]byte{3})
	_, _ = random.Read(raw[5*mib : 35*mib])
	if err := os.WriteFile(filepath.Join(folder, "raw"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("qemu-img", "convert", "-f", "raw", "-O", "qcow2", filepath.Join(folder, "raw"), filepath.Join(folder, "qcow2")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	file, err := os.ReadFile(filepath.Join(folder, "qcow2"))
	if err != nil {
		t.Fatal(err)
	}
	return file, raw
}

// gated gives nothing more once the server has sent so much, until that is raised.
type gated struct {
	io.ReaderAt
	server *webtest.Server
	most   atomic.Int64
}

// behindGate starts a server with a gate. The gate is open in the end.
func behindGate(t *testing.T, file []byte, most int64, b webtest.Behaviour) *gated {
	t.Helper()
	g := &gated{ReaderAt: bytes.NewReader(file)}
	g.most.Store(most)
	g.server = webtest.Start(t, g, int64(len(file)), b)
	t.Cleanup(g.open)
	return g
}

func (g *gated) open() { g.most.Store(1 << 60) }

func (g *gated) ReadAt(p []byte, offset int64) (int, error) {
	for g.server.Sent.Load() >= g.most.Load() {
		time.Sleep(time.Millisecond)
	}
	return g.ReaderAt.ReadAt(p, offset)
}

// TestKilledImportGoesOn: a process that is killed at ten points leaves nothing that the next could not go on with,
// and the percentage that virt-controller sees does not fall.
func TestKilledImportGoesOn(t *testing.T) {
	t.Parallel()
	file, raw := image(t)
	// The server gives an eleventh of the file to each process.
	part := int64(len(file)) / 11
	gate := behindGate(t, file, part, webtest.Behaviour{ETag: `"1"`, Delay: 300 * time.Microsecond})
	server := gate.server
	pod := newPod(t, server.URL+"/image?token=secret")
	pod.flags = []string{"-segment", "2097152"}
	var last importer.Progress
	for kills := 0; ; kills++ {
		until := server.Sent.Load() + part
		gate.most.Store(until)
		if kills > 10 {
			gate.open()
			server.Change(func(b *webtest.Behaviour) { b.Delay = 0 })
		}
		cmd := pod.start()
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		for alive := true; alive; {
			if p, err := pod.progress(); err == nil {
				if p.Done < last.Done || p.Anew > 0 {
					t.Fatalf("progress fell from %+v to %+v", last, p)
				}
				last = p
			}
			if kills <= 10 && server.Sent.Load() >= until {
				_ = cmd.Process.Kill()
			}
			select {
			case err := <-ended:
				alive = false
				if err == nil && kills < 8 {
					t.Errorf("the import ended after %d kills", kills)
				}
				if err == nil {
					checkDisk(t, pod, raw)
					return
				}
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
					t.Fatalf("%v: %s", err, cmd.Stderr)
				}
			case <-time.After(2 * time.Millisecond):
			}
		}
	}
}

func checkDisk(t *testing.T, p *pod, raw []byte) {
	t.Helper()
	got, err := os.ReadFile(p.path("disk/disk.img"))
	if err != nil || len(got) != 50*mib || !bytes.Equal(got[:len(raw)], raw) || len(bytes.Trim(got[len(raw):], "\x00")) > 0 {
		t.Errorf("the disk has something else: %d bytes, %v", len(got), err)
	}
	entries, err := os.ReadDir(p.path("disk"))
	if err != nil || len(entries) != 1 {
		t.Errorf("the claim has %v, %v", entries, err)
	}
}

// TestExitAndMessageOfAnImport: what the kubelet sees at the end.
func TestExitAndMessageOfAnImport(t *testing.T) {
	t.Parallel()
	content := make([]byte, 3*mib)
	for name, c := range map[string]struct {
		change func(*pod, *webtest.Server)
		want   string
	}{
		"done":  {func(*pod, *webtest.Server) {}, ""},
		"blank": {func(p *pod, _ *webtest.Server) { p.task.Source = importer.Source{Blank: &importer.Blank{}} }, ""},
		"not found": {func(_ *pod, s *webtest.Server) {
			s.Change(func(b *webtest.Behaviour) {
				b.Before = func(w http.ResponseWriter, r *http.Request) bool {
					http.Error(w, "a secret of the cluster", http.StatusNotFound)
					return true
				}
			})
		}, "/path: open the source: the server answers with status 404: see to the URL"},
		"not permitted": {func(p *pod, _ *webtest.Server) { p.task.Permitted = nil }, "a loopback address"},
		"the node":      {func(p *pod, _ *webtest.Server) { p.task.Source.HTTP.URL = "http://192.0.2.1/" }, "an address of the node"},
		"API server":    {func(p *pod, _ *webtest.Server) { p.task.Source.HTTP.URL = "http://10.96.0.1/" }, "an address of the node or of the API server"},
		"too large":     {func(p *pod, _ *webtest.Server) { p.task.Target.Bytes = mib }, "ask for a larger one"},
		"a long reason": {func(p *pod, _ *webtest.Server) { p.task.Forbidden = []string{strings.Repeat("ä", 4096)} }, "block of addresses"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := webtest.Start(t, bytes.NewReader(content), int64(len(content)), webtest.Behaviour{})
			pod := newPod(t, strings.Replace(server.URL, "//", "//user:secret@", 1)+"/path?token=secret")
			c.change(pod, server)
			cmd := pod.start()
			err := cmd.Wait()
			text, err2 := os.ReadFile(pod.path("termination"))
			if err2 != nil || len(text) > maxMessage || !strings.Contains(string(text), c.want) || (c.want == "") != (len(text) == 0) {
				t.Errorf("the reason is %q, %v", text, err2)
			}
			if (err == nil) != (c.want == "") || err != nil && cmd.ProcessState.ExitCode() != 1 {
				t.Errorf("%v: %s", err, cmd.Stderr)
			}
			if log := cmd.Stderr.(*bytes.Buffer).String(); strings.Contains(log+string(text), "secret") {
				t.Errorf("a secret is told: %s", log)
			}
		})
	}
}

// TestSIGTERMEndsAnImportSoon: SIGTERM ends an import soon, and the next goes on.
func TestSIGTERMEndsAnImportSoon(t *testing.T) {
	t.Parallel()
	file, raw := image(t)
	most := int64(len(file)) / 3
	gate := behindGate(t, file, most, webtest.Behaviour{ETag: `"1"`})
	server := gate.server
	pod := newPod(t, server.URL)
	pod.flags = []string{"-segment", "2097152"}
	cmd := pod.start()
	testkit.Until(t, "a third of the file", func() bool { return server.Sent.Load() >= most })
	_ = cmd.Process.Signal(syscall.SIGTERM) // without which it would wait for the rest
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := testkit.Receive(t, ended, "the end"); err == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("%v: %s", err, cmd.Stderr)
	}
	if text, err := os.ReadFile(pod.path("termination")); err != nil || !strings.Contains(string(text), "the next one goes on") {
		t.Errorf("the reason is %q, %v", text, err)
	}
	gate.open()
	cmd = pod.start()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, cmd.Stderr)
	}
	checkDisk(t, pod, raw)
	if log := cmd.Stderr.(*bytes.Buffer).String(); !strings.Contains(log, "the import goes on") {
		t.Errorf("the next one did not go on: %s", log)
	}
}

func TestNodeAddresses(t *testing.T) {
	t.Parallel()
	if got, err := nodeAddresses("192.0.2.1, 2001:db8::1", "", "10.96.0.1"); err != nil || len(got) != 3 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := nodeAddresses("192.0.2.1,node"); err == nil {
		t.Error("a name is an address")
	}
}

func TestMessageIsShortAndHasNoSecrets(t *testing.T) {
	t.Parallel()
	task := importer.Task{Source: importer.Source{HTTP: &importer.HTTP{URL: "https://u:p@host/x?y"}}}
	if got := message(context.Background(), task, io.ErrUnexpectedEOF); got != "import https://host/x: unexpected EOF" {
		t.Error(got)
	}
	if got := message(context.Background(), importer.Task{}, errors.New(strings.Repeat("ä", 1000))); len(got) > maxMessage || !strings.HasPrefix(got, "import blank: ä") {
		t.Error(got)
	}
}
