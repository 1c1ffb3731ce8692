package filler

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeqemu/kubeqemu/internal/importer"
)

// Pods are what is followed of a DataVolume: the importer pod and, of a copy, the source pod. They are
// virt-controller's own: the reconciler knows them by their label, which nobody else gives a pod, and
// by the DataVolume's UID.
type Pods struct {
	Importer types.NamespacedName
	UID      types.UID
	// Source is the source pod's name, or empty. Address is where it listens for the importer.
	Source    types.NamespacedName
	SourceUID types.UID
	Address   string
}

// podsOf are the pods to follow now, if there are any.
func podsOf(w world) (Pods, bool) {
	if !follows(w.pod) || !owns(w.volume, w.pod) {
		return Pods{}, false
	}
	pods := Pods{Importer: types.NamespacedName{Namespace: w.pod.Namespace, Name: w.pod.Name}, UID: w.pod.UID}
	if !w.copies() {
		return pods, true
	}
	source := w.origin.pod(w.volume)
	if !follows(source) || w.pod.Annotations[sourcePodAnnotation] != string(source.UID) {
		return Pods{}, false
	}
	pods.Source, pods.SourceUID = types.NamespacedName{Namespace: source.Namespace, Name: source.Name}, source.UID
	var ok bool
	pods.Address, ok = addressOf(source)
	return pods, ok
}

func follows(pod *corev1.Pod) bool {
	return pod != nil && pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil
}

// addressOf is where a source pod listens. The address is the word of the pod's node, and the importer
// connects to it: it is a pod's, or no address.
func addressOf(source *corev1.Pod) (string, bool) {
	address, err := netip.ParseAddr(source.Status.PodIP)
	if err != nil || address.Zone() != "" || !address.IsGlobalUnicast() {
		return "", false
	}
	return netip.AddrPortFrom(address, importer.PeerPort).String(), true
}

// connect connects to the importer, and to the source pod of a copy.
func (w *Watcher) connect(ctx context.Context, pods Pods) (Connection, error) {
	to, err := w.dial(ctx, pods.Importer)
	if err != nil || pods.Source.Name == "" {
		return to, err
	}
	source, err := w.dial(ctx, pods.Source)
	if err != nil {
		to.Close()
		return nil, err
	}
	return &pair{Connection: to, source: source, address: pods.Address}, nil
}

// pair is a Connection to the importer of a copy and to its source pod. The importer begins once the two
// have been introduced.
type pair struct {
	Connection
	source  Connection
	address string
}

func (p *pair) Close() {
	p.source.Close()
	p.Connection.Close()
}

// Ask introduces the two to each other, and returns the progress. The two are introduced each time: a process that has
// started again has forgotten its peer, and somebody else who may forward ports to a pod may have told it another one.
func (p *pair) Ask(ctx context.Context) (importer.Progress, error) {
	if err := p.introduce(ctx); err != nil {
		return importer.Progress{}, err
	}
	return p.Connection.Ask(ctx)
}

func (p *pair) introduce(ctx context.Context) error {
	filling, err := p.Identity(ctx)
	if err != nil {
		return err
	}
	serving, err := p.source.Identity(ctx)
	if err != nil {
		return err
	}
	if err := p.source.Introduce(ctx, importer.Peer{Identity: filling}); err != nil {
		return err
	}
	return p.Connection.Introduce(ctx, importer.Peer{Identity: serving, Address: p.address})
}

// checkIdentity refuses what is no certificate, or more than one. What the certificate says is for the
// peer to judge, which compares it as a whole.
func checkIdentity(identity importer.Identity) error {
	block, rest := pem.Decode([]byte(identity.Certificate))
	if block == nil || block.Type != "CERTIFICATE" || len(block.Bytes) == 0 || len(rest) > 0 {
		return errors.New("the pod shows no certificate")
	}
	return nil
}

// Identity asks a pod for its identity.
func (f forward) Identity(ctx context.Context) (identity importer.Identity, err error) {
	if err = f.exchange(ctx, http.MethodGet, importer.IdentityPath, nil, &identity); err == nil {
		err = checkIdentity(identity)
	}
	if err != nil {
		return importer.Identity{}, fmt.Errorf("ask for the identity: %w", err)
	}
	return identity, nil
}

// Introduce tells a pod who its peer is.
func (f forward) Introduce(ctx context.Context, peer importer.Peer) error {
	if err := f.exchange(ctx, http.MethodPut, importer.PeerPath, peer, nil); err != nil {
		return fmt.Errorf("introduce the peer: %w", err)
	}
	return nil
}
