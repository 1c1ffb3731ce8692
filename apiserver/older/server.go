package older

import (
	"bytes"
	"context"
	"encoding/json"
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
	"github.com/kubeqemu/kubeqemu/internal/intake"
)

// Server serves the older versions to the API server, which passes on its users' requests.
type Server struct {
	api            *url.URL
	client         *http.Client
	calls, watches callers.Kind
	bodies         *intake.Bodies
	patience       time.Duration
	// ending ends the watches.
	ending context.Context
	end    context.CancelFunc
	Options
}

// Options of a Server.
type Options struct {
	// FrontProxy returns the verifier of the API server's certificate. Its error means that
	// virt-api has not read yet how to verify that certificate.
	FrontProxy func() (*callers.FrontProxy, error)
	// Rights asks what users may do.
	Rights *callers.Rights
	// Now is the time at which certificates are verified.
	Now func() time.Time
	Log logr.Logger
}

const (
	// callTimeout bounds a request that is no watch, and the time that its client has to take the
	// answer. It is longer than the API server's own timeout of a request, which is a minute.
	callTimeout = 75 * time.Second
	// watchPatience is how long one write to a client of a watch may block.
	watchPatience = 5 * time.Minute
	// chunk, in bytes, is how much of an answer virt-api reads at once.
	chunk = 16 << 10
)

// New makes a Server. RBAC must allow the config's user to impersonate Account.
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
	ending, end := context.WithCancel(context.Background())
	return &Server{api: api, client: client, bodies: newBodies(), patience: watchPatience, ending: ending, end: end, Options: o,
		// A request takes 100 KiB of memory, besides its body, and two connections.
		calls:   callers.NewKind("requests at older versions", 192, 64, 48),
		watches: callers.NewKind("watches at older versions", 300, 100, 75)}, nil
}

// Close ends the watches: their clients see the end of the watch, and begin it anew. Close is for a
// server that is about to end, whose other requests end by themselves.
func (s *Server) Close() { s.end() }

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
	who, err := callers.Identify(r, s.FrontProxy, s.Now())
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
	// The client may have sent other headers, large ones too. A watch would keep them in memory.
	r.Header = http.Header{"Content-Type": r.Header["Content-Type"], "Content-Encoding": r.Header["Content-Encoding"]}
	account, err := s.check(r, who, t)
	if err != nil {
		return err
	}
	header.Set("Impersonate-User", account)
	kind := &s.calls
	if t.verb == "watch" {
		kind = &s.watches
	}
	ctx, release, err := kind.Take(r.Context(), who, t.namespace)
	if err != nil {
		return err
	}
	defer release()
	limited, cancel := s.limited(ctx, t)
	defer cancel()
	return callers.GaveWay(ctx, s.pass(limited, w, r, who, t, header))
}

// errEnding is why the context of a watch ends when virt-api does.
var errEnding = errors.New("virt-api is ending")

// limited is a request's context with an end: a timeout, or for a watch the end of the Server.
func (s *Server) limited(ctx context.Context, t target) (context.Context, context.CancelFunc) {
	if t.verb != "watch" {
		return context.WithTimeout(ctx, callTimeout)
	}
	limited, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ending, func() { cancel(errEnding) })
	return limited, func() { stop(); cancel(nil) }
}

// check returns the user in whose name the request is passed on, or an error if its sender lacks a right that the request needs.
func (s *Server) check(r *http.Request, who callers.User, t target) (account string, err error) {
	if err := s.Rights.Check(r.Context(), who, t.attributes()); err != nil {
		return "", err
	}
	apply := strings.HasPrefix(strings.ToLower(r.Header.Get("Content-Type")), "application/apply-patch")
	if account, err = s.account(r.Context(), who, t, apply); err != nil {
		return "", err
	}
	return account, s.checkWider(r.Context(), who, t, apply && account != AccountWithoutCreate)
}

// account returns the account that has no right to create or delete an object that who has not.
func (s *Server) account(ctx context.Context, who callers.User, t target, apply bool) (string, error) {
	if t.subresource != "" || t.verb != "update" && t.verb != "patch" {
		return Account, nil
	}
	lacked := []struct{ verb, account string }{{"delete", AccountWithoutDelete}}
	if apply {
		lacked = append([]struct{ verb, account string }{{"create", AccountWithoutCreate}}, lacked...)
	}
	for _, lack := range lacked {
		err := s.Rights.Check(ctx, who, t.also(lack.verb))
		if apierrors.IsForbidden(err) {
			return lack.account, nil
		}
		if err != nil {
			return "", err
		}
	}
	return Account, nil
}

// checkWider returns an error if a request needs a right in the components' namespace that its sender lacks.
func (s *Server) checkWider(ctx context.Context, who callers.User, t target, mayCreate bool) error {
	for _, wider := range t.wider(mayCreate) {
		err := s.Rights.Check(ctx, who, wider)
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

// pass passes a request on to the API server, and the answer back.
func (s *Server) pass(ctx context.Context, w http.ResponseWriter, r *http.Request, who callers.User, t target, header http.Header) error {
	response, err := s.send(ctx, w, r, who, t, header)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := refusal(response, header.Get("Impersonate-User")); err != nil {
		return err
	}
	s.answer(ctx, w, response, t)
	return nil
}

// send sends a request to the API server, and returns when the answer begins.
func (s *Server) send(ctx context.Context, w http.ResponseWriter, r *http.Request, who callers.User, t target, header http.Header) (*http.Response, error) {
	body, release, err := s.body(w, r, who, t)
	if err != nil {
		return nil, err
	}
	defer release()
	path, query := t.current()
	address := *s.api
	address.Path, address.RawQuery = strings.TrimSuffix(address.Path, "/")+path, query
	request, err := http.NewRequestWithContext(ctx, r.Method, address.String(), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	if request.Header = header; len(body) == 0 {
		request.Header.Del("Content-Type")
	}
	response, err := s.client.Do(request)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil, apierrors.NewTimeoutError(fmt.Sprintf("the API server has not answered within %s", callTimeout), 1)
	case err != nil:
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("pass the request on to the API server: %v", err))
	}
	return response, nil
}

// maxStatus, in bytes, bounds a refusal that virt-api reads.
const maxStatus = 64 << 10

// refusal returns an error if the API server has refused virt-api itself, and not the request: then
// virt-api lacks its rights. To a refusal of a request in the name of an account that lacks rights, refusal adds
// why virt-api took that account. Of any other answer the body stays as it is.
func refusal(response *http.Response, account string) error {
	if response.StatusCode != http.StatusUnauthorized && response.StatusCode != http.StatusForbidden {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxStatus))
	if err != nil {
		return fmt.Errorf("read the API server's refusal: %w", err)
	}
	var status metav1.Status
	readable := json.Unmarshal(text, &status) == nil && status.Details != nil
	impersonating := readable && (status.Details.Kind == "users" || strings.HasPrefix(status.Details.Kind, "userextras"))
	if response.StatusCode == http.StatusUnauthorized || impersonating {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("virt-api may not act for %s: apply config/older-versions", account))
	}
	if readable && account != Account {
		status.Message += " (at an older version virt-api acts as " + account + " for a user who may not create and delete the object)"
		return &apierrors.StatusError{ErrStatus: status}
	}
	response.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(text), response.Body), response.Body}
	return nil
}

// answer passes an answer back. If the API server's answer breaks off, virt-api breaks off the
// client's connection, so that the client does not take a part for the whole.
func (s *Server) answer(ctx context.Context, w http.ResponseWriter, response *http.Response, t target) {
	for _, name := range []string{"Content-Type", "Warning", "Retry-After", "Audit-Id"} {
		w.Header()[name] = response.Header[name]
	}
	w.Header().Add("Warning", fmt.Sprintf("299 - %q", t.version.older()+" is deprecated: virt-api passes the request on to "+t.version.current()))
	w.WriteHeader(response.StatusCode)
	client := http.NewResponseController(w)
	// A write to a client that takes nothing ends with the context, too: another namespace may need
	// the place.
	stop := context.AfterFunc(ctx, func() {
		if !errors.Is(context.Cause(ctx), errEnding) {
			_ = client.SetWriteDeadline(time.Unix(1, 0))
		}
	})
	defer stop()
	patience := callTimeout
	if t.verb == "watch" {
		patience = s.patience
		_ = client.Flush() // the first event may be far away
	}
	_ = client.SetWriteDeadline(time.Now().Add(patience)) // without a connection there is no deadline
	err := s.copy(ctx, w, response.Body, t)
	if t.verb == "watch" {
		_ = client.SetWriteDeadline(time.Now().Add(s.patience)) // for the end, long after the last event
	}
	if err != nil && !errors.Is(context.Cause(ctx), errEnding) {
		panic(http.ErrAbortHandler)
	}
}

// copy copies the API server's answer to the client, in the older version.
func (s *Server) copy(ctx context.Context, w http.ResponseWriter, from io.Reader, t target) error {
	client := http.NewResponseController(w)
	to := &apiVersions{to: w, from: t.version.current(), by: t.version.older()}
	buffer := make([]byte, chunk)
	for {
		n, err := from.Read(buffer)
		if n > 0 && t.verb == "watch" {
			_ = client.SetWriteDeadline(time.Now().Add(s.patience))
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return err // the client has gone
			}
			if t.verb == "watch" {
				_ = client.Flush() // after a failed flush the next write fails
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the API server's answer: %w", err)
		}
	}
}

// header returns the head of the request to the API server, without the user in whose name the request is made. The API server makes the field manager of
// the name of the client's program.
func (s *Server) header(from http.Header, who callers.User) (http.Header, error) {
	accept, err := accepted(from.Values("Accept"))
	if err != nil {
		return nil, err
	}
	to := http.Header{"Accept": {accept}, "Accept-Encoding": {"identity"}, "User-Agent": {"virt-api"},
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

// printable returns a user's name as a header can hold it: quoted, if it has other characters.
func printable(name string) string {
	if strings.HasPrefix(name, `"`) {
		return strconv.QuoteToASCII(name)
	}
	for _, c := range []byte(name) {
		if c < ' ' || c > '~' {
			return strconv.QuoteToASCII(name)
		}
	}
	return name
}

// accepted returns the media types of Accept that virt-api can read: JSON of any form, such as a
// table. client-go asks for protobuf first, and takes JSON.
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
	if strings.TrimSpace(strings.Join(values, "")) == "" {
		return "application/json", nil
	}
	if len(kept) == 0 {
		return "", &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
			Message: "at an older version, only application/json is answered"}}
	}
	return strings.Join(kept, ","), nil
}
