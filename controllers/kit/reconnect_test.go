package kit

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// away is a server that is not reached the first times, and then answers.
type away struct {
	times int
	err   error
	asked int
}

func (a *away) RoundTrip(*http.Request) (*http.Response, error) {
	if a.asked++; a.asked <= a.times {
		return nil, a.err
	}
	return &http.Response{StatusCode: http.StatusServiceUnavailable}, nil
}

func TestRefusedWatchIsTriedAgainInPlace(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	for _, tt := range []struct {
		name, method, url string
		err               error
		asked             int // times; the 301st answers
	}{
		{"watch", "GET", "https://x/apis/kubevirt.io/v1/virtualmachineinstances?watch=true&resourceVersion=7", refused, 301},
		{"watch, as the Go client writes it", "GET", "https://x/api/v1/pods?watch=1", refused, 301},
		{"list", "GET", "https://x/api/v1/pods?resourceVersion=7", refused, 1},
		{"get", "GET", "https://x/api/v1/namespaces/watch/pods/true", refused, 1},
		{"write", "POST", "https://x/api/v1/pods?watch=true", refused, 1},
		{"watch that breaks off", "GET", "https://x/api/v1/pods?watch=true", &net.OpError{Op: "read", Err: errors.New("reset")}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &away{times: 300, err: tt.err}
				request, _ := http.NewRequest(tt.method, tt.url, nil)
				begin := time.Now()
				response, err := (&transport{next: server, redial: time.Second}).RoundTrip(request)
				if server.asked != tt.asked || (err == nil) != (tt.asked == 301) || (response != nil) != (err == nil) {
					t.Errorf("asked %d times, want %d; error %v", server.asked, tt.asked, err)
				}
				if took := time.Since(begin); took != time.Duration(tt.asked-1)*time.Second {
					t.Errorf("took %s", took)
				}
			})
		})
	}
}

func TestWatchEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		request, _ := http.NewRequestWithContext(ctx, "GET", "https://x/api/v1/pods?watch=true", nil)
		refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
		begin := time.Now()
		if _, err := (&transport{next: &away{times: 1000, err: refused}, redial: time.Second}).RoundTrip(request); !errors.Is(err, refused) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(begin); took != 90*time.Second {
			t.Errorf("ended after %s", took)
		}
	})
}

// TestControllerEndsWithItsContext: a controller ends with its context, however much is in its queue.
func TestControllerEndsWithItsContext(t *testing.T) {
	for range 20 {
		options := Options(20)
		options.SkipNameValidation = ptr.To(true)
		var queue workqueue.TypedRateLimitingInterface[reconcile.Request]
		add := func() {
			queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: strconv.FormatUint(rand.Uint64(), 36)}})
		}
		options.Reconciler = reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			add()
			return reconcile.Result{}, nil
		})
		c, err := controller.NewUnmanaged("endless", options)
		if err != nil {
			t.Fatal(err)
		}
		err = c.Watch(source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			queue = q
			for range options.MaxConcurrentReconciles {
				add()
			}
			return nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		ended := make(chan error, 1)
		go func() { ended <- c.Start(ctx) }()
		if err := testkit.Receive(t, ended, "the controller's end with its context"); err != nil {
			t.Fatal(err)
		}
	}
}
