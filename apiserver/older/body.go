package older

import (
	"bytes"
	"context"
	"fmt"
	"mime"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kubeqemu/kubeqemu/apiserver/callers"
	"github.com/kubeqemu/kubeqemu/internal/intake"
)

const (
	// maxBody, in bytes, is the API server's own limit.
	maxBody = 3 << 20
	// maxYAML, in bytes: YAML takes many times its size while it is read.
	maxYAML = 256 << 10
	// maxBodies, in bytes, are those of all requests; each is in memory twice.
	maxBodies = 8 << 20
)

// bodies reads the bodies of requests.
type bodies struct {
	read *intake.Bodies
	// yaml bounds how many are read as YAML at once.
	yaml intake.Budget
}

func newBodies() bodies { return bodies{intake.NewBodies(maxBodies), intake.Budget{Size: 1}} }

// current returns the body of a request in the current version. The caller calls release when the
// body is not needed any more.
//
// A JSON patch (RFC 6902) stays as it is: it names the parts of an object that it changes, and
// there is no reason to change apiVersion.
func (b *bodies) current(w http.ResponseWriter, r *http.Request, t target) (body []byte, release func(), err error) {
	if r.ContentLength == 0 {
		return nil, func() {}, nil
	}
	kind, err := contentType(r.Header)
	if err != nil {
		return nil, nil, err
	}
	text, release, err := b.read.Read(w, r, t.namespace, maxBody)
	if err != nil {
		return nil, nil, callers.BodyError(err, t.namespace)
	}
	switch kind {
	case "application/json-patch+json":
		body = text
	case "application/yaml", "application/apply-patch+yaml":
		body, err = b.ofYAML(r.Context(), text, t)
	default:
		body = t.version.inCurrent(text)
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	return body, release, nil
}

// contentType returns the type of a body. An unknown type would go past virt-api unread.
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
	return "", &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
		Message: fmt.Sprintf("the body of the request is %q; at an older version, JSON and YAML are read, and no encoding of them", given)}}
}

// ofYAML takes JSON as it is, which is YAML, too.
func (b *bodies) ofYAML(ctx context.Context, text []byte, t target) ([]byte, error) {
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return t.version.inCurrent(text), nil
	}
	if len(text) > maxYAML {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("YAML at an older version may have %d bytes: send JSON", maxYAML))
	}
	turn, err := b.yaml.Take(ctx, t.namespace, 1, nil)
	if err != nil {
		return nil, callers.TooMany(fmt.Sprintf("the YAML for namespace %q waited too long to be read: send JSON", t.namespace))
	}
	defer turn.Release()
	inJSON, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("read the body as YAML: %v", err))
	}
	return t.version.inCurrent(inJSON), nil
}

// inCurrent writes the current version into an object in JSON.
func (v Version) inCurrent(text []byte) []byte {
	var out bytes.Buffer
	out.Grow(len(text))
	// A Buffer takes everything.
	_, _ = (&apiVersions{to: &out, from: v.older(), by: v.current()}).Write(text)
	return out.Bytes()
}
