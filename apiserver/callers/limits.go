package callers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubeqemu/kubeqemu/internal/intake"
)

// Kind bounds the requests of one kind at once: in all, of a namespace, and of a user in all
// namespaces. A tenant can make users (service accounts) at will, but no namespaces. When all
// places are taken, the namespace with the most of them gives way.
type Kind struct {
	// Plural names requests of this kind in errors, such as "consoles and screens".
	Plural string
	// Namespaces has the places by Holder, and Users has them by user.
	Namespaces, Users intake.Budget
}

// Holder is the key in a budget of a request of a user in a namespace: the namespace. A request at
// the cluster scope, without a namespace, counts for the namespace of the user's service account,
// or else for the user. No namespace has the name of such a user's key.
func Holder(who User, namespace string) string {
	if namespace != "" {
		return namespace
	}
	if account, ok := strings.CutPrefix(who.Name, "system:serviceaccount:"); ok {
		if namespace, _, ok := strings.Cut(account, ":"); ok {
			return namespace
		}
	}
	return "user " + who.Name
}

// named is a Holder in an error's text.
func named(holder string) string {
	if user, ok := strings.CutPrefix(holder, "user "); ok {
		return fmt.Sprintf("user %q", user)
	}
	return fmt.Sprintf("namespace %q", holder)
}

// NewKind makes a Kind.
func NewKind(plural string, all, namespace, user int64) Kind {
	return Kind{plural, intake.Budget{Size: all, Share: namespace}, intake.Budget{Size: math.MaxInt64, Share: user}}
}

// roomPatience is how long a request waits for a place that another request gives up.
const roomPatience = 2 * time.Second

// ErrGaveWay says that a request had to give its place to another.
var ErrGaveWay = errors.New("virt-api ended it: virt-api has no more room, and its namespace had the most requests of this kind")

// Take takes a place for a request of a user in a namespace; the namespace is empty for a request
// at the cluster scope. The context ends, because of ErrGaveWay, when another namespace needs the
// place. The caller calls release when the request has left nothing behind. The error is a
// TooManyRequests.
func (k *Kind) Take(parent context.Context, who User, namespace string) (ctx context.Context, release func(), err error) {
	ctx, cancel := context.WithCancelCause(parent)
	patience, enough := context.WithTimeout(ctx, roomPatience)
	defer enough()
	user, err := k.Users.Take(patience, who.Name, 1, nil)
	if err != nil {
		cancel(err)
		return nil, nil, k.full(fmt.Sprintf("user %q", who.Name), "user", k.Users.Share, err)
	}
	holder := Holder(who, namespace)
	place, err := k.Namespaces.Take(patience, holder, 1, func() { cancel(ErrGaveWay) })
	if err != nil {
		user.Release()
		cancel(err)
		return nil, nil, k.full(named(holder), "namespace", k.Namespaces.Share, err)
	}
	return ctx, func() { cancel(nil); place.Release(); user.Release() }, nil
}

// full returns a 429 that says whose limit was reached.
func (k *Kind) full(whose, one string, share int64, err error) error {
	var all *intake.ShareError
	if errors.As(err, &all) {
		return TooMany(fmt.Sprintf("%s has %d %s at once, which is as many as one %s may", whose, share, k.Plural, one))
	}
	return TooMany(fmt.Sprintf("virt-api has %d %s at once, which is as many as it bears, and no namespace has more of them than %s", k.Namespaces.Size, k.Plural, whose))
}

// TooMany is a 429.
func TooMany(text string) error { return apierrors.NewTooManyRequests(text, 5) }

// GaveWay returns err, or a 429 if the call failed because it had to give way.
func GaveWay(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), ErrGaveWay) {
		return TooMany(ErrGaveWay.Error())
	}
	return err
}

// BodyError words why intake.Bodies has not read a body under a Holder.
func BodyError(err error, holder string) error {
	var long *intake.TooLongError
	var share *intake.ShareError
	switch {
	case errors.As(err, &long):
		return apierrors.NewRequestEntityTooLargeError(err.Error())
	case errors.As(err, &share):
		return TooMany(fmt.Sprintf("%s has %d bytes on their way to virt-api, which is as many as one namespace may", named(holder), share.Share))
	case errors.Is(err, intake.ErrFull), errors.Is(err, intake.ErrGaveWay):
		return TooMany(fmt.Sprintf("%v: %s has as many bytes on their way to virt-api as any other", err, named(holder)))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("Can not read Request body, error: %v", err))
}
