package fill

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/importer"
)

// maxReason bounds what is told of a new beginning, in bytes.
const maxReason = 1 << 10

// Meter is how far an import is. It tells nothing that the next process could not go on from: what it
// tells has been saved before.
type Meter struct {
	mu sync.Mutex
	// now is how far the import is, and told what may be told.
	now, told importer.Progress
}

// newMeter makes the meter of a process that began then.
func newMeter(began time.Time) *Meter {
	start := importer.Progress{Since: began}
	return &Meter{now: start, told: start}
}

// Progress is what may be told.
func (m *Meter) Progress() importer.Progress {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.told
}

// ServeHTTP answers with the progress.
func (m *Meter) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(m.Progress())
}

// set says how much is done. It never takes back what was said before: a process that goes on reads
// some of it again.
func (m *Meter) set(done, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Total = max(total, 0)
	if m.now.Total > 0 {
		// All is done when finish says so.
		done = min(done, m.now.Total-1)
	}
	m.now.Done = max(m.now.Done, done)
}

// current is how far the import is, whether that may be told or not.
func (m *Meter) current() importer.Progress {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// tell says that a progress has been saved.
func (m *Meter) tell(p importer.Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told = p
}

// resume takes over what another process told.
func (m *Meter) resume(done, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Done, m.now.Total = done, total
	m.told = m.now
}

// anew begins at nothing.
func (m *Meter) anew(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Done, m.now.Total = 0, 0
	m.now.Anew++
	m.now.AnewReason = strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "")
}

// finish says that all is done.
func (m *Meter) finish() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Total = max(m.now.Total, m.now.Done, 1)
	m.now.Done = m.now.Total
	m.told = m.now
}
