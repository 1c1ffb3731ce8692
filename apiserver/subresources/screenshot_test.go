package subresources

import (
	"bytes"
	"image"
	"image/png"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/kubeqemu/kubeqemu/apiserver/callers"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// TestCutScreenshotIsNoPicture: a PNG goes through whole; what is none is an error, and one that
// is cut is never taken for a picture.
func TestCutScreenshotIsNoPicture(t *testing.T) {
	var whole bytes.Buffer
	if err := png.Encode(&whole, image.NewGray(image.Rect(0, 0, 300, 200))); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		sent []byte
		code int
		ok   bool
	}{
		"a picture":     {whole.Bytes(), http.StatusOK, true},
		"nothing":       {nil, http.StatusInternalServerError, false},
		"something":     {[]byte("P6 640 480 255\n"), http.StatusInternalServerError, false},
		"a page":        {[]byte("<script>alert(1)</script>"), http.StatusInternalServerError, false},
		"half":          {whole.Bytes()[:whole.Len()/2], 0, false},
		"all but a bit": {whole.Bytes()[:whole.Len()-1], 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Server{}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ours, theirs := net.Pipe()
				go func() {
					defer theirs.Close()
					for rest := c.sent; len(rest) > 0; {
						n := min(len(rest), 7)
						if _, err := theirs.Write(rest[:n]); err != nil {
							return
						}
						rest = rest[n:]
					}
				}()
				defer ours.Close()
				if err := s.picture(w, ours); err != nil {
					callers.Refuse(w, r, s.Log, err)
				}
			}))
			defer server.Close()
			response, err := http.Get(server.URL)
			var got []byte
			if err == nil {
				defer response.Body.Close()
				got, err = io.ReadAll(response.Body)
			}
			if c.code == 0 {
				if err == nil {
					t.Errorf("%d with %d bytes, and no error", response.StatusCode, len(got))
				}
				return
			}
			if err != nil || response.StatusCode != c.code || bytes.Equal(got, c.sent) != c.ok || c.ok && (response.Header.Get("Content-Type") != "image/png" || response.Header.Get("Cross-Origin-Resource-Policy") != "same-origin") {
				t.Errorf("%d %s with %d bytes: %v", response.StatusCode, response.Header.Get("Content-Type"), len(got), err)
			}
		})
	}
}

// TestOtherSitesDoNotMoveThePointer: other sites' pages do not move the guest's pointer.
func TestOtherSitesDoNotMoveThePointer(t *testing.T) {
	s := serve(t)
	for site, want := range map[string]bool{"cross-site": false, "same-site": false, "same-origin": true, "": true} {
		r := httptest.NewRequest(http.MethodGet, "/?moveCursor=true", nil)
		r.Header.Set("Sec-Fetch-Site", site)
		err := s.server.screenshot(httptest.NewRecorder(), &call{Request: r, object: object{namespace: "ns", name: "vm"}})
		if apierrors.IsForbidden(err) == want {
			t.Errorf("%q: %v", site, err)
		}
	}
}
