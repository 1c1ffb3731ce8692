package listing

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
)

// paged is an API server with many objects in the namespace many, one in few, and no answer for slow.
type paged struct {
	*Reader[metav1.PartialObjectMetadata]
	clock *clocktesting.FakePassiveClock
	asked chan string
	many  int
	size  int
}

func newPaged(t *testing.T, many, size int) *paged {
	t.Helper()
	p := &paged{clock: clocktesting.NewFakePassiveClock(time.Now()), asked: make(chan string, 100), many: many, size: size}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	var err error
	if p.Reader, err = New[metav1.PartialObjectMetadata](&rest.Config{Host: server.URL}, things, 10, 64<<10, p.clock); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *paged) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	namespace := strings.Split(r.URL.Path, "/")[5]
	p.asked <- namespace
	count := 1
	switch namespace {
	case "many":
		count = p.many
	case "slow":
		<-r.Context().Done()
		return
	}
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	to := min(count, from+limit)
	next := ""
	if to < count {
		next = strconv.Itoa(to)
	}
	var items []string
	for i := from; i < to; i++ {
		items = append(items, fmt.Sprintf(`{"metadata":{"name":"o%02d","annotations":{"a":%q}}}`, i, strings.Repeat("x", p.size)))
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"metadata":{"continue":%q},"items":[%s]}`, next, strings.Join(items, ","))
}

// lists is how many lists there were since the last call.
func (p *paged) lists() int {
	n := len(p.asked)
	for range n {
		<-p.asked
	}
	return n
}

// TestPagesAreBounded: no page is asked for after the bound.
func TestPagesAreBounded(t *testing.T) {
	for name, c := range map[string]struct{ many, size, found, lists int }{
		"one page":                {4, 1, 4, 1},
		"all that may":            {10, 1, 10, 3},
		"one too many":            {11, 1, 0, 3},
		"far too many":            {1000, 1, 0, 3},
		"too large":               {4, 32 << 10, 0, 1},
		"too large in two pages":  {8, 10 << 10, 0, 2},
		"large, but not too much": {8, 7 << 10, 8, 2},
	} {
		p := newPaged(t, c.many, c.size)
		found, err := p.In(t.Context(), "many")
		if len(found) != c.found || errors.Is(err, ErrTooMany) != (c.found == 0) || p.lists() != c.lists {
			t.Errorf("%s: %d, %v", name, len(found), err)
		}
		for i, o := range found {
			if o.Name != fmt.Sprintf("o%02d", i) {
				t.Errorf("%s: %q is number %d", name, o.Name, i)
			}
		}
	}
}

// TestFailureRemembered: a namespace that cannot be read costs one list in a while, others are read.
func TestFailureRemembered(t *testing.T) {
	p := newPaged(t, 1000, 1)
	for range 5 {
		if _, err := p.In(t.Context(), "many"); !errors.Is(err, ErrTooMany) {
			t.Error(err)
		}
	}
	if n := p.lists(); n != 3 {
		t.Errorf("%d pages were read", n)
	}
	if found, err := p.In(t.Context(), "few"); len(found) != 1 || err != nil {
		t.Errorf("another namespace: %v, %v", found, err)
	}
	p.many = 1
	p.clock.SetTime(p.clock.Now().Add(pause))
	for range 2 {
		if found, err := p.In(t.Context(), "many"); len(found) != 1 || err != nil {
			t.Errorf("afterwards: %v, %v", found, err)
		}
	}
}

// TestOnlyOneCallerWaitsForSlowNamespace: one caller waits for a slow namespace, and the others get its last error.
func TestOnlyOneCallerWaitsForSlowNamespace(t *testing.T) {
	p := newPaged(t, 1, 1)
	if _, err := p.In(t.Context(), "slow"); !errors.Is(err, ErrSlow) {
		t.Fatal(err)
	}
	<-p.asked
	p.clock.SetTime(p.clock.Now().Add(pause))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := p.In(ctx, "slow")
		done <- err
	}()
	<-p.asked
	if _, err := p.In(t.Context(), "slow"); !errors.Is(err, ErrSlow) || p.lists() != 0 {
		t.Errorf("while another waits: %v", err)
	}
	cancel() // a caller that gives up says nothing of the namespace
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := p.In(t.Context(), "slow"); !errors.Is(err, ErrSlow) || p.lists() != 1 {
		t.Errorf("the next: %v", err)
	}
}

func TestRememberedFailuresAreBounded(t *testing.T) {
	c := clocktesting.NewFakePassiveClock(time.Now())
	f := failures{clock: c}
	for n := range maxFailures + 10 {
		f.end(strconv.Itoa(n), ErrSlow)
		c.SetTime(c.Now().Add(time.Millisecond))
	}
	if len(f.all) != maxFailures || f.begin("9") != nil || f.begin("10") == nil {
		t.Errorf("%d are remembered", len(f.all))
	}
}
