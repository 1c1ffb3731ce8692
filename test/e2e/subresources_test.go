package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const subresources = "/apis/subresources.kubevirt.io/v1"

// configOf is the configuration of a user of the cluster; without a name, the
// administrator's.
func configOf(t *testing.T, name string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	if name != "" {
		config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: []string{"system:authenticated"}}
	}
	return config
}

// ask sends a request through the API server as virtctl does, and returns the
// answer's code, and its Status where it is one.
func ask(t *testing.T, config *rest.Config, method, path string, body any) (int, metav1.Status) {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	var text []byte
	if body != nil {
		if text, err = json.Marshal(body); err != nil {
			t.Fatal(err)
		}
	}
	request, err := http.NewRequest(method, strings.TrimSuffix(config.Host, "/")+path, bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if config.ContentType != "" {
		request.Header.Set("Content-Type", config.ContentType)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	var status metav1.Status
	_ = json.Unmarshal(answer, &status)
	return response.StatusCode, status
}

func (v vmi) path(resource, sub string) string {
	return fmt.Sprintf("%s/namespaces/%s/%s/%s/%s", subresources, v.namespace, resource, v.name, sub)
}

// asked asks for a subresource, and wants this code, and this in the message.
func (v vmi) asked(code int, message, user, resource, sub string, body any) {
	v.t.Helper()
	method := http.MethodPut
	if sub == "console" || sub == "vnc" || strings.HasPrefix(sub, "portforward") {
		method = http.MethodGet
	}
	got, status := ask(v.t, configOf(v.t, user), method, v.path(resource, sub), body)
	if got != code || !strings.Contains(status.Message, message) || code >= 400 && status.Kind != "Status" {
		v.t.Fatalf("%s of %s by %q: %d %q, want %d %q", sub, v.name, user, got, status.Message, code, message)
	}
}

// does is asked of a VM, which does it.
func (m vm) does(verb string, options any) {
	m.t.Helper()
	m.asked(http.StatusAccepted, "", "", "virtualmachines", verb, options)
}

// refuses is asked of a VM, which does not.
func (m vm) refuses(verb, message string, options any) {
	m.t.Helper()
	m.asked(http.StatusConflict, message, "", "virtualmachines", verb, options)
}

// dial opens a websocket as KubeVirt's client does.
func dial(t *testing.T, user, path string) (*websocket.Conn, *http.Response, error) {
	t.Helper()
	config := configOf(t, user)
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	address, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	address.Scheme = "wss"
	address.Path, address.RawQuery, _ = strings.Cut(path, "?")
	header := http.Header{}
	if config.BearerToken != "" {
		header.Set("Authorization", "Bearer "+config.BearerToken)
	}
	if user != "" {
		header.Set("Impersonate-User", user)
		header.Set("Impersonate-Group", "system:authenticated")
	}
	dialer := websocket.Dialer{TLSClientConfig: tlsConfig, Subprotocols: []string{"plain.kubevirt.io"}, HandshakeTimeout: 30 * time.Second}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	return dialer.DialContext(ctx, address.String(), header)
}

// input is what is typed into a websocket.
type input struct{ conn *websocket.Conn }

func (i input) Write(p []byte) (int, error) {
	return len(p), i.conn.WriteMessage(websocket.BinaryMessage, p)
}
func (i input) Close() error { return i.conn.Close() }

// attach opens a stream of the VMI's through the API server.
func (v vmi) attach(resource, sub string) *transcript {
	v.t.Helper()
	conn, response, err := dial(v.t, "", v.path(resource, sub))
	if err != nil {
		text := ""
		if response != nil {
			body, _ := io.ReadAll(response.Body)
			text = response.Status + " " + string(body)
		}
		v.t.Fatalf("attach to %s of %s: %v: %s", sub, v.name, err, text)
	}
	if p := conn.Subprotocol(); p != "plain.kubevirt.io" {
		v.t.Errorf("%s of %s speaks %q", sub, v.name, p)
	}
	return transcribe(v.t, sub+" of VMI "+v.name, conn)
}

// transcribe reads a stream, and ends it with the test.
func transcribe(t *testing.T, what string, conn *websocket.Conn) *transcript {
	t.Helper()
	s := &transcript{t: t, what: what, input: input{conn}, ended: make(chan struct{}), wake: make(chan struct{})}
	go func() {
		defer close(s.ended)
		for {
			kind, message, err := conn.ReadMessage()
			if err != nil {
				return
			}
			if kind == websocket.BinaryMessage {
				_, _ = s.Write(message)
			}
		}
	}()
	t.Cleanup(func() {
		conn.Close()
		<-s.ended
	})
	return s
}

// prompt waits for the shell of a tiny guest.
func (s *transcript) prompt() *transcript {
	s.t.Helper()
	err := poll(func() error {
		s.send("\n")
		if !strings.Contains(s.all(), "tiny# ") {
			return fmt.Errorf("%s has no prompt; it is:\n%s", s.what, s.all())
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return s
}

// TestStartStopRestartByRunStrategy: start, stop and restart, through the API server, do with every run
// strategy what KubeVirt's do.
func TestStartStopRestartByRunStrategy(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	for strategy, life := range map[v1.VirtualMachineRunStrategy]func(vm){
		v1.RunStrategyHalted: verbsHalted, v1.RunStrategyManual: verbsManual, v1.RunStrategyRerunOnFailure: verbsRerun, v1.RunStrategyOnce: verbsOnce,
	} {
		t.Run(string(strategy), func(t *testing.T) {
			t.Parallel()
			life(createVM(t, ns, strings.ToLower(string(strategy)), strategy, bootsKernel))
		})
	}
}

// verbsHalted starts it, paused first, which makes it one with Always.
func verbsHalted(m vm) {
	m.is(v1.VirtualMachineStatusStopped)
	m.refuses("stop", "VM is not running", nil)
	m.refuses("restart", "RunStategy Halted does not support manual restart requests", nil)
	m.does("start", v1.StartOptions{DryRun: []string{"All"}})
	if s := m.machine().Strategy(); s != v1.RunStrategyHalted {
		m.t.Fatalf("after a dry run the strategy is %s", s)
	}
	m.does("start", v1.StartOptions{Paused: true})
	m.is(v1.VirtualMachineStatusPaused)
	m.asked(http.StatusOK, "", "", "virtualmachineinstances", "unpause", v1.UnpauseOptions{})
	first := m.runs("")
	m.refuses("start", "VM is already running", nil)
	m.does("restart", nil)
	second := m.runs(first)
	m.asked(http.StatusBadRequest, "Only gracePeriod=0 is supported for now", "", "virtualmachines", "restart", map[string]any{"gracePeriodSeconds": 5})
	m.does("stop", nil)
	m.ends("")
	m.patch(`{"spec":{"template":{"spec":{"terminationGracePeriodSeconds":3600}}}}`)
	m.does("start", nil)
	m.runs(second)
	// A paused guest does not hear of the power button: it would have its hour.
	m.asked(http.StatusOK, "", "", "virtualmachineinstances", "pause", nil)
	m.is(v1.VirtualMachineStatusPaused)
	m.does("stop", map[string]any{"gracePeriod": 1})
	m.ends("") // or it would have to wait longer than a test does
}

func verbsManual(m vm) {
	m.is(v1.VirtualMachineStatusStopped)
	m.does("start", nil)
	first := m.runs("")
	m.does("restart", map[string]any{"gracePeriodSeconds": 0})
	m.runs(first)
	m.does("stop", nil)
	m.ends("")
	m.refuses("stop", "VM is not running", nil)
	m.refuses("restart", "VM is not running", nil)
}

func verbsRerun(m vm) {
	first := m.runs("")
	m.does("restart", nil)
	m.runs(first)
	m.does("stop", nil)
	m.ends("")
	m.does("start", nil)
	m.runs("")
}

func verbsOnce(m vm) {
	m.runs("")
	m.refuses("start", "VM is already running", nil)
	m.refuses("restart", "RunStategy Once does not support manual restart requests", nil)
	m.does("stop", nil)
	m.ends("")
	if s := m.machine().Strategy(); s != v1.RunStrategyHalted {
		m.t.Errorf("a stopped VM of strategy Once is %s", s)
	}
}

// TestPauseAndConsole: a paused guest stands still and goes on; its console goes
// through the API server, and a newer one takes over from an older; who only
// looks may do none of it.
func TestPauseAndConsole(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	m := createVM(t, ns, "paused", v1.RunStrategyAlways, bootsKernel)
	none := vmi{t: t, namespace: ns, name: "none"}
	none.asked(http.StatusNotFound, `virtualmachineinstance.kubevirt.io "none" not found`, "", "virtualmachineinstances", "pause", nil)
	uid := m.runs("")
	shell := m.attach("virtualmachineinstances", "console").prompt()
	if out, status := shell.run("uname -s"); status != 0 || !strings.Contains(out, "Linux") {
		t.Fatalf("uname in the guest: %q (%d)", out, status)
	}
	m.standsStill(shell)
	m.resets(shell, uid)
	second := m.attach("virtualmachineinstances", "console").prompt()
	select {
	case <-shell.ended:
	case <-time.After(patience):
		t.Error("the console that was taken over is still there")
	}
	m.forRoles(ns)
	m.does("stop", nil)
	select {
	case <-second.ended:
	case <-time.After(patience):
		t.Error("the console is there, the guest is not")
	}
	m.ends("")
	m.asked(http.StatusNotFound, "not found", "", "virtualmachineinstances", "console", nil)
}

// standsStill pauses the guest, types, and unpauses it.
func (m vm) standsStill(shell *transcript) {
	m.t.Helper()
	const instances = "virtualmachineinstances"
	m.asked(http.StatusConflict, "VMI is not paused", "", instances, "unpause", nil)
	m.asked(http.StatusOK, "", "", instances, "pause", v1.PauseOptions{DryRun: []string{"All"}})
	m.asked(http.StatusOK, "", "", instances, "pause", v1.PauseOptions{})
	m.is(v1.VirtualMachineStatusPaused)
	m.asked(http.StatusConflict, "VMI is already paused", "", instances, "pause", nil)
	if c := m.get().Status.Condition(v1.ConditionPaused); c == nil || c.Reason != "PausedByUser" || c.Message != "VMI was paused by user" {
		m.t.Errorf("condition Paused: %+v", c)
	}
	shell.send("echo still\\-here\n")
	time.Sleep(3 * time.Second)
	if strings.Contains(shell.all(), "still-here") {
		m.t.Error("a paused guest answers")
	}
	m.asked(http.StatusOK, "", "", instances, "unpause", v1.UnpauseOptions{})
	shell.shows("still-here")
	m.is(v1.VirtualMachineStatusRunning)
}

// resets presses the reset button: the same machine boots anew.
func (m vm) resets(shell *transcript, uid types.UID) {
	m.t.Helper()
	if _, status := shell.run("touch /before"); status != 0 {
		m.t.Fatal("cannot touch a file in the guest")
	}
	m.asked(http.StatusOK, "", "", "virtualmachineinstances", "reset", nil)
	shell.expect("tiny: up")
	before := len(shell.all())
	if err := poll(func() error {
		shell.send("\n")
		if !strings.Contains(shell.all()[before:], "tiny# ") {
			return fmt.Errorf("no prompt after a reset; it is:\n%s", shell.all()[before:])
		}
		return nil
	}); err != nil {
		m.t.Fatal(err)
	}
	if _, status := shell.run("test -e /before"); status == 0 {
		m.t.Errorf("the guest of %s has not been reset", m.name)
	}
	if now := m.uid(); now != uid {
		m.t.Errorf("after a reset the VMI is %s, and was %s", now, uid)
	}
}

// forRoles asks as users with Kubernetes' own roles in the namespace, and as nobody.
func (m vm) forRoles(ns string) {
	m.t.Helper()
	for _, role := range []string{"view", "edit"} {
		kubectl(m.t, "-n", ns, "create", "rolebinding", role, "--clusterrole="+role, "--user="+role+"-"+ns)
	}
	viewer, editor := "view-"+ns, "edit-"+ns
	if err := poll(func() error {
		code, status := ask(m.t, configOf(m.t, editor), http.MethodPut, m.path("virtualmachineinstances", "pause"), v1.PauseOptions{DryRun: []string{"All"}})
		if code != http.StatusOK {
			return fmt.Errorf("%s may not pause yet: %s", editor, status.Message)
		}
		return nil
	}); err != nil {
		m.t.Fatal(err)
	}
	for _, who := range []string{viewer, "stranger"} {
		for _, sub := range []string{"pause", "unpause", "reset", "console", "vnc"} {
			m.asked(http.StatusForbidden, "cannot", who, "virtualmachineinstances", sub, nil)
		}
		for _, verb := range []string{"start", "stop", "restart"} {
			m.asked(http.StatusForbidden, "cannot", who, "virtualmachines", verb, nil)
		}
		if _, response, err := dial(m.t, who, m.path("virtualmachineinstances", "console")); err == nil || response == nil || response.StatusCode != http.StatusForbidden {
			m.t.Errorf("%s opens a console: %v", who, err)
		}
	}
	m.asked(http.StatusOK, "", editor, "virtualmachineinstances", "pause", nil)
	m.is(v1.VirtualMachineStatusPaused)
	m.asked(http.StatusOK, "", editor, "virtualmachineinstances", "unpause", nil)
	m.is(v1.VirtualMachineStatusRunning)
	anonymous := rest.AnonymousClientConfig(configOf(m.t, ""))
	if code, _ := ask(m.t, anonymous, http.MethodPut, m.path("virtualmachineinstances", "pause"), nil); code != http.StatusForbidden && code != http.StatusUnauthorized {
		m.t.Errorf("nobody pauses: %d", code)
	}
}

// TestScreenAndPortsOfAGuest: the screen and the ports of a guest, through the API server.
func TestScreenAndPortsOfAGuest(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	machine := &v1.VirtualMachine{}
	if err := json.Unmarshal([]byte(manifestOf(t, "seen", v1.RunStrategyAlways)), machine); err != nil {
		t.Fatal(err)
	}
	machine.Spec.Template.Spec.Domain.Devices.AutoattachGraphicsDevice = nil
	text, err := json.Marshal(machine)
	if err != nil {
		t.Fatal(err)
	}
	apply(t, ns, string(text))
	m := vm{vmi{t: t, namespace: ns, name: "seen"}}
	m.runs("")
	first := m.attach("virtualmachineinstances", "vnc")
	first.expect(`^RFB 003\.\d\d\d\n`)
	second := m.attach("virtualmachineinstances", "vnc")
	second.expect(`^RFB 003\.\d\d\d\n`)
	select {
	case <-first.ended:
	case <-time.After(patience):
		t.Error("the screen that was taken over is still there")
	}
	if _, response, err := dial(t, "", m.path("virtualmachineinstances", "vnc")+"?preserveSession=true"); err == nil || response == nil || response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a session that is to be preserved: %v", err)
	}
	m.pictured()
	m.throughProxy()
	for _, resource := range []string{"virtualmachineinstances", "virtualmachines"} {
		err := poll(func() error { return m.forwards(resource, "portforward/7/tcp") })
		if err != nil {
			t.Errorf("port of %s: %v", resource, err)
		}
	}
	if _, response, err := dial(t, "", m.path("virtualmachineinstances", "portforward/10")); err == nil || response == nil || response.StatusCode != http.StatusInternalServerError {
		t.Errorf("a port that nobody listens on: %v", err)
	}
}

// forwards sends something to an echo server of the guest.
func (m vm) forwards(resource, sub string) error {
	m.t.Helper()
	conn, _, err := dial(m.t, "", m.path(resource, sub))
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.WriteMessage(websocket.BinaryMessage, []byte("to-and-fro")); err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	_, message, err := conn.ReadMessage()
	if err == nil && string(message) != "to-and-fro" {
		err = fmt.Errorf("the guest's echo is %q", message)
	}
	return err
}
