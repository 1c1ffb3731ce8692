package monitoring

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"
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

func TestAccess(t *testing.T) {
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

	// A flood of tokens neither reaches the API server nor stays in memory.
	before := len(api.asked)
	busy := 0
	for i := range 1000 {
		if _, err := access.verdict(t.Context(), fmt.Sprint("guess-", i)); err == errBusy {
			busy++
		}
	}
	if asked := len(api.asked) - before; asked > questionsBurst || busy < 1000-questionsBurst || len(access.known) > maxKnown {
		t.Errorf("of 1000 forged tokens %d reached the API server; %d are remembered", asked, len(access.known))
	}
	get("Bearer guess-again", 429)
	for range 10 * maxKnown {
		now = now.Add(time.Second)
		access.verdict(t.Context(), fmt.Sprint("guess-", now.Unix()))
	}
	if len(access.known) > maxKnown {
		t.Errorf("%d tokens are remembered", len(access.known))
	}
}

// TestAccessUnderFlood: whoever shows made-up tokens does not keep out a scraper
// that was let in before, also when it is time to ask about that again.
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
		if got, err := access.verdict(t.Context(), "token-of-prometheus"); err != nil || got != want {
			t.Errorf("%s after the first scrape: %d, %v, want %d", now.Sub(time.Unix(1700000000, 0)), got, err, want)
		}
	}
	scrape(allowed)
	guess := 0
	for range 40 {
		now = now.Add(15 * time.Second)
		for range 2 * maxKnown {
			guess++
			_, _ = access.verdict(t.Context(), fmt.Sprint("guess-", guess))
		}
		scrape(allowed)
		if len(access.known) > maxKnown {
			t.Fatalf("%d tokens are remembered", len(access.known))
		}
	}
	api.refused = true
	now = now.Add(allowedFor)
	scrape(forbidden)
	// From now on it is one like the others.
	now = now.Add(refusedFor)
	for range 2 * questionsBurst {
		guess++
		_, _ = access.verdict(t.Context(), fmt.Sprint("guess-", guess))
	}
	if _, err := access.verdict(t.Context(), "token-of-prometheus"); err != errBusy {
		t.Errorf("a token that may not any more: %v", err)
	}
}
