package monitoring

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/testr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/kubeqemu/kubeqemu/internal/intake"
)

// apiServer knows one account that may, and one that may not.
type apiServer struct {
	asked   []string // paths
	down    bool
	refused bool // the account that may, may not any more
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.asked = append(s.asked, r.URL.Path)
	if s.down {
		http.Error(w, "down", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	switch {
	case strings.HasSuffix(r.URL.Path, "/tokenreviews"):
		var review authenticationv1.TokenReview
		json.NewDecoder(r.Body).Decode(&review)
		if name, ok := strings.CutPrefix(review.Spec.Token, "token-of-"); ok {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: name, Groups: []string{"system:authenticated"}}}
		}
		json.NewEncoder(w).Encode(review)
	case strings.HasSuffix(r.URL.Path, "/subjectaccessreviews"):
		var review authorizationv1.SubjectAccessReview
		json.NewDecoder(r.Body).Decode(&review)
		a := review.Spec.NonResourceAttributes
		review.Status.Allowed = review.Spec.User == "prometheus" && a != nil && a.Path == "/metrics" && a.Verb == "get" && !s.refused
		json.NewEncoder(w).Encode(review)
	}
}

func TestScraperNeedsAToken(t *testing.T) {
	api := &apiServer{}
	server := httptest.NewServer(api)
	defer server.Close()
	now := time.Unix(1700000000, 0)
	access, err := NewAccess(&rest.Config{Host: server.URL}, func() time.Time { return now }, testr.New(t))
	if err != nil {
		t.Fatal(err)
	}
	guarded := access.Guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "numbers") }))
	get := func(header string, want int) {
		t.Helper()
		r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, Path, nil)
		if header != "" {
			r.Header.Set("Authorization", header)
		}
		w := httptest.NewRecorder()
		guarded.ServeHTTP(w, r)
		if w.Code != want || (w.Body.String() == "numbers") != (want == http.StatusOK) {
			t.Errorf("Authorization %q: %d %q, want %d", header, w.Code, w.Body, want)
		}
	}
	for _, c := range []struct {
		header string
		code   int
	}{
		{"", 401}, {"Bearer ", 401}, {"Basic cHJvbWV0aGV1czp4", 401}, {"token-of-prometheus", 401},
		{"Bearer forged", 401}, {"Bearer token-of-somebody", 403}, {"Bearer token-of-prometheus", 200},
	} {
		get(c.header, c.code)
	}
	// One question for the forged one, two for each of the others.
	if len(api.asked) != 5 {
		t.Errorf("the API server was asked %v", api.asked)
	}
	// What is known holds for a while, whatever becomes of the API server.
	api.down, api.refused = true, true
	get("Bearer token-of-prometheus", 200)
	get("Bearer token-of-somebody", 403)
	get("Bearer token-of-another", 503)
	api.down = false
	now = now.Add(allowedFor)
	get("Bearer token-of-prometheus", 403)

	// Made-up tokens do not stay in memory.
	access.pace = 0
	for i := range 10 * maxKnown {
		now = now.Add(time.Second)
		if _, err := access.verdict(t.Context(), "192.0.2.1", fmt.Sprint("guess-", i)); err != nil {
			t.Fatal(err)
		}
	}
	if len(access.known) > maxKnown {
		t.Errorf("%d tokens are remembered", len(access.known))
	}
}

// TestFloodOfTokensBlindsNoScraper: who shows made-up tokens without end, on as many connections as there
// may be, blinds no scraper whose token is new, from another address or the same,
// and has the API server asked at a rate.
func TestFloodOfTokensBlindsNoScraper(t *testing.T) {
	for name, sources := range map[string]int{"from one address": 1, "from many": 20} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { flood(t, sources) }) })
	}
}

func flood(t *testing.T, sources int) {
	var asked atomic.Int64
	access := &Access{now: time.Now, known: map[[sha256.Size]byte]known{}, questions: intake.Budget{Size: questionsAtOnce}, pace: questionPace,
		ask: func(_ context.Context, token string) (answer, error) {
			asked.Add(1)
			if strings.HasPrefix(token, "good") {
				return allowed, nil
			}
			return unknown, nil
		}}
	ctx, stop := context.WithCancel(t.Context())
	var strangers sync.WaitGroup
	defer strangers.Wait()
	defer stop()
	began := time.Now()
	for i := range maxStrangers {
		strangers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				_, _ = access.verdict(ctx, fmt.Sprint("192.0.2.", i%sources), fmt.Sprint("guess-", i, "-", n))
			}
		})
	}
	synctest.Wait()
	if used := access.questions.Used(); used != questionsAtOnce {
		t.Errorf("the flood has %d questions asked at once", used)
	}
	for i, c := range []struct {
		source string
		within time.Duration
	}{{"198.51.100.1", turnTimeout / 2}, {"192.0.2.0", turnTimeout}, {"198.51.100.2", turnTimeout / 2}} {
		start := time.Now()
		if got, err := access.verdict(ctx, c.source, fmt.Sprint("good-", i)); err != nil || got != allowed || time.Since(start) > c.within {
			t.Errorf("a new token from %s: %d, %v, after %s", c.source, got, err, time.Since(start))
		}
	}
	if got, most := asked.Load(), int64(time.Since(began)/questionPace+1)*questionsAtOnce; got > most {
		t.Errorf("the API server was asked %d times in %s, and %d at most", got, time.Since(began), most)
	}
}

// TestAccessUnderFlood: who was let in before does not wait, also when it is time
// to ask about that again.
func TestAccessUnderFlood(t *testing.T) {
	api := &apiServer{}
	server := httptest.NewServer(api)
	defer server.Close()
	now := time.Unix(1700000000, 0)
	access, err := NewAccess(&rest.Config{Host: server.URL}, func() time.Time { return now }, testr.New(t))
	if err != nil {
		t.Fatal(err)
	}
	scrape := func(want answer) {
		t.Helper()
		if got, err := access.verdict(t.Context(), "192.0.2.1", "token-of-prometheus"); err != nil || got != want {
			t.Errorf("%d, %v, want %d", got, err, want)
		}
	}
	scrape(allowed)
	for range questionsAtOnce {
		for {
			now, cancel := context.WithCancel(t.Context())
			cancel() // it waits for nothing
			if _, err := access.questions.Take(now, "192.0.2.2", 1, nil); err != nil {
				break // nobody has a turn any more
			}
		}
	}
	now = now.Add(allowedFor)
	scrape(allowed)
	api.refused = true
	now = now.Add(allowedFor)
	scrape(forbidden)
	// From now on it is one like the others.
	now = now.Add(refusedFor)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := access.verdict(ctx, "192.0.2.1", "token-of-prometheus"); err != errBusy {
		t.Errorf("a token that may not any more: %v", err)
	}
}

// TestNewTokenOnAKnownConnection: on a connection that was let in, a new token is not one of
// its address's.
func TestNewTokenOnAKnownConnection(t *testing.T) {
	sources := make(chan string, 1)
	access := &Access{now: time.Now, known: map[[sha256.Size]byte]known{}, questions: intake.Budget{Size: 2, Share: 1}, ask: func(context.Context, string) (answer, error) { return allowed, nil }}
	guarded := access.Guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sources <- r.RemoteAddr
	}))
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := intake.Server(guarded, testr.New(t))
	go server.Serve(intake.Listen(inner, 1))
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{}}
	scrape := func(token string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+inner.Addr().String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		response, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		select {
		case source := <-sources:
			return response.StatusCode, source
		default:
			return response.StatusCode, ""
		}
	}
	code, first := scrape("one")
	if code != http.StatusOK {
		t.Fatal(code)
	}
	// Its address waits for ever, with a question of which nothing is heard.
	for {
		if _, err := access.questions.Take(t.Context(), "127.0.0.1", 1, nil); err == nil {
			break
		}
	}
	if code, again := scrape("another"); code != http.StatusOK || again != first {
		t.Errorf("a new token: %d, from %q after %q", code, again, first)
	}
	client.CloseIdleConnections()
	if code, _ := scrape("a third"); code != http.StatusTooManyRequests {
		t.Errorf("a new token on a new connection: %d", code)
	}
}
