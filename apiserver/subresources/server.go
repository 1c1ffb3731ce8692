package subresources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

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
	FrontProxy func() (*FrontProxy, error)
	Handlers   *handlerapi.Client
	Now        func() time.Time
	Log        logr.Logger
}

// New makes a Server.
func New(config *rest.Config, o Options) (*Server, error) {
	c, err := newCluster(config)
	if err != nil {
		return nil, err
	}
	page, err := web.New()
	if err != nil {
		return nil, err
	}
	return &Server{cluster: c, table: Table(), page: page, limits: newLimits(), bounds: bounds{pingInterval, streamPatience}, Options: o}, nil
}

// call is a request whose user is authenticated and authorized.
type call struct {
	*http.Request
	object
	user user
}

// maxBody bounds the options in a request's body, in bytes.
const maxBody = 64 << 10

// ServeHTTP answers what is below /apis and /openapi.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if document := s.document(r); document != nil {
		write(w, http.StatusOK, document)
		return
	}
	if err := s.answer(w, r); err != nil {
		s.refuse(w, r, err)
	}
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request) error {
	proxy, err := s.FrontProxy()
	if err != nil {
		return apierrors.NewServiceUnavailable(err.Error())
	}
	who, err := proxy.authenticate(r.TLS, r.Header, s.Now())
	if err != nil {
		return err
	}
	s.Log.V(3).Info("request", "method", r.Method, "path", r.URL.Path, "user", who.name)
	r.Header = needed(r.Header)
	if file, ok := s.pageFile(r); ok {
		return s.servePage(w, r, who, file)
	}
	path, _ := inVersion(r.URL.EscapedPath())
	o, ok := route(s.table, r.Method, path)
	if !ok {
		return unserved(path)
	}
	if err := s.authorize(r.Context(), who, o); err != nil {
		return err
	}
	return o.endpoint.serve(s, w, &call{r, o, who})
}

// authorize returns an error unless the user may use the endpoint on the object. It asks the
// API server.
func (s *Server) authorize(ctx context.Context, who user, o object) error {
	place, err := s.limits.asking.Take(ctx, who.name, 1, nil)
	if err != nil {
		return tooMany(fmt.Sprintf("the rights of user %q are looked up %d times at once, which is as often as those of one user may be", who.name, maxAsking))
	}
	defer place.Release()
	allowed, reason, err := s.cluster.allowed(ctx, who, o)
	if err == nil && !allowed {
		err = forbidden(who, o, reason)
	}
	return err
}

// forbidden uses the API server's words.
func forbidden(who user, o object, reason string) error {
	return forbiddenTo(who, o.endpoint.Verb(), metav1.GroupResource{Group: Group, Resource: o.endpoint.Name()}, types.NamespacedName{Namespace: o.namespace, Name: o.name}, reason)
}

func forbiddenTo(who user, verb string, resource metav1.GroupResource, key types.NamespacedName, reason string) error {
	text := fmt.Sprintf("User %q cannot %s resource %q in API group %q in the namespace %q", who.name, verb, resource.Resource, resource.Group, key.Namespace)
	if reason != "" {
		text += ": " + reason
	}
	return apierrors.NewForbidden(schemaResource(resource), key.Name, errors.New(text))
}

// refuse answers with an error, as a metav1.Status.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	var status apierrors.APIStatus
	switch {
	case errors.Is(err, errUnauthenticated):
		s.Log.V(1).Info("refuse", "path", r.URL.Path, "reason", err.Error())
		status = apierrors.NewUnauthorized(errUnauthenticated.Error())
	case errors.Is(err, errNoRoute):
		status = apierrors.NewGenericServerResponse(http.StatusNotFound, strings.ToLower(r.Method), schemaResource(metav1.GroupResource{Group: Group}), "", errNoRoute.Error(), 0, false)
	case errors.As(err, &status):
	default:
		s.Log.Error(err, "answer", "method", r.Method, "path", r.URL.Path)
		status = apierrors.NewInternalError(err)
	}
	body := status.Status()
	body.Kind, body.APIVersion = "Status", "v1"
	write(w, int(body.Code), &body)
}

func write(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// The client may have gone; nothing else can fail.
	_ = json.NewEncoder(w).Encode(body)
}

// options reads the options in a request's body, as JSON or YAML. The body may be empty.
func options[T any](s *Server, w http.ResponseWriter, c *call) (*T, error) {
	o := new(T)
	return o, s.body(w, c, maxBody, func(text []byte) error {
		if len(strings.TrimSpace(string(text))) == 0 {
			return nil
		}
		if err := yaml.Unmarshal(text, o); err != nil {
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
