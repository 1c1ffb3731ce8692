// Package recorder makes events that the API server takes.
package recorder

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
)

// noteLimit is what the API server lets a note be, in bytes (events.k8s.io/v1).
const noteLimit = 1024

// bounded cuts notes off.
type bounded struct{ events.EventRecorder }

// Bounded returns a recorder whose notes fit, whatever the object's spec, the
// guest or an error brings into them: the API server refuses longer ones, and
// an event that is refused is lost.
func Bounded(recorder events.EventRecorder) events.EventRecorder { return bounded{recorder} }

func (b bounded) Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any) {
	b.EventRecorder.Eventf(regarding, related, eventType, reason, action, "%s", fit(fmt.Sprintf(note, args...)))
}

func fit(note string) string {
	const more = "…"
	if len(note) <= noteLimit {
		return note
	}
	return strings.ToValidUTF8(note[:noteLimit-len(more)], "") + more
}
