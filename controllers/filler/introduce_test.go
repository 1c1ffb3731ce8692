package filler

import (
	"bufio"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// TestPodsOfACopyAreIntroduced: the two pods of a copy are told of each other with each question, and so of a process that has
// started again.
func TestPodsOfACopyAreIntroduced(t *testing.T) {
	i := &importers{}
	w, c, changed := follower(t, i.dial)
	pods := importerOf(data, "1")
	pods.Source, pods.SourceUID, pods.Address = types.NamespacedName{Namespace: "golden", Name: "source"}, "2", "10.0.0.7:8445"
	done := int64(0)
	round := func() {
		t.Helper()
		done++
		i.say(pods.Importer.Name, importer.Progress{Done: done, Total: 9})
		await(t, c, changed)
	}
	i.say(pods.Importer.Name, importer.Progress{Total: 9})
	w.Follow(data, pods)
	await(t, c, changed)
	round()
	round()
	lately := func(want ...string) {
		t.Helper()
		if got := i.told(); len(got) < 2 || !slices.Equal(got[len(got)-2:], want) {
			t.Fatalf("%q, want %q last", got, want)
		}
	}
	lately(`source knows importer-data#0 at ""`, `importer-data knows source#0 at "10.0.0.7:8445"`)
	if got := i.told(); len(got) < 4 {
		t.Errorf("after three questions: %q", got)
	}
	i.restart("source")
	round()
	lately(`source knows importer-data#0 at ""`, `importer-data knows source#1 at "10.0.0.7:8445"`)
	i.restart(pods.Importer.Name)
	round()
	lately(`source knows importer-data#1 at ""`, `importer-data knows source#1 at "10.0.0.7:8445"`)
	// Another address is another conversation.
	pods.Address = "10.0.0.8:8445"
	if p := w.Follow(data, pods); p != nil {
		t.Errorf("%+v of the conversation before", p)
	}
	await(t, c, changed)
	lately(`source knows importer-data#1 at ""`, `importer-data knows source#1 at "10.0.0.8:8445"`)
	w.Close()
	if n := i.open.Load(); n != 0 {
		t.Errorf("%d connections are left open", n)
	}
}

// TestOnlyOwnRunningPodsAreIntroduced: nobody is introduced but the DataVolume's own two pods, which run.
func TestOnlyOwnRunningPodsAreIntroduced(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		want   bool
	}{
		"a copy":              {func(*world) {}, true},
		"not its own":         {func(w *world) { w.pod.OwnerReferences = nil }, false},
		"another DataVolume":  {func(w *world) { w.volume.UID = "another" }, false},
		"has ended":           {func(w *world) { w.pod.Status.Phase = corev1.PodSucceeded }, false},
		"no source":           {func(w *world) { w.origin.pods = nil }, false},
		"another source":      {func(w *world) { w.pod.Annotations[sourcePodAnnotation] = "x" }, false},
		"another claim":       {func(w *world) { w.origin.claim.UID = "x" }, false},
		"another namespace":   {func(w *world) { w.origin.pods[0].Namespace = "ns" }, false},
		"an unlabelled pod":   {func(w *world) { w.origin.pods[0].Labels = nil }, false},
		"the source starts":   {func(w *world) { w.origin.pods[0].Status.Phase = corev1.PodPending }, false},
		"no address":          {func(w *world) { w.origin.pods[0].Status.PodIP = "" }, false},
		"no copy":             {func(w *world) { w.origin = nil }, true},
		"the node's loopback": {func(w *world) { w.origin.pods[0].Status.PodIP = "127.0.0.1" }, false},
	} {
		w := copying(t)
		c.change(&w)
		if pods, ok := podsOf(w); ok != c.want {
			t.Errorf("%s: %+v, %v", name, pods, ok)
		}
	}
}

func TestOnlyUsablePodAddressesAreDialed(t *testing.T) {
	for ip, want := range map[string]string{"10.0.0.7": "10.0.0.7:8445", "fd00::7": "[fd00::7]:8445", "": "", "x": "", "127.0.0.1": "", "::1": "", "0.0.0.0": "",
		"169.254.169.254": "", "fe80::1%eth0": "", "224.0.0.1": "", "10.0.0.7:80": ""} {
		pod := &corev1.Pod{}
		pod.Status.PodIP = ip
		if got, ok := addressOf(pod); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %v, want %q", ip, got, ok, want)
		}
	}
}

// TestExchangeWithAPeer: what is said arrives, and the answer is read.
func TestExchangeWithAPeer(t *testing.T) {
	peer := importer.Peer{Identity: importer.Identity{Certificate: "-----\n$"}, Address: "[fd00::7]:8445"}
	said := make(chan string, 1)
	put := func(code string) func(io.ReadWriter) {
		return func(s io.ReadWriter) {
			request, err := http.ReadRequest(bufio.NewReader(s))
			if err != nil {
				return
			}
			body, _ := io.ReadAll(request.Body)
			said <- request.Method + " " + request.URL.Path + " " + string(body)
			fmt.Fprintf(s, "HTTP/1.1 %s\r\nConnection: close\r\n\r\n", code)
		}
	}
	text, err := json.Marshal(peer)
	if err != nil {
		t.Fatal(err)
	}
	if err := exchange(played(t, put("204 No Content")), http.MethodPut, importer.PeerPath, peer, nil); err != nil {
		t.Error(err)
	}
	if got := testkit.Receive(t, said, "a word"); got != "PUT /peer "+string(text) {
		t.Errorf("%q was said", got)
	}
	if err := exchange(played(t, put("409 Conflict")), http.MethodPut, importer.PeerPath, peer, nil); err == nil || !strings.Contains(err.Error(), "409") {
		t.Errorf("%v", err)
	}
}

func TestCheckIdentity(t *testing.T) {
	block := func(kind, bytes string) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: []byte(bytes)}))
	}
	one := block("CERTIFICATE", "x")
	for text, want := range map[string]bool{one: true, "": false, "x": false, one + one: false, block("PRIVATE KEY", "x"): false, block("CERTIFICATE", ""): false} {
		if err := checkIdentity(importer.Identity{Certificate: text}); (err == nil) != want {
			t.Errorf("%q: %v", text, err)
		}
	}
}
