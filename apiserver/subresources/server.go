package subresources

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kubeqemu/kubeqemu/apiserver/callers"
	"github.com/kubeqemu/kubeqemu/apiserver/evacuation"
	"github.com/kubeqemu/kubeqemu/apiserver/upload"
	"github.com/kubeqemu/kubeqemu/apiserver/web"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
)

// Server serves the group to the API server, which passes on its users' requests.
type Server struct {
	cluster *cluster
	table   []Endpoint
	page    web.Files
	limits  *limits
	bounds  bounds
	Options
}

// Options of a Server.
type Options struct {
	// FrontProxy returns what verifies the API server.
	FrontProxy func() (*callers.FrontProxy, error)
	Rights     *callers.Rights
	Handlers   *handlerapi.Client
	// Uploads takes the images of DataVolumes; nil if virt-api takes none.
	Uploads *upload.Server
	// Evacuations takes back that guests are asked to leave their nodes.
	Evacuations *evacuation.Guard
	Now         func() time.Time
	Log         logr.Logger
}

// New makes a Server.
func New(config *rest.Config, o Options) (*Server, error) {
	c, err := newCluster(config, o.Rights)
	if err != nil {
		return nil, err
	}
	page, err := web.New()
	if err != nil {
		return nil, err
	}
	table := Table()
	if o.Uploads != nil {
		table = append(table, Upload())
	}
	return &Server{cluster: c, table: table, page: page, limits: newLimits(), bounds: bounds{pingInterval, streamPatience}, Options: o}, nil
}

// call is a request whose user is authenticated and authorized.
type call struct {
	*http.Request
	object
	user callers.User
}

// maxBody bounds the options in a request's body, in bytes.
const maxBody = 64 << 10

// ServeHTTP answers what is below /apis and /openapi.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if document := s.document(r); document != nil {
		callers.Write(w, http.StatusOK, document)
		return
	}
	if err := s.answer(w, r); err != nil {
		callers.Refuse(w, r, s.Log, err)
	}
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request) error {
	who, err := callers.Identify(r, s.FrontProxy, s.Now())
	if err != nil {
		return err
	}
	s.Log.V(3).Info("request", "method", r.Method, "path", r.URL.Path, "user", who.Name)
	r.Header = needed(r.Header)
	if file, ok := s.pageFile(r); ok {
		return s.servePage(w, r, who, file)
	}
	path, _ := inVersion(r.URL.EscapedPath())
	o, ok := route(s.table, r.Method, path)
	if !ok {
		return unserved(r.Method, path)
	}
	if err := s.cluster.rights.Check(r.Context(), who, o.attributes()); err != nil {
		return err
	}
	return o.endpoint.serve(s, w, &call{r, o, who})
}

// needed returns the headers that are read after authentication. The others are the client's,
// and take up to a megabyte of memory if their fields are short; net/http would keep them for
// as long as a stream lasts.
func needed(header http.Header) http.Header {
	kept := http.Header{}
	for _, name := range []string{"Connection", "Upgrade", "Sec-Websocket-Key", "Sec-Websocket-Version", "Sec-Websocket-Protocol", "Expect",
		"Origin", "Cookie", "Sec-Fetch-Site", "Accept-Encoding", "If-None-Match", "If-Modified-Since", "If-Range", "Range"} {
		if values, ok := header[name]; ok {
			kept[name] = values
		}
	}
	return kept
}

// attributes are the endpoint and the object in RBAC's words.
func (o object) attributes() *callers.Attributes {
	return &callers.Attributes{Namespace: o.namespace, Name: o.name, Verb: o.endpoint.Verb(),
		Group: Group, Version: Version, Resource: o.endpoint.Resource, Subresource: o.endpoint.Subresource}
}

// options reads the options in a request's body, as JSON or YAML. The body may be empty.
func options[T any](s *Server, w http.ResponseWriter, c *call) (*T, error) {
	o := new(T)
	return o, s.body(w, c, maxBody, func(text []byte) error {
		if len(strings.TrimSpace(string(text))) == 0 {
			return nil
		}
		inJSON, err := asJSON(text)
		if err == nil {
			err = json.Unmarshal(inJSON, o)
		}
		if err != nil {
			return apierrors.NewBadRequest(fmt.Sprintf("Can not unmarshal Request body to struct, error: %v", err))
		}
		return nil
	})
}

// dry checks dryRun, and says whether it asks for a dry run.
func dry(dryRun []string) (bool, error) {
	for _, d := range dryRun {
		if d != metav1.DryRunAll {
			return false, apierrors.NewBadRequest(fmt.Sprintf("dryRun %q is not %s", d, metav1.DryRunAll))
		}
	}
	return len(dryRun) > 0, nil
}

// changeTimeout bounds a change, which goes on even if the client has gone. It is longer than
// virt-api waits for virt-handler.
const changeTimeout = time.Minute

// attempts is how often a verb is tried while the VM keeps changing.
const attempts = 3
