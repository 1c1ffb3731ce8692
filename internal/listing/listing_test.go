package listing

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
)

var things = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "things"}

// serve answers every list with a text.
func serve(t *testing.T, code int, body func(http.ResponseWriter)) *Reader[metav1.PartialObjectMetadata] {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/example.com/v1/namespaces/blue/things" || !slices.Contains([]string{"1", "4"}, r.URL.Query().Get("limit")) {
			t.Errorf("asked for %s", r.URL)
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Warning", `299 - "deprecated"`)
		w.WriteHeader(code)
		body(w)
	}))
	t.Cleanup(server.Close)
	r, err := New[metav1.PartialObjectMetadata](&rest.Config{Host: server.URL}, things, 3, 1<<10, clocktesting.NewFakePassiveClock(time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func list(names ...string) func(http.ResponseWriter) {
	items := make([]string, len(names))
	for i, name := range names {
		items[i] = fmt.Sprintf(`{"metadata":{"name":%q,"Name":"x"}}`, name)
	}
	text := `{"apiVersion":"example.com/v1","kind":"ThingList","metadata":{},"items":[` + strings.Join(items, ",") + `]}`
	return func(w http.ResponseWriter) { fmt.Fprint(w, text) }
}

func TestListOfANamespace(t *testing.T) {
	status := func(code int, reason metav1.StatusReason) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) {
			fmt.Fprintf(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":%q,"code":%d}`, reason, code)
		}
	}
	for name, c := range map[string]struct {
		code  int
		body  func(http.ResponseWriter)
		names string
		fails func(error) bool // nil if it does not
	}{
		"none":         {200, list(), "", nil},
		"some":         {200, list("a", "b"), "a b", nil},
		"all that may": {200, list("a", "b", "c"), "a b c", nil},
		"too many": {200, list("a", "b", "c", "d"), "", func(err error) bool {
			return errors.Is(err, ErrTooMany) && strings.Contains(err.Error(), `namespace "blue"`)
		}},
		"too large":     {200, list(strings.Repeat("x", 1<<10)), "", func(err error) bool { return errors.Is(err, ErrTooMany) && strings.Contains(err.Error(), "1 KiB") }},
		"no such kind":  {404, status(404, metav1.StatusReasonNotFound), "", nil},
		"not permitted": {403, status(403, metav1.StatusReasonForbidden), "", apierrors.IsForbidden},
		"malformed": {200, func(w http.ResponseWriter) { fmt.Fprint(w, `{"items":[{"metadata":{"name":"odd","labels":7}}]}`) }, "", func(err error) bool {
			return errors.Is(err, ErrMalformed) && strings.Contains(err.Error(), `read "odd" of things: `)
		}},
		"broken": {200, func(w http.ResponseWriter) { fmt.Fprint(w, `{"items":[{]}`) }, "", func(err error) bool { return !errors.Is(err, ErrTooMany) }},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := serve(t, c.code, c.body).In(t.Context(), "blue")
			var names []string
			for _, o := range found {
				names = append(names, o.Name)
			}
			if strings.Join(names, " ") != c.names || (err != nil) != (c.fails != nil) || err != nil && !c.fails(err) {
				t.Errorf("%v, %v", names, err)
			}
		})
	}
}

func TestWhetherThereIsAny(t *testing.T) {
	for name, c := range map[string]struct {
		code int
		body func(http.ResponseWriter)
		want bool
		fail bool
	}{
		"none":         {200, list(), false, false},
		"one":          {200, list("a"), true, false},
		"a large one":  {200, list(strings.Repeat("x", 1<<10)), true, false},
		"no such kind": {404, func(w http.ResponseWriter) { fmt.Fprint(w, `{}`) }, false, false},
		"broken":       {200, func(w http.ResponseWriter) { fmt.Fprint(w, `{`) }, false, true},
		"down":         {500, func(w http.ResponseWriter) { fmt.Fprint(w, `{}`) }, false, true},
	} {
		if got, err := serve(t, c.code, c.body).Any(t.Context(), "blue"); got != c.want || (err != nil) != c.fail {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	// Without a namespace, the list would be of the whole cluster.
	r := serve(t, 200, list("a"))
	if _, err := r.Any(t.Context(), ""); err == nil {
		t.Error("a list of all namespaces")
	}
	if _, err := r.In(t.Context(), ""); err == nil {
		t.Error("a list of all namespaces")
	}
}

// TestEndlessAnswerIsReadBounded: of an answer without end no more is read than may be.
func TestEndlessAnswerIsReadBounded(t *testing.T) {
	var sent atomic.Int64
	r := serve(t, 200, func(w http.ResponseWriter) {
		for part := []byte(strings.Repeat(" ", 1<<10)); ; {
			n, err := w.Write(part)
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	})
	if _, err := r.In(t.Context(), "blue"); !errors.Is(err, ErrTooMany) {
		t.Error(err)
	}
	if n := sent.Load(); n > 64<<20 { // most of it is in the sockets' buffers
		t.Errorf("%d bytes were sent", n)
	}
}

// TestListingEndsWithItsCaller: a reading ends with its caller.
func TestListingEndsWithItsCaller(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan struct{})
	defer close(answer)
	r := serve(t, 200, func(http.ResponseWriter) {
		cancel()
		<-answer
	})
	if _, err := r.In(ctx, "blue"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
