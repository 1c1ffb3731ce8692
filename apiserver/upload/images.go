package upload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeqemu/kubeqemu/apiserver/callers"
	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/intake"
)

// refusal is an answer other than 200 to who sends an image. The client shows its text.
type refusal struct {
	code int
	text string
}

func (r refusal) Error() string { return r.text }

// answerTimeout is how long a client may take to read an answer.
const answerTimeout = 30 * time.Second

// serveImage answers who sends an image, or asks whether to.
func (s *Server) serveImage(w http.ResponseWriter, r *http.Request) {
	err := s.image(w, r)
	// net/http's own deadline began with the head of the request.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTimeout))
	// A connection carries one image: the rest of a refused image is not read, and Vouch holds for one image.
	w.Header().Set("Connection", "close")
	defer s.linger(w, r)
	if err == nil {
		w.Header().Set("Content-Length", "0") // the answer ends before the connection does
		w.WriteHeader(http.StatusOK)
		return
	}
	var no refusal
	if !errors.As(err, &no) {
		s.Log.Error(err, "pass on an image")
		no = refusal{http.StatusServiceUnavailable, "virt-api cannot pass on the image now; its log says why"}
	}
	s.Log.V(1).Info("refuse an image", "code", no.code, "reason", no.text)
	if no.code == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	text := no.text + "\n"
	w.Header().Set("Content-Length", strconv.Itoa(len(text))) // the client knows the end before the connection ends
	w.WriteHeader(no.code)
	// The client may have gone; nothing else can fail.
	_, _ = io.WriteString(w, text)
}

// linger sends the answer, and gives the client a moment to close the connection. A connection that is closed while
// bytes arrive is reset: a client that is busy sending would not see the answer, and kubectl port-forward ends when
// one of its connections is reset.
func (s *Server) linger(w http.ResponseWriter, r *http.Request) {
	client, end := http.NewResponseController(w), time.NewTimer(s.bounds.linger)
	defer end.Stop()
	if client.Flush() != nil || client.SetReadDeadline(time.Now().Add(s.bounds.linger)) != nil {
		return
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return // the client has closed the connection, or sends on
	}
	select {
	case <-r.Context().Done():
	case <-end.C:
	}
}

func (s *Server) image(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodPost && r.Method != http.MethodHead {
		w.Header().Set("Allow", "POST, HEAD")
		return refusal{http.StatusMethodNotAllowed, "send an image with POST"}
	}
	g, err := s.granted(r)
	if err != nil || r.Method == http.MethodHead { // HEAD asks whether the path is there
		return err
	}
	if r.ContentLength == 0 {
		return refusal{http.StatusBadRequest, "the image is empty"}
	}
	// That the client goes, the reading of the image says. Once the image is whole, the client is not needed any
	// more.
	ctx, release, err := s.room(context.WithoutCancel(r.Context()), g.Namespace)
	if err != nil {
		return err
	}
	defer release()
	volume, err := s.waiting(ctx, g)
	if err != nil {
		return err
	}
	// The connections of strangers give way to others. This one has its place.
	intake.Vouch(r.Context())
	log := s.Log.WithValues("namespace", g.Namespace, "dataVolume", volume)
	log.Info("pass on an image", "bytes", r.ContentLength)
	image := &body{from: r.Body, deadline: http.NewResponseController(w).SetReadDeadline, patience: s.bounds.client, grace: s.bounds.linger}
	err = s.pass(ctx, image, r.ContentLength, types.NamespacedName{Namespace: g.Namespace, Name: importer.PodName(volume)})
	if errors.Is(context.Cause(ctx), callers.ErrGaveWay) {
		err = refusal{http.StatusServiceUnavailable, callers.ErrGaveWay.Error()}
	}
	if err != nil {
		log.Info("an image was not taken", "reason", err.Error())
		return err
	}
	log.Info("the importer has taken the image")
	return nil
}

// granted is what the token of a request permits.
func (s *Server) granted(r *http.Request) (grant, error) {
	kind, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(kind, "Bearer") {
		return grant{}, refusal{http.StatusUnauthorized, "an upload needs the token of an UploadTokenRequest: Authorization: Bearer TOKEN"}
	}
	keys, err := s.Keys()
	if err != nil {
		return grant{}, err
	}
	g, err := keys.verify(strings.TrimSpace(token), s.Now())
	if err != nil {
		return grant{}, refusal{http.StatusUnauthorized, err.Error()}
	}
	return g, nil
}

// waiting returns the DataVolume into which a grant permits to upload.
func (s *Server) waiting(ctx context.Context, g grant) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.bounds.dial)
	defer cancel()
	to, err := s.cluster.find(ctx, g.Namespace, g.Claim)
	switch {
	case apierrors.IsNotFound(err), err == nil && string(to.claim.UID) != g.UID:
		return "", refusal{http.StatusUnauthorized, "the token's claim is gone"}
	case err != nil:
		return "", fmt.Errorf("find the claim of an upload: %w", err)
	}
	if err := to.waits(); err != nil {
		return "", err
	}
	return to.volume.Name, nil
}

// waits returns a refusal unless a claim waits for an image now.
func (t target) waits() error {
	if err := t.open(); err != nil {
		return refusal{http.StatusConflict, err.Error()}
	}
	if !t.ready() {
		return refusal{http.StatusServiceUnavailable, fmt.Sprintf("DataVolume %s takes no image yet: it is %s; kubectl describe dv %s says more", t.volume.Name, phase(t), t.volume.Name)}
	}
	return nil
}

func phase(to target) string {
	if to.volume.Status.Phase == "" {
		return "new"
	}
	return string(to.volume.Status.Phase)
}
