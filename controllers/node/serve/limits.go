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

// Bounds of what virt-handler does for virt-api at once, in all and for one VMI: a
// launcher that does not answer holds up its own VMI's questions and no other's.
const (
	maxCalls      = 512
	maxVMICalls   = 8
	maxStreams    = 512
	maxVMIStreams = 8 // a console, a screen, those that they take over from, and screenshots
)

// limitPatience is how long room is waited for that another VMI's stream gives up.
const limitPatience = 2 * time.Second

// vmiLimits are the bounds. The VMI that has most gives way where all is used up.
type vmiLimits struct{ calls, streams intake.Budget }

func newVMILimits() *vmiLimits {
	return &vmiLimits{calls: intake.Budget{Size: maxCalls, Share: maxVMICalls}, streams: intake.Budget{Size: maxStreams, Share: maxVMIStreams}}
}

// call takes a place for a question to a launcher, which is given up when the
// context of the request that it returns ends.
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

// limited has a question to a launcher be one of its VMI's.
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
