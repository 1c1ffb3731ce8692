package kit

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
)

// noteLimit is the longest note of an event that the API server takes, in bytes
// (events.k8s.io/v1).
const noteLimit = 1024

// boundedEvents is the recorder of BoundedEvents.
type boundedEvents struct{ events.EventRecorder }

// BoundedEvents returns a recorder that cuts long notes off. An object's spec, a
// guest or an error can bring any length into a note. The API server refuses an
// event whose note is too long, and the event is lost.
func BoundedEvents(recorder events.EventRecorder) events.EventRecorder {
	return boundedEvents{recorder}
}

func (b boundedEvents) Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any) {
	b.EventRecorder.Eventf(regarding, related, eventType, reason, action, "%s", fit(fmt.Sprintf(note, args...)))
}

func fit(note string) string {
	const more = "…"
	if len(note) <= noteLimit {
		return note
	}
	return strings.ToValidUTF8(note[:noteLimit-len(more)], "") + more
}
