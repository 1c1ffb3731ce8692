package listing

import (
	"errors"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// pause is how long a namespace is not listed after a failure.
	pause = 5 * time.Second
	// maxFailures bounds the namespaces that are remembered.
	maxFailures = 1024
)

// failures are the namespaces that could not be read. A namespace that cannot be read holds the
// workers that all namespaces share. So after its failure one caller at a time tries again, and
// the others get the last error at once.
type failures struct {
	clock clock.PassiveClock

	mu  sync.Mutex
	all map[string]*failure
}

type failure struct {
	err    error
	until  time.Time
	trying bool
}

// begin returns the error of a reading that failed a short time ago, or of one that is tried again.
func (f *failures) begin(namespace string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	last := f.all[namespace]
	if last == nil {
		return nil
	}
	if last.trying || f.clock.Now().Before(last.until) {
		return last.err
	}
	last.trying = true
	return nil
}

// end notes how a reading went. An error that says nothing of the namespace is not remembered.
func (f *failures) end(namespace string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch last := f.all[namespace]; {
	case err == nil:
		delete(f.all, namespace)
	case !errors.Is(err, ErrTooMany) && !errors.Is(err, ErrSlow):
		if last != nil {
			last.trying = false
		}
	default:
		if f.all == nil {
			f.all = map[string]*failure{}
		}
		if last == nil && len(f.all) >= maxFailures {
			f.forget()
		}
		f.all[namespace] = &failure{err: err, until: f.clock.Now().Add(pause)}
	}
}

// forget makes room: of all failures, the oldest goes.
func (f *failures) forget() {
	var oldest string
	for namespace, failure := range f.all {
		if oldest == "" || failure.until.Before(f.all[oldest].until) {
			oldest = namespace
		}
	}
	delete(f.all, oldest)
}
