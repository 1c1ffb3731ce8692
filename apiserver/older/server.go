package older

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubeqemu/kubeqemu/apiserver/callers"
)

// Server serves the older versions to the API server, which passes on its users' requests.
type Server struct {
	api            *url.URL
	client         *http.Client
	calls, watches callers.Kind
	bodies         bodies
	patience       time.Duration
	Options
}

// Options of a Server.
type Options struct {
	// FrontProxy returns what verifies the API server.
	FrontProxy func() (*callers.FrontProxy, error)
	Rights     *callers.Rights
	Now        func() time.Time
	Log        logr.Logger
}

const (
	// callTimeout is longer than the API server's own timeout of a request, which is a minute. The
	// client has as long again to take the answer.
	callTimeout = 75 * time.Second
	// watchPatience is how long a client may not take what a watch has sent.
	watchPatience = 5 * time.Minute
	// chunk, in bytes, is how much of an answer is in memory.
	chunk = 16 << 10
)

// New makes a Server. The config's user may impersonate Account.
func New(config *rest.Config, o Options) (*Server, error) {
	api, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	// HTTP/2 would keep up to 4 MiB of each answer that a client does not take.
	config = rest.CopyConfig(config)
	config.NextProtos = []string{"http/1.1"}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Server{api: api, client: client, bodies: newBodies(), patience: watchPatience, Options: o,
		// A request takes 100 KiB of memory, besides its body.
		calls:   callers.NewKind("requests at older versions", 192, 64, 48),
		watches: callers.NewKind("watches at older versions", 300, 100, 75)}, nil
}

// Serves says whether a path is of an older version.
func Serves(path string) bool {
	_, _, ok := under(path)
	return ok
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if v, rest, ok := under(r.URL.EscapedPath()); ok && r.Method == http.MethodGet && strings.Trim(rest, "/") == "" {
		callers.Write(w, http.StatusOK, v.discovery())
		return
	}
	if err := s.serve(w, r); err != nil {
		callers.Refuse(w, r, s.Log, err)
	}
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) error {
	proxy, err := s.FrontProxy()
	if err != nil {
		return apierrors.NewServiceUnavailable(err.Error())
	}
	who, err := proxy.Authenticate(r.TLS, r.Header, s.Now())
	if err != nil {
		return err
	}
	t, err := parse(r.Method, r.URL)
	if err != nil {
		return err
	}
	s.Log.V(3).Info("request", "verb", t.verb, "path", r.URL.Path, "user", who.Name)
	header, err := s.header(r.Header, who)
	if err != nil {
		return err
	}
	// The others are the client's, and may be large; a watch would keep them.
	r.Header = http.Header{"Content-Type": r.Header["Content-Type"], "Content-Encoding": r.Header["Content-Encoding"]}
	if err := s.check(r, who, t); err != nil {
		return err
	}
	kind := &s.calls
	if t.verb == "watch" {
		kind = &s.watches
	}
	ctx, release, err := kind.Take(r.Context(), who, t.namespace)
	if err != nil {
		return err
	}
	defer release()
	if t.verb != "watch" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, callTimeout)
		defer cancel()
	}
	return callers.GaveWay(ctx, s.pass(ctx, w, r, t, header))
}

// check returns an error unless the user may do what is asked for.
func (s *Server) check(r *http.Request, who callers.User, t target) error {
	if err := s.Rights.Check(r.Context(), who, t.attributes()); err != nil {
		return err
	}
	apply := strings.HasPrefix(r.Header.Get("Content-Type"), "application/apply-patch")
	for _, wider := range t.wider(apply) {
		err := s.Rights.Check(r.Context(), who, wider)
		if apierrors.IsForbidden(err) {
			return apierrors.NewForbidden(schema.GroupResource{Group: wider.Group, Resource: wider.Resource}, t.name, fmt.Errorf(
				"a KubeVirt configures the whole cluster: to %s one in the namespace %s you also need the right to %s kubevirts.kubevirt.io in the namespace %s",
				wider.Verb, t.namespace, wider.Verb, wider.Namespace))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pass passes a request on to the API server, and its answer back.
func (s *Server) pass(ctx context.Context, w http.ResponseWriter, r *http.Request, t target, header http.Header) error {
	body, release, err := s.bodies.current(w, r, t)
	if err != nil {
		return err
	}
	defer release()
	path, query := t.current()
	address := *s.api
	address.Path, address.RawQuery = strings.TrimSuffix(address.Path, "/")+path, query
	request, err := http.NewRequestWithContext(ctx, r.Method, address.String(), bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	if request.Header = header; len(body) == 0 {
		request.Header.Del("Content-Type")
	}
	response, err := s.client.Do(request)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return apierrors.NewTimeoutError(fmt.Sprintf("the API server has not answered within %s", callTimeout), 1)
		}
		return apierrors.NewServiceUnavailable(fmt.Sprintf("pass the request on to the API server: %v", err))
	}
	defer response.Body.Close()
	s.answer(w, response, t)
	return nil
}

// answer passes an answer back. If it breaks off, the client's connection does so too.
func (s *Server) answer(w http.ResponseWriter, response *http.Response, t target) {
	for _, name := range []string{"Content-Type", "Warning", "Retry-After", "Audit-Id"} {
		w.Header()[name] = response.Header[name]
	}
	w.Header().Add("Warning", fmt.Sprintf("299 - %q", t.version.older()+" is deprecated: it is passed on to "+t.version.current()))
	w.WriteHeader(response.StatusCode)
	client := http.NewResponseController(w)
	if t.verb == "watch" {
		_ = client.Flush() // the first event may be far away
	}
	to := &apiVersions{to: w, from: t.version.current(), by: t.version.older()}
	buffer := make([]byte, chunk)
	_ = client.SetWriteDeadline(time.Now().Add(callTimeout)) // without a connection there is no deadline
	for {
		n, err := response.Body.Read(buffer)
		if n > 0 {
			if t.verb == "watch" {
				_ = client.SetWriteDeadline(time.Now().Add(s.patience))
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return // the client has gone
			}
			if t.verb == "watch" {
				_ = client.Flush() // the next write fails, too
			}
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}

// header returns the head of the request to the API server. The name of the user's program becomes
// the field manager, as it would be without virt-api between them.
func (s *Server) header(from http.Header, who callers.User) (http.Header, error) {
	accept, err := accepted(from.Values("Accept"))
	if err != nil {
		return nil, err
	}
	to := http.Header{"Accept": {accept}, "Accept-Encoding": {"identity"}, "Impersonate-User": {Account},
		"Impersonate-Extra-" + strings.ReplaceAll(CallerKey, "/", "%2f"): {printable(who.Name)}}
	for _, name := range []string{"Content-Type", "User-Agent", "Audit-Id"} {
		if value := from.Get(name); value != "" && len(value) <= maxHeader {
			to.Set(name, value)
		}
	}
	return to, nil
}

// maxHeader, in bytes, bounds a header that is passed on.
const maxHeader = 1 << 10

// printable returns a user's name as a header can hold it.
func printable(name string) string {
	for _, c := range []byte(name) {
		if c < ' ' || c > '~' {
			return strconv.QuoteToASCII(name)
		}
	}
	return name
}

// accepted returns those of the media types of Accept that virt-api can read: JSON of any form, such
// as a table. client-go asks for protobuf first, and takes JSON.
func accepted(values []string) (string, error) {
	var kept []string
	for _, value := range values {
		for _, one := range strings.Split(value, ",") {
			kind, _, _ := strings.Cut(strings.TrimSpace(one), ";")
			switch strings.ToLower(strings.TrimSpace(kind)) {
			case "application/json":
				kept = append(kept, strings.TrimSpace(one))
			case "*/*", "application/*":
				kept = append(kept, "application/json")
			}
		}
	}
	if len(values) == 0 {
		return "application/json", nil
	}
	if len(kept) == 0 {
		return "", &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
			Message: "at an older version, only application/json is answered"}}
	}
	return strings.Join(kept, ","), nil
}
