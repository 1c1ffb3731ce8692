// Package upload takes disk images from clients, and passes them on to the importer pods of DataVolumes,
// with CDI's API: so virtctl image-upload works where CDI is not.
//
// A client first creates an UploadTokenRequest (tokens.go, requests.go): the API server has authenticated
// and authorized it. Then the client sends the image with the token (images.go), straight to virt-api's
// port, without the API server. The token is all that authorizes the second request. So before a token is
// verified nothing is done for that request, and the image's bytes are only copied (pass.go).
//
// The page sends an image through the API server, as a websocket (stream.go): the API server ends other
// requests to virt-api after a minute.
package upload

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kubeqemu/kubeqemu/apiserver/callers"
	"github.com/kubeqemu/kubeqemu/internal/intake"
)

// Server serves the API group, and takes images.
type Server struct {
	cluster  *cluster
	requests callers.Kind
	bodies   *intake.Bodies
	// places counts the images that are on their way, by namespace.
	places *intake.Budget
	bounds bounds
	Options
}

// Options of a Server.
type Options struct {
	// FrontProxy returns what verifies the API server.
	FrontProxy func() (*callers.FrontProxy, error)
	Rights     *callers.Rights
	// Keys returns the keys of tokens. All replicas of virt-api have the same.
	Keys func() (Keys, error)
	// Dial connects to importers.
	Dial Dial
	Now  func() time.Time
	Log  logr.Logger
}

const (
	// maxImages and maxNamespaceImages bound the images that are on their way at once, in all and of a namespace.
	// An image takes about 250 KiB of memory: its buffers, and its connection to the API server.
	maxImages          = 32
	maxNamespaceImages = 4
	// maxBodies bounds the bodies of UploadTokenRequests in memory, in bytes, and maxBody one of them.
	maxBodies = 1 << 20
	maxBody   = 64 << 10
)

// bounds are the times that a passage may take; tests use shorter ones.
type bounds struct {
	// place is how long an image waits for another one to make room.
	place time.Duration
	// dial bounds the making of a connection to an importer.
	dial time.Duration
	// client is how long a client may send nothing.
	client time.Duration
	// importer is how long an importer may take nothing: it writes to a disk, which may be slow.
	importer time.Duration
	// answer is how long an importer may take to answer once it has the whole image.
	answer time.Duration
	// lastWord is how long an importer may take to say why it has closed the connection.
	lastWord time.Duration
	// linger is how long what is left of a refused image is read, for the client to see why.
	linger time.Duration
}

// New makes a Server.
func New(config *rest.Config, o Options) (*Server, error) {
	c, err := newCluster(config)
	if err != nil {
		return nil, err
	}
	return &Server{cluster: c, Options: o,
		requests: callers.NewKind("requests to upload", 64, 16, 12), bodies: intake.NewBodies(maxBodies),
		places: &intake.Budget{Size: maxImages, Share: maxNamespaceImages},
		bounds: bounds{place: 2 * time.Second, dial: 15 * time.Second, client: time.Minute, importer: 5 * time.Minute, answer: 10 * time.Minute, lastWord: 5 * time.Second, linger: 2 * time.Second},
	}, nil
}

// imagePaths are CDI's paths for images. CDI's async ones answer when the image has been taken, the others
// when it is on the disk. Here both answer when the image has been taken: the claim says when it is on the
// disk.
var imagePaths = []string{"/v1beta1/upload-async", "/v1beta1/upload", "/v1alpha1/upload-async", "/v1alpha1/upload"}

// Serves says whether a path is this package's.
func Serves(path string) bool {
	return path == root || strings.HasPrefix(path, root+"/") || slices.Contains(imagePaths, path)
}

// ServeNone answers what Serves where virt-api takes no uploads. The group is there and has no resources: an
// APIService may lead here, and if Kubernetes cannot discover its group, it finishes the deletion of no
// namespace.
func ServeNone(w http.ResponseWriter, r *http.Request) {
	if path := strings.TrimSuffix(r.URL.EscapedPath(), "/"); path != root || r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.NotFound(w, r)
		return
	}
	none := discovery()
	none.APIResources = []metav1.APIResource{}
	callers.Write(w, http.StatusOK, none)
}

// ServeHTTP answers what Serves.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.EscapedPath()
	if slices.Contains(imagePaths, path) {
		s.serveImage(w, r)
		return
	}
	if path = strings.TrimSuffix(path, "/"); path == root && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		callers.Write(w, http.StatusOK, discovery())
		return
	}
	if err := s.request(w, r); err != nil {
		callers.Refuse(w, r, s.Log, err)
	}
}

// room takes a place for an image of a namespace. The context ends when another namespace, with fewer
// images, needs the place.
func (s *Server) room(parent context.Context, namespace string) (ctx context.Context, release func(), err error) {
	ctx, cancel := context.WithCancelCause(parent)
	patience, enough := context.WithTimeout(ctx, s.bounds.place)
	defer enough()
	place, err := s.places.Take(patience, namespace, 1, func() { cancel(callers.ErrGaveWay) })
	if err != nil {
		cancel(err)
		return nil, nil, refusal{http.StatusServiceUnavailable, fmt.Sprintf("too many images are being uploaded: virt-api takes %d at once, and %d of a namespace; try again later", s.places.Size, s.places.Share)}
	}
	return ctx, func() { cancel(nil); place.Release() }, nil
}
