package serve

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/internal/authority"
	"github.com/kubeqemu/kubeqemu/internal/authority/authoritytest"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

const (
	asClient = x509.ExtKeyUsageClientAuth
	asServer = x509.ExtKeyUsageServerAuth
)

// testHandler is a Server on the loopback, with one VMI, whose launcher is the test.
type testHandler struct {
	t                *testing.T
	forAPI, forNodes *authoritytest.CA
	server           *Server
	target           handlerapi.Target
	port             int
	set              *sessions.Set
	launcher         *control.Conn
	answering        sync.Mutex
}

func newTestHandler(t *testing.T, serving func(h *testHandler) *tls.Certificate) *testHandler {
	t.Helper()
	h := &testHandler{t: t, forAPI: authoritytest.New(t, "virt-api"), forNodes: authoritytest.New(t, "virt-handler"),
		target: handlerapi.Target{Address: "127.0.0.1", Node: "n1", Namespace: "ns", Name: "vm", UID: "u1"}}
	object := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", UID: "u1"},
		Status: v1.VirtualMachineInstanceStatus{NodeName: "n1", Phase: v1.Running, ActivePods: map[types.UID]string{"p": "n1"}}}
	published := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v1.KubeVirtNamespace, Name: authority.APICA},
		Data: map[string]string{authority.BundleEntry: string(h.forAPI.Bundle())}}
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	h.set = sessions.NewSet(testr.New(t), func(types.NamespacedName) {})
	h.connect()
	h.server = &Server{Log: testr.New(t), Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(object, published).Build(),
		Launcher: first(h.set), Clock: clock.RealClock{}}
	certificate := serving(h)
	h.server.Certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate, nil }
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.port = listener.Addr().(*net.TCPAddr).Port
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.server.serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return h
}

func ownServing(h *testHandler) *tls.Certificate {
	return h.forNodes.Certify(authority.HandlerServer, "n1", asServer, authority.ServerName("n1"))
}

// first finds the launcher in a VMI's first pod.
func first(set *sessions.Set) func(*v1.VirtualMachineInstance) *sessions.Session {
	return func(o *v1.VirtualMachineInstance) *sessions.Session {
		return set.Get(types.NamespacedName{Namespace: o.Namespace, Name: v1.LauncherPodName(o.Name, o.UID, v1.FirstPod)})
	}
}

// connect makes a session of the launcher.
func (h *testHandler) connect() { h.launcher = connectAs(h.t, h.set, "vm", "u1") }

// connectAs makes a session of a VMI's launcher, and returns the launcher's end.
func connectAs(t *testing.T, set *sessions.Set, name string, uid types.UID) *control.Conn {
	t.Helper()
	ours, theirs := testkit.SocketPair(t)
	end := control.NewConn(theirs)
	launcher := &sessions.Session{Slot: name, Pod: types.NamespacedName{Namespace: "ns", Name: v1.LauncherPodName(name, uid, v1.FirstPod)}, Commands: control.KnownCommands(),
		Client: control.NewClient(control.NewConn(ours), control.Limits{}, func(m *control.Message) { m.Close() })}
	if !set.Add(launcher) {
		t.Fatal("the session is not taken")
	}
	t.Cleanup(func() { launcher.Client.Close(); end.Close() })
	return end
}

// answers lets the launcher answer the next command, after what it does first.
func (h *testHandler) answers(command string, reply control.Message, first ...func()) {
	go func() {
		h.answering.Lock()
		defer h.answering.Unlock()
		m, err := h.launcher.Receive()
		if err != nil || m.Execute != command {
			h.t.Errorf("the launcher was asked for %+v, want %s: %v", m, command, err)
			return
		}
		for _, do := range first {
			do()
		}
		reply.ID = m.ID
		for i := range reply.Files {
			brought, _ := control.AnswerFile(command)
			reply.Files[i].Name = brought.Name
		}
		if err := h.launcher.Send(reply); err != nil {
			h.t.Error(err)
		}
		for _, f := range reply.Files {
			f.Close()
		}
	}()
}

func (h *testHandler) client(shown *tls.Certificate) *handlerapi.Client {
	return &handlerapi.Client{Port: h.port, Now: time.Now, Roots: h.forNodes.Pool,
		Certificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if shown == nil {
				return &tls.Certificate{}, nil
			}
			return shown, nil
		}}
}

func (h *testHandler) api() *handlerapi.Client {
	return h.client(h.forAPI.Certify(authority.APIClient, authority.APIName, asClient))
}

var done = control.Message{Return: []byte("null")}

// TestOnlyVirtAPIIsLetIn: virt-api by its own CA, role and name, and nobody else; above
// all not another node's virt-handler (CVE-2025-64434).
func TestOnlyVirtAPIIsLetIn(t *testing.T) {
	h := newTestHandler(t, ownServing)
	for name, shown := range map[string]*tls.Certificate{
		"nothing":                           nil,
		"a virt-handler":                    h.forNodes.Certify(authority.HandlerClient, "n2", asClient),
		"a virt-handler's server":           h.forNodes.Certify(authority.HandlerServer, "n2", asServer, authority.ServerName("n2")),
		"virt-api's role by handlers' CA":   h.forNodes.Certify(authority.APIClient, authority.APIName, asClient),
		"a virt-handler by virt-api's CA":   h.forAPI.Certify(authority.HandlerClient, "n1", asClient),
		"what virt-api serves with":         h.forAPI.Certify("", authority.APIName, asServer, "virt-api.kubevirt.svc"),
		"virt-api's role to serve":          h.forAPI.Certify(authority.APIClient, authority.APIName, asServer),
		"virt-api's role in another's name": h.forAPI.Certify(authority.APIClient, "n1", asClient),
		"virt-api without a role":           h.forAPI.Certify("", authority.APIName, asClient),
	} {
		// With TLS 1.3 the client hears of it with the first answer.
		err := h.client(shown).Do(t.Context(), h.target, handlerapi.Pause, nil)
		var said *handlerapi.Error
		if err == nil || errors.As(err, &said) {
			t.Errorf("%s: it was answered: %v", name, err)
		}
	}
	h.answers(control.CommandPause, done)
	if err := h.api().Do(t.Context(), h.target, handlerapi.Pause, nil); err != nil {
		t.Errorf("virt-api: %v", err)
	}
}

// TestOnlyTheNodesOwnHandlerIsBelieved: virt-api talks to the virt-handler of the node that it
// means, and to no other.
func TestOnlyTheNodesOwnHandlerIsBelieved(t *testing.T) {
	for name, serving := range map[string]func(h *testHandler) *tls.Certificate{
		"another node's": func(h *testHandler) *tls.Certificate {
			return h.forNodes.Certify(authority.HandlerServer, "n2", asServer, authority.ServerName("n2"))
		},
		"this node's name, that one's subject": func(h *testHandler) *tls.Certificate {
			return h.forNodes.Certify(authority.HandlerServer, "n2", asServer, authority.ServerName("n1"))
		},
		"a client's": func(h *testHandler) *tls.Certificate {
			return h.forNodes.Certify(authority.HandlerClient, "n1", asClient, authority.ServerName("n1"))
		},
		"a client's role": func(h *testHandler) *tls.Certificate {
			return h.forNodes.Certify(authority.HandlerClient, "n1", asServer, authority.ServerName("n1"))
		},
		"by virt-api's CA": func(h *testHandler) *tls.Certificate {
			return h.forAPI.Certify(authority.HandlerServer, "n1", asServer, authority.ServerName("n1"))
		},
	} {
		h := newTestHandler(t, serving)
		err := h.api().Do(t.Context(), h.target, handlerapi.Pause, nil)
		if err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOperationsOfALauncher: what virt-handler answers, and what of a launcher's words it
// passes on.
func TestOperationsOfALauncher(t *testing.T) {
	h := newTestHandler(t, ownServing)
	api := h.api()
	check := func(what string, err error, code int, text string) {
		t.Helper()
		var said *handlerapi.Error
		if !errors.As(err, &said) || said.Code != code || !strings.Contains(said.Text, text) || len(said.Text) > handlerapi.MaxText {
			t.Errorf("%s: %v, want %d %q", what, err, code, text)
		}
	}
	h.answers(control.CommandGrace, done)
	if err := api.Do(t.Context(), h.target, handlerapi.Grace, url.Values{handlerapi.Seconds: {"5"}}); err != nil {
		t.Error(err)
	}
	check("no seconds", api.Do(t.Context(), h.target, handlerapi.Grace, nil), http.StatusBadRequest, "no seconds")
	h.answers(control.CommandReset, control.Message{Error: &control.RemoteError{Description: "no\x1b[31m\n" + strings.Repeat("x", 4000)}})
	check("a launcher's words", api.Do(t.Context(), h.target, handlerapi.Reset, nil), http.StatusConflict, "no[31mxxx")
	check("an unknown operation", api.Do(t.Context(), h.target, "shell", nil), http.StatusNotFound, "")
	other := h.target
	other.UID = "u2"
	check("another VMI of the name", api.Do(t.Context(), other, handlerapi.Pause, nil), http.StatusNotFound, "no such")
	_, err := api.Stream(t.Context(), h.target, handlerapi.Pause, nil)
	check("an operation as a stream", err, http.StatusNotFound, "")
	launcher := h.server.Launcher
	h.server.Launcher = func(*v1.VirtualMachineInstance) *sessions.Session { return nil }
	check("a launcher that may not be asked", api.Do(t.Context(), h.target, handlerapi.Pause, nil), http.StatusServiceUnavailable, "")
	h.server.Launcher = launcher
	h.launcher.Close()
	check("without a launcher", api.Do(t.Context(), h.target, handlerapi.Pause, nil), http.StatusServiceUnavailable, "")
}

// TestStreamCarriesBytesBothWays: bytes go both ways, whole; the next session ends the one before;
// what is no socket is none.
func TestStreamCarriesBytesBothWays(t *testing.T) {
	h := newTestHandler(t, ownServing)
	api := h.api()
	handOut := func(before ...func()) *net.UnixConn {
		guest, theirs := testkit.SocketPair(t)
		t.Cleanup(func() { guest.Close() })
		file, err := theirs.File()
		if err != nil {
			t.Fatal(err)
		}
		theirs.Close()
		h.answers(control.CommandVNC, control.Message{Return: []byte("null"), Files: []control.File{{File: file}}}, before...)
		return guest
	}
	guest := handOut()
	first, err := api.Stream(t.Context(), h.target, handlerapi.VNC, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	go io.Copy(guest, guest) // an echo
	sent := make([]byte, 3<<20)
	rand.Read(sent)
	go first.Write(sent)
	got := make([]byte, len(sent))
	first.SetReadDeadline(time.Now().Add(testkit.Patience))
	if _, err := io.ReadFull(first, got); err != nil || string(got) != string(sent) {
		t.Fatalf("what went through the stream came back as something else: %v", err)
	}
	_, err = api.Stream(t.Context(), h.target, handlerapi.VNC, url.Values{handlerapi.PreserveSession: {"true"}})
	var said *handlerapi.Error
	if !errors.As(err, &said) || said.Code != http.StatusServiceUnavailable {
		t.Errorf("a session that is to be preserved: %v", err)
	}
	second := handOut(func() {
		// virt-launcher ends its end of the session before as soon as it has another, and its answer may be late.
		guest.Close()
		first.SetReadDeadline(time.Now().Add(testkit.Patience))
		if _, err := first.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF) {
			t.Errorf("the session that is taken over ends in order: %v", err)
		}
	})
	stream, err := api.Stream(t.Context(), h.target, handlerapi.VNC, nil)
	if err != nil {
		t.Fatal(err)
	}
	// The guest's end is the stream's.
	second.Close()
	stream.SetReadDeadline(time.Now().Add(testkit.Patience))
	if _, err := stream.Read(got); !errors.Is(err, io.EOF) {
		t.Errorf("a stream whose guest has gone: %v", err)
	}
	stream.Close()
	h.answers(control.CommandConsole, done)
	if _, err := api.Stream(t.Context(), h.target, handlerapi.Console, nil); err == nil {
		t.Error("a console without a file")
	}
	// Of another kind than is asked for: with that the launcher is off the line.
	zero, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	h.answers(control.CommandConsole, control.Message{Return: []byte("null"), Files: []control.File{{File: zero}}})
	if _, err := api.Stream(t.Context(), h.target, handlerapi.Console, nil); !errors.As(err, &said) || said.Code != http.StatusServiceUnavailable {
		t.Errorf("a device in place of a socket: %v", err)
	}
}

// TestScreenshots: a picture has its end; two at once are two; the pointer is
// moved first where that was asked for.
func TestScreenshots(t *testing.T) {
	h := newTestHandler(t, ownServing)
	api := h.api()
	shoot := func(parameters url.Values) (net.Conn, *net.UnixConn) {
		t.Helper()
		guest, theirs := testkit.SocketPair(t)
		file, err := theirs.File()
		if err != nil {
			t.Fatal(err)
		}
		theirs.Close()
		h.answers(control.CommandScreenshot, control.Message{Return: []byte("null"), Files: []control.File{{File: file}}})
		stream, err := api.Stream(t.Context(), h.target, handlerapi.Screenshot, parameters)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { stream.Close(); guest.Close() })
		return stream, guest
	}
	first, firstGuest := shoot(nil)
	second, secondGuest := shoot(nil)
	for _, c := range []struct {
		to    *net.UnixConn
		from  net.Conn
		bytes int
	}{{firstGuest, first, 1 << 20}, {secondGuest, second, 10}} {
		go func() {
			c.to.Write(make([]byte, c.bytes))
			c.to.Close()
		}()
		c.from.SetReadDeadline(time.Now().Add(testkit.Patience))
		if got, err := io.ReadAll(c.from); err != nil || len(got) != c.bytes {
			t.Errorf("%d bytes of %d: %v", len(got), c.bytes, err)
		}
	}
	h.answers(control.CommandMovePointer, control.Message{Error: &control.RemoteError{Description: "no mouse"}})
	if _, err := api.Stream(t.Context(), h.target, handlerapi.Screenshot, url.Values{handlerapi.MoveCursor: {"true"}}); err == nil || err.Error() != "no mouse" {
		t.Errorf("the pointer of a guest without a mouse: %v", err)
	}
}

// TestAgentOperations: what virt-api asks about the agent gets to the launcher,
// and what that answers back, unread.
func TestAgentOperations(t *testing.T) {
	h := newTestHandler(t, ownServing)
	api := h.api()
	for operation, command := range map[string]string{handlerapi.GuestInfo: control.CommandGuestInfo, handlerapi.Users: control.CommandUsers,
		handlerapi.FileSystems: control.CommandFileSystems} {
		h.answers(command, control.Message{Return: []byte(`{"items":[]}`)})
		if document, err := api.Query(t.Context(), h.target, operation); err != nil || string(document) != `{"items":[]}` {
			t.Errorf("%s: %q, %v", operation, document, err)
		}
	}
	for operation, command := range map[string]string{handlerapi.Unfreeze: control.CommandUnfreeze, handlerapi.SoftReboot: control.CommandSoftReboot} {
		h.answers(command, done)
		if err := api.Do(t.Context(), h.target, operation, nil); err != nil {
			t.Errorf("%s: %v", operation, err)
		}
	}
	h.answers(control.CommandFreeze, done)
	if err := api.Do(t.Context(), h.target, handlerapi.Freeze, map[string][]string{handlerapi.Seconds: {"300"}}); err != nil {
		t.Error(err)
	}
	if err := api.Do(t.Context(), h.target, handlerapi.Freeze, nil); err == nil || !strings.Contains(err.Error(), "no seconds") {
		t.Errorf("freeze without a time: %v", err)
	}
	h.answers(control.CommandUsers, control.Message{Error: &control.RemoteError{Description: "the guest agent is not connected"}})
	var said *handlerapi.Error
	if _, err := api.Query(t.Context(), h.target, handlerapi.Users); !errors.As(err, &said) || said.Code != http.StatusConflict {
		t.Errorf("no agent: %v", err)
	}
	if _, err := api.Query(t.Context(), h.target, handlerapi.Pause); !errors.As(err, &said) || said.Code != http.StatusNotFound {
		t.Errorf("no document: %v", err)
	}
}
