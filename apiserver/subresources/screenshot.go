package subresources

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
)

const (
	// maxScreenshot, in bytes, is more than a launcher sends.
	maxScreenshot = 64 << 20
	// screenshotPatience is how long the transfer of a screenshot may take.
	screenshotPatience = time.Minute
)

// How a PNG begins, and its last chunk.
const (
	pngHead = "\x89PNG\r\n\x1a\n"
	pngTail = "\x00\x00\x00\x00IEND\xaeB`\x82"
)

// screenshot answers with a PNG of the screen. virt-api passes the bytes on as they come and
// does not decode them, because a guest may have made them.
func (s *Server) screenshot(w http.ResponseWriter, c *call) error {
	parameters := url.Values{}
	if c.URL.Query().Get("moveCursor") == "true" {
		// moveCursor acts on the guest, and an <img> of any page could ask for it.
		if err := ownPage(c.Request); err != nil {
			return err
		}
		parameters.Set(handlerapi.MoveCursor, "true")
	}
	vmi, err := s.cluster.instance(c.Context(), c.namespace, c.name)
	if err != nil {
		return err
	}
	if err := attachable(vmi, handlerapi.VNC); err != nil {
		return err
	}
	to, err := s.target(c.Context(), vmi)
	if err != nil {
		return err
	}
	picture, err := s.Handlers.Stream(c.Context(), to, handlerapi.Screenshot, parameters)
	if err != nil {
		return answered(vmi, err)
	}
	defer picture.Close()
	defer context.AfterFunc(c.Context(), func() { picture.Close() })()
	return s.picture(w, picture)
}

// picture passes a PNG on. Without a PNG's head it returns an error. If the PNG ends too early,
// the answer has begun already, and picture ends the connection.
func (s *Server) picture(w http.ResponseWriter, from net.Conn) error {
	deadline, client := time.Now().Add(screenshotPatience), http.NewResponseController(w)
	if err := errors.Join(from.SetDeadline(deadline), client.SetWriteDeadline(deadline)); err != nil {
		return fmt.Errorf("bound the time of a screenshot: %w", err)
	}
	// The connection may serve further requests.
	defer func() { _ = client.SetWriteDeadline(time.Time{}) }()
	reader := bufio.NewReader(io.LimitReader(from, maxScreenshot))
	if head, err := reader.Peek(len(pngHead)); err != nil || string(head) != pngHead {
		return apierrors.NewInternalError(errors.New("virt-launcher sent no PNG"))
	}
	w.Header().Set("Content-Type", "image/png")
	// A tenant controls the bytes, so browsers must not guess another type.
	w.Header().Set("X-Content-Type-Options", "nosniff")
	// Other sites' pages must not show it.
	w.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
	end := &tail{size: len(pngTail)}
	if _, err := io.Copy(io.MultiWriter(w, end), reader); err != nil || !bytes.Equal(end.bytes, []byte(pngTail)) {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// tail keeps the last size bytes that are written to it.
type tail struct {
	size  int
	bytes []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.bytes = append(t.bytes, p[max(0, len(p)-t.size):]...)
	t.bytes = append([]byte(nil), t.bytes[max(0, len(t.bytes)-t.size):]...)
	return len(p), nil
}
