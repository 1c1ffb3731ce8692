package peer

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/importer"
)

// maxPeer bounds what is told of a peer, in bytes. A certificate of this package has less than 1 KiB.
const maxPeer = 16 << 10

// Handle answers what virt-controller asks and tells on the pod's loopback address.
func (p *Pair) Handle(mux *http.ServeMux) {
	mux.HandleFunc("GET "+importer.IdentityPath, func(w http.ResponseWriter, _ *http.Request) {
		now := time.Now()
		p.asked.Store(&now)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(p.Identity())
	})
	mux.HandleFunc("PUT "+importer.PeerPath, p.put)
}

// put takes a Peer.
func (p *Pair) put(w http.ResponseWriter, r *http.Request) {
	var told importer.Peer
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxPeer)).Decode(&told); err != nil {
		http.Error(w, "read the peer: it is not a Peer as JSON, or it is too long", http.StatusBadRequest)
		return
	}
	if err := p.Tell(told); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
