package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"context"
	"net"

	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/importer/peer"
)

// TestBreakPeer: whoever may forward ports to a source pod (pods/portforward alone: no exec, no pods; or virt-api's
// token) takes the peer's place, and reads the claim's disk. virt-controller does not tell the true peer again: neither
// of the two identities that it asks for has changed.
func TestBreakPeer(t *testing.T) {
	raw := bytes.Repeat([]byte("another tenant's secret "), 1<<12)
	from, address := servingPod(t, raw)
	to := newPod(t, "")
	to.task.Source, to.task.Permitted = importer.Source{Claim: &importer.Claim{}}, nil
	serving, copying := from.start(), to.start()
	defer serving.Process.Kill()
	defer copying.Process.Kill()
	for deadline := time.Now().Add(20 * time.Second); introduce(to, from, "") != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the pods do not start")
		}
	}
	thief, err := peer.New(true)
	if err != nil {
		t.Fatal(err)
	}
	told, _ := json.Marshal(importer.Peer{Identity: thief.Identity()})
	if _, err := from.do("PUT", importer.PeerPath, told, http.StatusNoContent); err != nil {
		t.Skip("the pod does not take another peer:", err)
	}
	text, err := from.do("GET", importer.IdentityPath, nil, http.StatusOK)
	if err != nil {
		t.Fatal(err)
	}
	var identity importer.Identity
	_ = json.Unmarshal(text, &identity)
	if err := thief.Tell(importer.Peer{Identity: identity, Address: address}); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return thief.Dial(ctx) }}}
	response, err := client.Get("https://peer" + importer.PeerDiskPath)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := io.ReadAll(response.Body)
	if bytes.Equal(got, raw) {
		t.Errorf("a stranger on the loopback address reads the whole disk: %d bytes, %q", len(got), got[:24])
	}
}
