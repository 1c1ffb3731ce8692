package images

import (
	"context"
	"fmt"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
)

// helperTimeout is how long a credential helper may take: it may ask a person for a passphrase.
const helperTimeout = 5 * time.Minute

// impatient is a keychain whose answers are waited for as long as the context lives, and no
// longer than helperTimeout. Docker's configuration may name a program that knows the credentials,
// and the keychain waits for that program without end.
type impatient struct{ authn.Keychain }

// ResolveContext returns the credentials for a registry. A program that does not answer goes on,
// and with it one goroutine: the program has to end by itself.
func (k impatient) ResolveContext(ctx context.Context, registry authn.Resource) (authn.Authenticator, error) {
	type answer struct {
		credentials authn.Authenticator
		err         error
	}
	answered := make(chan answer, 1)
	go func() {
		credentials, err := authn.Resolve(ctx, k.Keychain, registry)
		answered <- answer{credentials, err}
	}()
	patience := time.NewTimer(helperTimeout)
	defer patience.Stop()
	select {
	case a := <-answered:
		return a.credentials, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-patience.C:
		return nil, fmt.Errorf("ask for the credentials of %s: docker's credential helper has not answered for %s: perhaps it waits for a passphrase", registry.RegistryStr(), helperTimeout)
	}
}
