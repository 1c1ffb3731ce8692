package serve

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/authority"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// TestSilentLauncherHoldsUpOnlyItself: a launcher that does not answer holds up questions to
// itself, as many as may wait, and none to another.
func TestSilentLauncherHoldsUpOnlyItself(t *testing.T) {
	h := newTestHandler(t, ownServing)
	second := types.NamespacedName{Namespace: "ns", Name: "other"}
	if err := h.server.Client.(client.Client).Create(t.Context(), &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: second.Namespace, Name: second.Name, UID: "u2"},
		Status: v1.VirtualMachineInstanceStatus{NodeName: "n1", Phase: v1.Running, ActivePods: map[types.UID]string{"p": "n1"}}}); err != nil {
		t.Fatal(err)
	}
	other := &testHandler{t: t, launcher: connectAs(t, h.set, "other", "u2")}
	api := h.api()
	answers := make(chan error, maxVMICalls)
	for range maxVMICalls {
		go func() { answers <- api.Do(t.Context(), h.target, handlerapi.Pause, nil) }()
	}
	var waiting []uint64
	for range maxVMICalls {
		m, err := h.launcher.Receive()
		if err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, m.ID)
	}
	refused := func(err error) {
		t.Helper()
		var said *handlerapi.Error
		if !errors.As(err, &said) || said.Code != http.StatusTooManyRequests || !strings.Contains(said.Text, "VMI ns/vm has 8 questions") {
			t.Errorf("one too many: %v", err)
		}
	}
	refused(api.Do(t.Context(), h.target, handlerapi.Pause, nil))
	_, err := api.Query(t.Context(), h.target, handlerapi.Users)
	refused(err)
	_, err = api.Stream(t.Context(), h.target, handlerapi.Console, nil)
	refused(err)
	target := h.target
	target.Name, target.UID = second.Name, "u2"
	other.answers(control.CommandPause, done)
	if err := api.Do(t.Context(), target, handlerapi.Pause, nil); err != nil {
		t.Errorf("a question to another: %v", err)
	}
	for _, id := range waiting {
		if err := h.launcher.Send(control.Message{ID: id, Return: []byte("null")}); err != nil {
			t.Fatal(err)
		}
	}
	for range waiting {
		if err := <-answers; err != nil {
			t.Errorf("one that waited: %v", err)
		}
	}
	h.answers(control.CommandPause, done)
	if err := api.Do(t.Context(), h.target, handlerapi.Pause, nil); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// TestStrangersKeepVirtAPIFromNothing: connections that show nothing keep virt-api from
// nothing, and HTTP/2 is not spoken.
func TestStrangersKeepVirtAPIFromNothing(t *testing.T) {
	h := newTestHandler(t, ownServing)
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(h.port))
	for range 3 * serverStrangers {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	h.answers(control.CommandPause, done)
	if err := h.api().Do(t.Context(), h.target, handlerapi.Pause, nil); err != nil {
		t.Error(err)
	}
	shown := h.forAPI.Certify(authority.APIClient, authority.APIName, asClient)
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}, Certificates: []tls.Certificate{*shown}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := conn.ConnectionState().NegotiatedProtocol; got != "http/1.1" {
		t.Errorf("%q is spoken", got)
	}
}
