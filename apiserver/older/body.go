package older

import (
	"bytes"
	"fmt"
	"mime"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeqemu/kubeqemu/apiserver/callers"
	"github.com/kubeqemu/kubeqemu/internal/intake"
)

const (
	// maxBody, in bytes, is the API server's own limit.
	maxBody = 3 << 20
	// maxBodies, in bytes, bounds the bodies of all requests together, and maxBodiesOfOne those of
	// one namespace. A body is in memory twice.
	maxBodies      = 12 << 20
	maxBodiesOfOne = 5 << 20
)

func newBodies() *intake.Bodies {
	b := intake.NewBodies(maxBodies)
	b.Budget.Share = maxBodiesOfOne
	return b
}

// body returns the body of a request in the current version. The caller calls release when the
// body has been sent. A request that reads has no body: virt-api leaves out what its client sends.
//
// A JSON patch (RFC 6902) stays as it is, so a patch that tests /apiVersion fails.
func (s *Server) body(w http.ResponseWriter, r *http.Request, who callers.User, t target) (body []byte, release func(), err error) {
	if r.ContentLength == 0 || t.reads() {
		return nil, func() {}, nil
	}
	kind, err := contentType(r.Header)
	if err != nil {
		return nil, nil, err
	}
	holder := callers.Holder(who, t.namespace)
	text, release, err := s.bodies.Read(w, r, holder, maxBody)
	if err != nil {
		return nil, nil, callers.BodyError(err, holder)
	}
	if yamlType(kind) && !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		release()
		return nil, nil, unsupported("the body of the request is YAML; at an older version, send JSON")
	}
	if kind != "application/json-patch+json" {
		text = t.version.inCurrent(text)
	}
	return text, release, nil
}

// yamlType says whether a body of a type may be YAML. Clients that apply send JSON as YAML, of
// which JSON is a part. virt-api decodes no YAML: 100 KiB of it, with aliases, can take gigabytes.
func yamlType(kind string) bool {
	return kind == "application/yaml" || kind == "application/apply-patch+yaml"
}

// contentType returns the type of a body, or an UnsupportedMediaType: virt-api could not find
// apiVersion in a body of another type.
func contentType(header http.Header) (string, error) {
	given := header.Get("Content-Type")
	if given == "" {
		given = "application/json"
	}
	kind, _, err := mime.ParseMediaType(given)
	switch kind {
	case "application/json", "application/merge-patch+json", "application/strategic-merge-patch+json", "application/json-patch+json",
		"application/yaml", "application/apply-patch+yaml":
		if err == nil && header.Get("Content-Encoding") == "" {
			return kind, nil
		}
	}
	return "", unsupported(fmt.Sprintf("the body of the request is %q; at an older version, send JSON that is not compressed", given))
}

func unsupported(text string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType,
		Reason: metav1.StatusReasonUnsupportedMediaType, Message: text}}
}

// inCurrent writes the current version into an object in JSON.
func (v Version) inCurrent(text []byte) []byte {
	var out bytes.Buffer
	out.Grow(len(text))
	to := &apiVersions{to: &out, from: v.older(), by: v.current()}
	for len(text) > 0 {
		n := min(len(text), chunk)
		_, _ = to.Write(text[:n]) // a Buffer takes everything
		text = text[n:]
	}
	return out.Bytes()
}
