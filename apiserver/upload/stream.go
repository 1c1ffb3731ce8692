package upload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/apiserver/callers"
	"github.com/kubeqemu/kubeqemu/internal/importer"
)

// Subprotocol is that of an image from the page. The client sends binary messages, which one after another are the
// image. virt-api sends text messages: each is a word.
const Subprotocol = "upload.kubeqemu.io"

const (
	// window, in bytes, is how much a client may have sent that virt-api has not taken yet. It is also the largest message.
	// virt-api holds one chunk only: the rest is in the buffers of the connection, and the client waits.
	window = 2 << 20
	// step is after how many bytes virt-api says how much it has taken.
	step = window / 8
	// wordTimeout is how long a client may take no word. A client that keeps to the window has at most
	// window/step of them to read, which the buffers of any connection hold.
	wordTimeout = time.Second
	// pingInterval keeps proxies from ending a connection while an importer writes.
	pingInterval = 30 * time.Second
)

// word is what virt-api tells the client of a stream. The last word is Done or Refused.
type word struct {
	// Taken is how many bytes of the image virt-api has passed on.
	Taken int64 `json:"taken"`
	// Window is how many more bytes than Taken the client may send.
	Window int64 `json:"window"`
	// Done: the importer has taken the image.
	Done bool `json:"done,omitempty"`
	// Refused is why the image was not taken.
	Refused string `json:"refused,omitempty"`
}

// Await returns an error unless the user may upload into a DataVolume, and the DataVolume waits for its image now. The
// user needs the right to create UploadTokenRequests: the right of the subresource is one to get, which roles that
// only read may have.
func (s *Server) Await(ctx context.Context, who callers.User, namespace, volume string) error {
	if err := s.Rights.Check(ctx, who, mayUpload(namespace)); err != nil {
		return err
	}
	ctx, release, err := s.requests.Take(ctx, who, namespace)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, s.bounds.dial)
	defer cancel()
	to, err := s.cluster.find(ctx, namespace, volume)
	if err != nil {
		return callers.GaveWay(ctx, err)
	}
	var no refusal
	if errors.As(to.waits(), &no) {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: int32(no.code), Message: no.text,
			Reason: map[int]metav1.StatusReason{http.StatusConflict: metav1.StatusReasonConflict}[no.code]}}
	}
	return nil
}

// mayUpload is the right to upload into the DataVolumes of a namespace.
func mayUpload(namespace string) *callers.Attributes {
	return &callers.Attributes{Namespace: namespace, Verb: "create", Group: cdi.UploadGroupVersion.Group, Version: cdi.UploadGroupVersion.Version, Resource: resource}
}

// Stream takes an image through a websocket. Await has returned nil. The query says the image's size. Browsers show a page no
// answer to a websocket's request: so what comes later than Await is told in a word.
func (s *Server) Stream(w http.ResponseWriter, r *http.Request, who callers.User, namespace, volume string) error {
	size, err := strconv.ParseInt(r.URL.Query().Get("size"), 10, 64)
	if err != nil || size <= 0 {
		return apierrors.NewBadRequest("size: say how many bytes the image has, more than none")
	}
	upgrader := websocket.Upgrader{Subprotocols: []string{Subprotocol},
		// The caller has checked the origin.
		CheckOrigin: func(*http.Request) bool { return true }}
	client, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		s.Log.V(1).Info("upgrade", "path", r.URL.Path, "reason", err.Error()) // Upgrade has answered the client
		return nil
	}
	defer client.Close()
	client.SetReadLimit(window)
	image := &messages{client: client, left: size}
	log := s.Log.WithValues("namespace", namespace, "dataVolume", volume, "user", who.Name)
	log.Info("pass on an image", "bytes", size)
	last := word{Done: true}
	// That the client goes, the reading of the image says, as with other uploads.
	if err := s.stream(context.WithoutCancel(r.Context()), image, types.NamespacedName{Namespace: namespace, Name: importer.PodName(volume)}); err != nil {
		log.Info("an image was not taken", "reason", err.Error())
		var no refusal
		if !errors.As(err, &no) {
			no.text = "virt-api cannot pass on the image now; its log says why"
		}
		last = word{Refused: no.text}
	} else {
		log.Info("the importer has taken the image")
	}
	image.end(last, s.bounds.linger)
	return nil
}

// stream passes on an image while it has a place.
func (s *Server) stream(ctx context.Context, image *messages, pod types.NamespacedName) error {
	ctx, release, err := s.room(ctx, pod.Namespace)
	if err != nil {
		return err
	}
	defer release()
	if err := image.say(word{}); err != nil {
		return refusal{http.StatusBadRequest, fmt.Sprintf("the image broke off: %v", err)}
	}
	pinging, enough := context.WithCancel(ctx)
	var pings sync.WaitGroup
	pings.Go(func() { ping(pinging, image.client) })
	defer pings.Wait()
	defer enough()
	// There is no grace: end reads on in another way.
	err = s.pass(ctx, &body{from: image, deadline: image.client.NetConn().SetReadDeadline, patience: s.bounds.client}, image.left, pod)
	if errors.Is(context.Cause(ctx), callers.ErrGaveWay) {
		return refusal{http.StatusServiceUnavailable, callers.ErrGaveWay.Error()}
	}
	return err
}

// ping pings until ctx ends. Reading the image shows whether the client is alive.
func ping(ctx context.Context, client *websocket.Conn) {
	tick := time.NewTicker(pingInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_ = client.WriteControl(websocket.PingMessage, nil, time.Now().Add(wordTimeout))
		}
	}
}

// messages reads an image from a client's messages, and tells the client how much is taken.
type messages struct {
	client *websocket.Conn
	// message is what is left of the message that is being read, or nil.
	message io.Reader
	// left is how many bytes of the image are to come, read how many have come, and said how many of them the client knows of.
	left, read, said int64
	failed           bool
}

var (
	errText = errors.New("the client sent text: an image is sent in binary messages")
	errLong = errors.New("the client sent more bytes than it had said")
)

// Read reads the next bytes of the image. A Read shows that the bytes of the Read before are passed on: Read tells the
// client so.
func (m *messages) Read(p []byte) (int, error) {
	n, err := m.next(p)
	m.failed = m.failed || err != nil && err != io.EOF
	return n, err
}

func (m *messages) next(p []byte) (int, error) {
	if m.read-m.said >= step || m.left == 0 && m.read > m.said {
		if err := m.say(word{}); err != nil {
			return 0, err
		}
	}
	if m.left == 0 {
		return 0, io.EOF
	}
	for {
		if m.message == nil {
			kind, message, err := m.client.NextReader()
			if err != nil {
				return 0, err
			}
			if kind != websocket.BinaryMessage {
				return 0, errText
			}
			m.message = message
		}
		n, err := m.message.Read(p[:min(int64(len(p)), m.left)])
		if err == io.EOF {
			m.message, err = nil, nil
		}
		if err != nil {
			return 0, err
		}
		if n == 0 {
			continue // the deadline of the reading ends a client that sends nothing but empty messages
		}
		m.left, m.read = m.left-int64(n), m.read+int64(n)
		// The last bytes are held back, so that no importer takes the image for whole.
		if m.left == 0 && m.more() {
			return 0, errLong
		}
		return n, nil
	}
}

// more says whether the message goes on.
func (m *messages) more() bool {
	if m.message == nil {
		return false
	}
	n, _ := io.ReadFull(m.message, make([]byte, 1))
	return n > 0
}

// say tells the client how much is taken.
func (m *messages) say(w word) error {
	w.Taken, w.Window, m.said = m.read, window, m.read
	if err := m.client.SetWriteDeadline(time.Now().Add(wordTimeout)); err != nil {
		return err
	}
	return m.client.WriteJSON(w)
}

// end says the last word, and gives the client a moment to read it: a connection that is closed while bytes arrive is reset,
// and the word would be lost.
func (m *messages) end(last word, linger time.Duration) {
	until := time.Now().Add(linger)
	if m.say(last) != nil || m.client.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), until) != nil ||
		m.client.NetConn().SetReadDeadline(until) != nil {
		return
	}
	if m.failed {
		// The bounds of messages are lost.
		_, _ = io.Copy(io.Discard, m.client.NetConn())
		return
	}
	for {
		if _, _, err := m.client.NextReader(); err != nil {
			return
		}
	}
}
