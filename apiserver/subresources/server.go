package subresources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/apiserver/web"
	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// Server serves the group, for the API server, which asks for its users.
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
	// FrontProxy returns how the API server proves to be itself.
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

// call is one request that may be answered.
type call struct {
	*http.Request
	object
	user user
}

// maxBody bounds what is sent along.
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
	r.Header = needed(r.Header)
	if file, ok := s.pageFile(r); ok {
		return s.servePage(w, r, who, file)
	}
	o, ok := route(s.table, r.Method, r.URL.EscapedPath())
	if !ok {
		return errNoRoute
	}
	if err := s.authorize(r.Context(), who, o); err != nil {
		return err
	}
	return o.endpoint.serve(s, w, &call{r, o, who})
}

// authorize asks the API server whether a user may.
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

var errNoRoute = errors.New("the server could not find the requested resource")

// forbidden is worded as the API server does.
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
	// Who asked may have gone, which is all that can go wrong.
	_ = json.NewEncoder(w).Encode(body)
}

// options reads what is sent along, as JSON or YAML, if anything is.
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

// dry checks dryRun, and says whether nothing is to be done.
func dry(dryRun []string) (bool, error) {
	for _, d := range dryRun {
		if d != metav1.DryRunAll {
			return false, apierrors.NewBadRequest(fmt.Sprintf("dryRun %q is not %s", d, metav1.DryRunAll))
		}
	}
	return len(dryRun) > 0, nil
}

func (s *Server) start(w http.ResponseWriter, c *call) error {
	o, err := options[v1.StartOptions](s, w, c)
	if err != nil {
		return err
	}
	return s.verb(w, c, o.DryRun, func(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) (*change, error) {
		return started(vm, vmi, o)
	})
}

func (s *Server) stop(w http.ResponseWriter, c *call) error {
	o, err := options[v1.StopOptions](s, w, c)
	if err != nil {
		return err
	}
	return s.verb(w, c, o.DryRun, func(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) (*change, error) {
		return stopped(vm, vmi, o)
	})
}

func (s *Server) restart(w http.ResponseWriter, c *call) error {
	o, err := options[v1.RestartOptions](s, w, c)
	if err != nil {
		return err
	}
	return s.verb(w, c, o.DryRun, func(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) (*change, error) {
		return restarted(vm, vmi, o)
	})
}

// changeTimeout is for a change that is made even if the client has gone. It is
// longer than virt-handler is waited for.
const changeTimeout = time.Minute

// attempts are how often a verb is decided anew because the VM changed meanwhile.
const attempts = 3

// verb decides, and changes the VM.
func (s *Server) verb(w http.ResponseWriter, c *call, dryRun []string, decide func(*v1.VirtualMachine, *v1.VirtualMachineInstance) (*change, error)) error {
	isDry, err := dry(dryRun)
	if err != nil {
		return err
	}
	ctx := c.Context()
	if !isDry {
		// Half of it must not be done because the client has gone: a guest that
		// goes on would be left with a short grace period.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
		defer cancel()
	}
	for attempt := 1; ; attempt++ {
		err := s.change(ctx, c.object, isDry, dryRun, decide)
		if err == nil {
			w.WriteHeader(http.StatusAccepted)
			return nil
		}
		var changed *behindError
		if !errors.As(err, &changed) {
			return err
		}
		if attempt == attempts {
			return apierrors.NewConflict(vmResource, c.name, changed.err)
		}
	}
}

// behindError: the VM is not the one any more that was decided upon.
type behindError struct{ err error }

func (e *behindError) Error() string { return e.err.Error() }

func (s *Server) change(ctx context.Context, o object, isDry bool, dryRun []string, decide func(*v1.VirtualMachine, *v1.VirtualMachineInstance) (*change, error)) error {
	vm, err := s.cluster.machine(ctx, o.namespace, o.name)
	if err != nil {
		return err
	}
	vmi, err := s.cluster.instance(ctx, o.namespace, o.name)
	if apierrors.IsNotFound(err) || err == nil && !controls(vm, vmi) {
		vmi, err = nil, nil
	}
	if err != nil {
		return err
	}
	ch, err := decide(vm, vmi)
	if err != nil {
		return err
	}
	if ch.grace != nil && vmi.Status.Phase == v1.Running && !isDry {
		// First: with the change, the guest begins to shut down. A node that does
		// not answer does not keep the VM from being stopped.
		err := s.do(ctx, vmi, handlerapi.Grace, seconds(*ch.grace))
		if err != nil && (ch.isEmpty() || !apierrors.IsServiceUnavailable(err)) {
			return err
		}
	}
	if ch.isEmpty() {
		return nil
	}
	err = s.cluster.patch(ctx, vm, ch, dryRun)
	if apierrors.IsConflict(err) {
		return &behindError{err}
	}
	return err
}

// controls says whether the VM is the VMI's controller.
func controls(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) bool {
	return owner.Controls(v1.VirtualMachineGroupVersionKind.GroupKind(), vm, vmi)
}

func (s *Server) pause(w http.ResponseWriter, c *call) error {
	o, err := options[v1.PauseOptions](s, w, c)
	if err != nil {
		return err
	}
	return s.operate(w, c, handlerapi.Pause, o.DryRun)
}

func (s *Server) unpause(w http.ResponseWriter, c *call) error {
	o, err := options[v1.UnpauseOptions](s, w, c)
	if err != nil {
		return err
	}
	return s.operate(w, c, handlerapi.Unpause, o.DryRun)
}

func (s *Server) reset(w http.ResponseWriter, c *call) error {
	if _, err := options[struct{}](s, w, c); err != nil {
		return err
	}
	return s.operate(w, c, handlerapi.Reset, nil)
}

// operate has virt-handler do something to a VMI.
func (s *Server) operate(w http.ResponseWriter, c *call, operation string, dryRun []string) error {
	isDry, err := dry(dryRun)
	if err != nil {
		return err
	}
	vmi, err := s.cluster.instance(c.Context(), c.namespace, c.name)
	if err != nil {
		return err
	}
	if err := operable(vmi, operation); err != nil {
		return err
	}
	if !isDry {
		if err := s.do(c.Context(), vmi, operation, nil); err != nil {
			return err
		}
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// do asks the virt-handler of a VMI's node.
func (s *Server) do(ctx context.Context, vmi *v1.VirtualMachineInstance, operation string, parameters url.Values) error {
	to, err := s.target(ctx, vmi)
	if err != nil {
		return err
	}
	return answered(vmi, s.Handlers.Do(ctx, to, operation, parameters))
}

func (s *Server) target(ctx context.Context, vmi *v1.VirtualMachineInstance) (handlerapi.Target, error) {
	address, err := s.cluster.handlerAddress(ctx, vmi.Status.NodeName)
	return handlerapi.Target{Address: address, Node: vmi.Status.NodeName, Namespace: vmi.Namespace, Name: vmi.Name, UID: string(vmi.UID)}, err
}

// answered turns virt-handler's answer into the API's.
func answered(vmi *v1.VirtualMachineInstance, err error) error {
	var said *handlerapi.Error
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &said):
		return apierrors.NewServiceUnavailable(err.Error())
	case said.Code == http.StatusConflict:
		return vmiConflict(vmi, said.Text)
	case said.Code == http.StatusTooManyRequests:
		return tooMany(said.Text)
	case said.Code == http.StatusServiceUnavailable, said.Code == http.StatusNotFound:
		return apierrors.NewServiceUnavailable(said.Text)
	}
	return apierrors.NewInternalError(said)
}
