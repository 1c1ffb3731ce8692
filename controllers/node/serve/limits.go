package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/intake"
)

// Bounds of virt-api's concurrent requests to virt-handler, for all VMIs together and for one
// VMI. A launcher that does not answer so holds up questions to its own VMI only.
const (
	maxCalls      = 512
	maxVMICalls   = 8
	maxStreams    = 512
	maxVMIStreams = 8 // a console, a screen, the two they take over from, and screenshots
)

// limitPatience is how long a request waits for room that another VMI has to give up.
const limitPatience = 2 * time.Second

// vmiLimits are the bounds. When a budget is used up, the VMI that holds most of it gives way.
type vmiLimits struct{ calls, streams intake.Budget }

func newVMILimits() *vmiLimits {
	return &vmiLimits{calls: intake.Budget{Size: maxCalls, Share: maxVMICalls}, streams: intake.Budget{Size: maxStreams, Share: maxVMIStreams}}
}

// call takes a place for a question to a launcher. The context of the returned request ends
// when the question has to give way to another VMI's.
func (l *vmiLimits) call(r *http.Request) (limited *http.Request, release func(), err error) {
	ctx, cancel := context.WithCancel(r.Context())
	place, err := take(&l.calls, r, "questions to its virt-launcher", cancel)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	return r.WithContext(ctx), func() { cancel(); place() }, nil
}

// stream takes a place for a stream.
func (l *vmiLimits) stream(r *http.Request, guest net.Conn) (release func(), err error) {
	return take(&l.streams, r, "streams", func() { guest.Close() })
}

func take(of *intake.Budget, r *http.Request, what string, giveWay func()) (release func(), err error) {
	ctx, cancel := context.WithTimeout(r.Context(), limitPatience)
	defer cancel()
	vmi := r.PathValue("namespace") + "/" + r.PathValue("name")
	place, err := of.Take(ctx, vmi, 1, giveWay)
	var share *intake.ShareError
	switch {
	case errors.As(err, &share):
		return nil, fmt.Errorf("%w: VMI %s has %d %s at once, which is as many as one may", errTooMany, vmi, share.Share, what)
	case err != nil:
		return nil, fmt.Errorf("%w: the VMIs of this node have %d %s at once", errTooMany, of.Size, what)
	}
	return place.Release, nil
}

// limited counts a request as a question to the launcher of its VMI.
func (s *Server) limited(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r, release, err := s.limits.call(r)
		if err != nil {
			fail(w, err)
			return
		}
		defer release()
		next(w, r)
	}
}
