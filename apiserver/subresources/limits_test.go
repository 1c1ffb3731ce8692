package subresources

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/kubeqemu/kubeqemu/apiserver/callers"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// TestLimitsOfUsersAndNamespaces: no user has all that a namespace may, no two namespaces all there is.
func TestLimitsOfUsersAndNamespaces(t *testing.T) {
	l := newLimits()
	for _, k := range []*callers.Kind{&l.calls, &l.queries, &l.screenshots, &l.forwards, &l.consoles} {
		if k.Users.Share >= k.Namespaces.Share || 2*k.Namespaces.Share >= k.Namespaces.Size {
			t.Errorf("%s: %d in all, %d of a namespace, %d of a user", k.Plural, k.Namespaces.Size, k.Namespaces.Share, k.Users.Share)
		}
	}
	if l.bodies.Budget.Size < 2*maxObject {
		t.Errorf("one body is more than half of what is read: %d", l.bodies.Budget.Size)
	}
}

// TestOneTenantsStreamsLeaveRoomForOthers: whoever has as many ports forwarded as may be keeps nobody
// from a console, and no other namespace from a port.
func TestOneTenantsStreamsLeaveRoomForOthers(t *testing.T) {
	s := serve(t)
	s.server.limits.forwards = callers.NewKind("forwarded ports", 12, 5, 3)
	s.ip = ownAddress(t)
	s.allowed = "virtualmachineinstances/portforward"
	path := func(namespace, what string) string {
		return root + "/namespaces/" + namespace + "/virtualmachineinstances/vm/" + what
	}
	open := func(user, namespace string, want int, text string) *websocket.Conn {
		t.Helper()
		conn, status, err := s.dialAs(user, path(namespace, "portforward/9/udp"))
		if (err == nil) != (want == 0) || int(status.Code) != want || !strings.Contains(status.Message, text) {
			t.Fatalf("%s in %s: %d %q, %v; want %d %q", user, namespace, status.Code, status.Message, err, want, text)
		}
		return conn
	}
	console := func(user, namespace string) {
		t.Helper()
		s.mu.Lock()
		s.allowed = "virtualmachineinstances/console"
		s.mu.Unlock()
		// There is no virt-handler here.
		if _, status, _ := s.dialAs(user, path(namespace, "console")); status.Code != http.StatusServiceUnavailable {
			t.Errorf("a console of %s in %s: %d %q", user, namespace, status.Code, status.Message)
		}
		s.mu.Lock()
		s.allowed = "virtualmachineinstances/portforward"
		s.mu.Unlock()
	}
	oldest := open("ann", "tenant-1", 0, "")
	for range 2 {
		open("ann", "tenant-1", 0, "")
	}
	open("ann", "tenant-1", http.StatusTooManyRequests, `user "ann" has 3 forwarded ports`)
	open("ann", "tenant-2", http.StatusTooManyRequests, `user "ann" has 3 forwarded ports`)
	for range 2 {
		open("ann-too", "tenant-1", 0, "")
	}
	open("ann-too", "tenant-1", http.StatusTooManyRequests, `namespace "tenant-1" has 5 forwarded ports`)
	console("ann", "tenant-1")
	// All there is, by three tenants.
	for i := range 7 {
		open(fmt.Sprint("ann-of-", i), fmt.Sprint("tenant-", 2+i%2), 0, "")
	}
	console("ann", "tenant-1")
	console("ann-of-none", "tenant-9")
	// The one with most gives way to one that has none.
	open("ann-of-none", "tenant-9", 0, "")
	_ = oldest.SetReadDeadline(time.Now().Add(testkit.Patience))
	_, _, err := oldest.ReadMessage()
	var closed *websocket.CloseError
	if !errors.As(err, &closed) || closed.Code != websocket.CloseTryAgainLater || closed.Text != callers.ErrGaveWay.Error() {
		t.Errorf("the stream that gave way: %v", err)
	}
	if used := s.server.limits.forwards.Namespaces.Used(); used != 12 {
		t.Errorf("%d streams of 12", used)
	}
}

// TestCallsOfANamespaceAreBounded: every row of the table is of a kind, a namespace's calls of
// which are bounded, and those of others go on.
func TestCallsOfANamespaceAreBounded(t *testing.T) {
	s := serve(t)
	l := s.server.limits
	upgrade := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
	s.ip = ownAddress(t)
	for _, e := range Table() {
		ask := func(namespace string) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			r := httptest.NewRequestWithContext(ctx, e.Method, "/", strings.NewReader(""))
			r.Header = upgrade
			o := object{endpoint: e, namespace: namespace, name: "vm"}
			if e.Parameters > 0 {
				o.parameters = []string{"9", "udp"}
			}
			return e.serve(s.server, httptest.NewRecorder(), &call{r, o, callers.User{Name: "ann"}})
		}
		if err := ask("tenant-1"); apierrors.IsTooManyRequests(err) {
			t.Errorf("%s, with room: %v", e.Name(), err)
		}
		var releases []func()
		for _, k := range []*callers.Kind{&l.calls, &l.queries, &l.screenshots, &l.forwards, &l.consoles} {
			for i := range k.Namespaces.Share {
				_, release, err := k.Take(t.Context(), callers.User{Name: fmt.Sprint("bob", i)}, "tenant-1")
				if err != nil {
					t.Fatal(err)
				}
				releases = append(releases, release)
			}
		}
		if err := ask("tenant-1"); !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), `namespace "tenant-1" has`) {
			t.Errorf("%s, without room: %v", e.Name(), err)
		}
		if err := ask("tenant-2"); apierrors.IsTooManyRequests(err) {
			t.Errorf("%s, of another namespace: %v", e.Name(), err)
		}
		for _, release := range releases {
			release()
		}
	}
}

// TestRequestHeadsAreNotKeptByStreams: what clients write into the heads of their requests is not kept
// for as long as their streams last.
func TestRequestHeadsAreNotKeptByStreams(t *testing.T) {
	s := serve(t)
	s.ip, s.allowed = ownAddress(t), "virtualmachineinstances/portforward"
	heap := func() uint64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	open := func(fields int) (each int) {
		const streams = 20
		header := http.Header{"X-Remote-User": {"ann"}}
		for i := range fields {
			header[fmt.Sprintf("%X", i)] = []string{""}
		}
		before := heap()
		for range streams {
			conn, status, err := s.dialWith(header, root+"/namespaces/ns/virtualmachineinstances/vm/portforward/9/udp")
			if err != nil {
				t.Fatalf("%v, %+v", err, status)
			}
			defer conn.Close()
		}
		return (int(heap()) - int(before)) / streams
	}
	few, many := open(0), open(7000)
	if t.Logf("a stream takes %d KiB, and %d KiB with many fields", few>>10, many>>10); many > few+200<<10 {
		t.Error("that is too much")
	}
}
