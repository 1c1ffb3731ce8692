package images

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// keychain answers when it is told to.
type keychain chan error

func (k keychain) Resolve(authn.Resource) (authn.Authenticator, error) {
	return authn.Anonymous, <-k
}

// TestWaitForCredentialHelperEnds: the wait for a credential helper ends with its answer, with the context,
// or after five minutes.
func TestWaitForCredentialHelperEnds(t *testing.T) {
	registry, err := name.NewRegistry("registry.example")
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		helper := make(keychain, 1)
		ask := func(ctx context.Context) (authn.Authenticator, error) {
			return impatient{helper}.ResolveContext(ctx, registry)
		}
		helper <- nil
		if got, err := ask(t.Context()); err != nil || got != authn.Anonymous {
			t.Errorf("got %v, %v", got, err)
		}
		broken := errors.New("broken")
		helper <- broken
		if _, err := ask(t.Context()); !errors.Is(err, broken) {
			t.Errorf("got %v, want the helper's error", err)
		}
		if _, err := ask(t.Context()); err == nil || !strings.Contains(err.Error(), "registry.example: docker's credential helper has not answered for 5m0s: perhaps") {
			t.Errorf("got %v", err)
		}
		ctx, stop := context.WithCancelCause(t.Context())
		stop(broken)
		if _, err := ask(ctx); !errors.Is(err, broken) {
			t.Errorf("got %v, want the context's cause", err)
		}
		close(helper) // ends the goroutines
	})
}
