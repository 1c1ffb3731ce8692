package callers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubeqemu/kubeqemu/internal/intake"
)

// Kind bounds the requests of one kind at once: in all, of a namespace, and of a user in all
// namespaces. A tenant can make users (service accounts) at will, but no namespaces. When all
// places are taken, the namespace with the most of them gives way.
type Kind struct {
	// What is the plural of the kind, for errors.
	What string
	// Namespaces and Users are what is taken, by the one and by the other.
	Namespaces, Users intake.Budget
}

// NewKind makes a Kind.
func NewKind(what string, all, namespace, user int64) Kind {
	return Kind{what, intake.Budget{Size: all, Share: namespace}, intake.Budget{Size: math.MaxInt64, Share: user}}
}

// roomPatience is how long a call waits for a place that another call gives up.
const roomPatience = 2 * time.Second

// ErrGaveWay says that a request had to give its place to another.
var ErrGaveWay = errors.New("it was ended because virt-api has no more room, and its namespace had most of what there is")

// Take takes a place for a request of a user in a namespace; the namespace is empty for a request
// at the cluster scope. The context ends, because of ErrGaveWay, when another namespace needs the
// place. The caller calls release when the request has left nothing behind.
func (k *Kind) Take(parent context.Context, who User, namespace string) (ctx context.Context, release func(), err error) {
	ctx, cancel := context.WithCancelCause(parent)
	patience, enough := context.WithTimeout(ctx, roomPatience)
	defer enough()
	user, err := k.Users.Take(patience, who.Name, 1, nil)
	if err != nil {
		cancel(err)
		return nil, nil, k.full(fmt.Sprintf("user %q", who.Name), "user", k.Users.Share, err)
	}
	place, err := k.Namespaces.Take(patience, namespace, 1, func() { cancel(ErrGaveWay) })
	if err != nil {
		user.Release()
		cancel(err)
		return nil, nil, k.full(fmt.Sprintf("namespace %q", namespace), "namespace", k.Namespaces.Share, err)
	}
	return ctx, func() { cancel(nil); place.Release(); user.Release() }, nil
}

// full returns a 429 that says whose limit was reached.
func (k *Kind) full(whose, one string, share int64, err error) error {
	var all *intake.ShareError
	if errors.As(err, &all) {
		return TooMany(fmt.Sprintf("%s has %d %s at once, which is as many as one %s may", whose, share, k.What, one))
	}
	return TooMany(fmt.Sprintf("virt-api has %d %s at once, which is as many as it bears, and no namespace has more of them than %s", k.Namespaces.Size, k.What, whose))
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

// BodyError words why a body of a request in a namespace was not read by intake.Bodies.
func BodyError(err error, namespace string) error {
	var long *intake.TooLongError
	switch {
	case errors.As(err, &long):
		return apierrors.NewRequestEntityTooLargeError(err.Error())
	case errors.Is(err, intake.ErrFull), errors.Is(err, intake.ErrGaveWay):
		return TooMany(fmt.Sprintf("%v: namespace %q has as many bytes on their way to virt-api as any other", err, namespace))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("Can not read Request body, error: %v", err))
}
