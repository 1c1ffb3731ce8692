package upload

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/apiserver/callers"
	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// serve serves streams as package subresources does, and passes the rest on.
func (b *bench) serve(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.URL.Path, "/")
	if parts[len(parts)-1] != "upload" {
		b.ServeHTTP(w, r)
		return
	}
	who, err := callers.Identify(r, b.FrontProxy, b.Now())
	if err == nil {
		err = b.Await(r.Context(), who, parts[1], parts[2])
	}
	if err == nil {
		err = b.Stream(w, r, who, parts[1], parts[2])
	}
	if err != nil {
		callers.Refuse(w, r, b.Log, err)
	}
}

// connect opens a stream into a namespace's disk, or returns the refusal.
func (b *bench) connect(user, path string) (*websocket.Conn, int, string) {
	b.t.Helper()
	dialer := websocket.Dialer{TLSClientConfig: b.certificate, Subprotocols: []string{Subprotocol}}
	client, response, err := dialer.Dial("wss"+strings.TrimPrefix(b.url, "https")+path, http.Header{"X-Remote-User": {user}})
	if err != nil {
		text, _ := io.ReadAll(response.Body)
		return nil, response.StatusCode, string(text)
	}
	b.t.Cleanup(func() { client.Close() })
	if err := client.SetReadDeadline(time.Now().Add(testkit.Patience)); err != nil {
		b.t.Fatal(err)
	}
	return client, 0, ""
}

// open opens a stream as ann.
func (b *bench) open(namespace string, size int) *websocket.Conn {
	b.t.Helper()
	client, code, text := b.connect("ann", fmt.Sprintf("/%s/disk/upload?size=%d", namespace, size))
	if code != 0 {
		b.t.Fatalf("%d %s", code, text)
	}
	return client
}

// last reads words until the last one, and that the stream is closed then. Taken is passed to each.
func last(t *testing.T, client *websocket.Conn, each func(word)) word {
	t.Helper()
	for {
		var w word
		if err := client.ReadJSON(&w); err != nil {
			t.Fatalf("no last word: %v", err)
		}
		if !w.Done && w.Refused == "" {
			each(w)
			continue
		}
		var closed *websocket.CloseError
		if _, _, err := client.ReadMessage(); !errors.As(err, &closed) || closed.Code != websocket.CloseNormalClosure {
			t.Errorf("after the last word: %v", err)
		}
		return w
	}
}

func ignore(word) {}

func binary(t *testing.T, client *websocket.Conn, message []byte) {
	t.Helper()
	if err := client.WriteMessage(websocket.BinaryMessage, message); err != nil {
		t.Fatal(err)
	}
}

// TestStreamedImageArrivesWhole: a client that keeps to the window sends an image of many windows, in messages of any size, and the importer
// gets the image.
func TestStreamedImageArrivesWhole(t *testing.T) {
	i := &takes{}
	b := newBench(t, i.play)
	image := bytes.Repeat([]byte("0123456789abcdefg"), 3*window/10)
	client := b.open("ns", len(image))
	if client.Subprotocol() != Subprotocol {
		t.Errorf("protocol %q", client.Subprotocol())
	}
	sent, grown := 0, 0
	w := last(t, client, func(w word) {
		if w.Window != window || w.Taken > int64(sent) {
			t.Fatalf("%+v when %d are sent", w, sent)
		}
		for sent < len(image) && int64(sent) < w.Taken+w.Window {
			grown++
			end := min(sent+grown*977%(300<<10), len(image), int(w.Taken+w.Window))
			binary(t, client, image[sent:end])
			sent = end
		}
	})
	if !w.Done || w.Taken != int64(len(image)) {
		t.Errorf("%+v", w)
	}
	b.idle()
	if len(i.got) != 1 || sha256.Sum256([]byte(i.got[0])) != sha256.Sum256(image) || i.heads[0].ContentLength != int64(len(image)) || i.heads[0].URL.Path != importer.UploadPath {
		t.Errorf("the importer got %d images, %+v", len(i.got), i.heads)
	}
}

// TestStreamWithoutTheRightIsRefused: who may not upload, or what waits for no image, is refused before there is a stream, in an answer that the page
// can ask for.
func TestStreamWithoutTheRightIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		user, path string
		change     func(*world)
		code       int
		says       string
	}{
		"somebody else":    {"bob", "/ns/disk/upload?size=5", func(*world) {}, 403, "cannot create resource"},
		"nobody":           {"", "/ns/disk/upload?size=5", func(*world) {}, 401, "not authenticated"},
		"another volume":   {"ann", "/ns/none/upload?size=5", func(*world) {}, 404, "not found"},
		"no size":          {"ann", "/ns/disk/upload", func(*world) {}, 400, "size"},
		"nothing":          {"ann", "/ns/disk/upload?size=0", func(*world) {}, 400, "size"},
		"less":             {"ann", "/ns/disk/upload?size=-1", func(*world) {}, 400, "size"},
		"too large":        {"ann", "/ns/disk/upload?size=99999999999999999999", func(*world) {}, 400, "size"},
		"not ready":        {"ann", "/ns/disk/upload?size=5", func(w *world) { w.volume.Status.Phase = cdi.UploadScheduled }, 503, "UploadScheduled"},
		"filled":           {"ann", "/ns/disk/upload?size=5", func(w *world) { w.volume.Status.Phase = cdi.Succeeded }, 409, "filled already"},
		"another source":   {"ann", "/ns/disk/upload?size=5", func(w *world) { w.volume.Spec.Source.Upload = nil }, 409, "another source"},
		"nobody's claim":   {"ann", "/ns/disk/upload?size=5", func(w *world) { w.claim.OwnerReferences = nil }, 409, "has no DataVolume that waits"},
		"an earlier one's": {"ann", "/ns/disk/upload?size=5", func(w *world) { w.claim.OwnerReferences[0].UID = "earlier" }, 409, "has no DataVolume that waits"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(net.Conn) {})
			b.world.change(c.change)
			if _, code, text := b.connect(c.user, c.path); code != c.code || !strings.Contains(text, c.says) {
				t.Errorf("%d %s, want %d %s", code, text, c.code, c.says)
			}
			b.reachedNobody()
		})
	}
}

// TestImporterMayEndAStreamWithAReason: an importer, or whatever is in its place, ends a stream at any time, and the client reads why.
func TestImporterMayEndAStreamWithAReason(t *testing.T) {
	for name, c := range map[string]struct{ answer, says string }{
		"a reason":         {refused(413, "the image is 2 GiB, and the disk 1 GiB"), "the importer refuses the image: the image is 2 GiB"},
		"escape sequences": {refused(400, "a\x1b[31mb\r\nc\xff"), "a[31mb c"},
		"a long reason":    {refused(400, strings.Repeat("x", 1<<20)), "xxx"},
		"nothing":          {"", "without an answer"},
		"junk":             {"junk\r\n\r\n", "without an answer"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, says(c.answer))
			client := b.open("ns", 1<<40)
			go func() { // sends on, whatever it is told
				for client.WriteMessage(websocket.BinaryMessage, make([]byte, window/8)) == nil {
				}
			}()
			if w := last(t, client, ignore); !strings.Contains(w.Refused, c.says) || len(w.Refused) > 2*maxReason || strings.Contains(w.Refused, "\x1b") {
				t.Errorf("%+v, want %s", w, c.says)
			}
			b.idle()
		})
	}
}

// TestStreamThatBreaksTheRulesIsCut: a client that breaks the rules is cut, and no importer takes a part of its image for the whole.
func TestStreamThatBreaksTheRulesIsCut(t *testing.T) {
	for name, c := range map[string]struct {
		size int
		act  func(*testing.T, *websocket.Conn)
		says string // or no word at all
	}{
		"text":                 {5, func(t *testing.T, c *websocket.Conn) { c.WriteMessage(websocket.TextMessage, []byte("image")) }, "sent text"},
		"a giant message":      {10 * window, func(t *testing.T, c *websocket.Conn) { c.WriteMessage(websocket.BinaryMessage, make([]byte, window+1)) }, ""},
		"more than was said":   {3, func(t *testing.T, c *websocket.Conn) { binary(t, c, []byte("image")) }, "more bytes"},
		"more in a second one": {3, func(t *testing.T, c *websocket.Conn) { binary(t, c, []byte("i")); binary(t, c, []byte("mage")) }, "more bytes"},
		"silence":              {5, func(t *testing.T, c *websocket.Conn) { binary(t, c, []byte("ima")) }, "broke off"},
		"silence at once":      {5, func(*testing.T, *websocket.Conn) {}, "broke off"},
		"empty messages": {5, func(t *testing.T, c *websocket.Conn) {
			go func() {
				for c.WriteMessage(websocket.BinaryMessage, nil) == nil {
				}
			}()
		}, "broke off"},
		"half a message": {5, func(t *testing.T, c *websocket.Conn) {
			w, err := c.NextWriter(websocket.BinaryMessage)
			if err != nil {
				t.Fatal(err)
			}
			w.Write([]byte("ima"))
		}, "broke off"},
		"a goodbye": {5, func(t *testing.T, c *websocket.Conn) {
			binary(t, c, []byte("ima"))
			c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Second))
		}, "-"},
		"it goes": {5, func(t *testing.T, c *websocket.Conn) { binary(t, c, []byte("ima")); c.NetConn().Close() }, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			i := &takes{}
			b := newBench(t, i.play)
			if c.says == "broke off" {
				b.bounds.client = 100 * time.Millisecond
			}
			client := b.open("ns", c.size)
			c.act(t, client)
			switch c.says {
			case "-":
			case "":
				var closed *websocket.CloseError
				for {
					if _, _, err := client.ReadMessage(); err != nil {
						if !errors.As(err, &closed) || closed.Code != websocket.CloseMessageTooBig {
							t.Errorf("ended with %v", err)
						}
						break
					}
				}
			default:
				if w := last(t, client, ignore); !strings.Contains(w.Refused, c.says) {
					t.Errorf("%+v, want %s", w, c.says)
				}
			}
			b.idle()
			if got := i.only(t); got != brokeOff {
				t.Errorf("the importer got %q", got)
			}
		})
	}
}

// TestStreamWaitsForTheImporter: while an importer takes nothing, nothing more is taken from the client; then the stream ends.
func TestStreamWaitsForTheImporter(t *testing.T) {
	hold := make(chan struct{})
	defer close(hold)
	b := newBench(t, func(net.Conn) { <-hold })
	b.bounds.importer, b.bounds.lastWord = 500*time.Millisecond, 100*time.Millisecond
	client := b.open("ns", 1<<40)
	go func() {
		for client.WriteMessage(websocket.BinaryMessage, make([]byte, window)) == nil {
		}
	}()
	w := last(t, client, func(w word) {
		if w.Taken > 0 {
			t.Errorf("%d bytes are taken", w.Taken)
		}
	})
	if w.Taken > 4*chunk || !strings.Contains(w.Refused, "without an answer") && !strings.Contains(w.Refused, "does not say") {
		t.Errorf("%+v", w)
	}
	b.idle()
}

// TestStreamThatReadsNoWordsLosesItsPlace: a client that reads no words, on a connection without buffers, does not hold its place.
func TestStreamThatReadsNoWordsLosesItsPlace(t *testing.T) {
	b := newBench(t, func(net.Conn) {})
	ours, theirs := net.Pipe()
	listener := &one{conn: ours, closed: make(chan struct{})}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := b.Stream(w, r, callers.User{Name: "ann"}, "ns", "disk"); err != nil {
			t.Error(err)
		}
	})}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	dialer := websocket.Dialer{NetDial: func(string, string) (net.Conn, error) { return theirs, nil }}
	client, _, err := dialer.Dial("ws://virt-api/?size=99", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	testkit.Until(t, "a place", func() bool { return b.places.Used() == 1 })
	b.idle() // within wordTimeout
	b.reachedNobody()
}

// one is a listener with one connection.
type one struct {
	conn   net.Conn
	closed chan struct{}
}

func (l *one) Accept() (net.Conn, error) {
	if conn := l.conn; conn != nil {
		l.conn = nil
		return conn, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}
func (l *one) Close() error   { close(l.closed); return nil }
func (l *one) Addr() net.Addr { return &net.TCPAddr{} }

// TestStreamsAndUploadsShareThePlaces: streams and other uploads share the places, and who gets none, or has to give its place to another namespace, is
// told so.
func TestStreamsAndUploadsShareThePlaces(t *testing.T) {
	b := newBench(t, func(conn net.Conn) { io.Copy(io.Discard, conn) })
	b.places.Size = maxNamespaceImages + 1
	var first []*websocket.Conn
	for n := range int64(maxNamespaceImages) {
		first = append(first, b.open("a", 5))
		testkit.Until(t, "a place", func() bool { return b.places.Used() == n+1 })
	}
	if w := last(t, b.open("a", 5), ignore); !strings.Contains(w.Refused, "of a namespace") {
		t.Errorf("one more of the namespace: %+v", w)
	}
	if code, text := b.send(http.MethodPost, imagePaths[0], b.token("a"), strings.NewReader("image")); code != 503 || !strings.Contains(text, "of a namespace") {
		t.Errorf("one more of the namespace, with a token: %d %s", code, text)
	}
	b.open("b", 5)
	testkit.Until(t, "a place", func() bool { return b.places.Used() == b.places.Size })
	b.open("c", 5)
	gone := make(chan string, len(first))
	for _, client := range first {
		go func() {
			for {
				var w word
				if err := client.ReadJSON(&w); err != nil {
					return
				}
				if w.Refused != "" {
					gone <- w.Refused
				}
			}
		}()
	}
	if why := testkit.Receive(t, gone, "one that gives way"); why != callers.ErrGaveWay.Error() {
		t.Errorf("who gives way reads %q", why)
	}
}

// TestLateEndKeepsAReadersDeadline: who reads on after an upload is over sets a deadline of its own, which no late end takes away.
func TestLateEndKeepsAReadersDeadline(t *testing.T) {
	set := 0
	image := &body{deadline: func(time.Time) error { set++; return nil }}
	image.end()
	image.end()
	if set != 1 {
		t.Errorf("the deadline was set %d times", set)
	}
}
