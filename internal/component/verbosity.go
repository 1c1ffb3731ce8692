package component

import (
	"log/slog"
	"sync"
)

const (
	// verbose is the verbosity of --verbose.
	verbose = 4
	// maxVerbosity is below 8: from V(8) on, client-go logs the bodies of requests, and with them
	// Secrets (client-go/rest/request.go, logBody).
	maxVerbosity = 7
)

// Verbosity is how much a component logs: the lines of V(n) up to its value.
type Verbosity struct {
	level slog.LevelVar
	least int

	mu  sync.Mutex
	now int
	log *slog.Logger
}

// newVerbosity returns a Verbosity that is never less than least.
func newVerbosity(least int) *Verbosity {
	v := &Verbosity{least: least, now: least}
	v.level.Set(level(least))
	return v
}

// level is slog's level of V(n): logr's levels count down from Info.
func level(n int) slog.Level { return slog.LevelInfo - slog.Level(n) }

// Set changes the verbosity, and says so in the log.
func (v *Verbosity) Set(n int) {
	n = max(v.least, min(n, maxVerbosity))
	v.mu.Lock()
	defer v.mu.Unlock()
	if n == v.now {
		return
	}
	v.log.Info("the log's verbosity changes", "from", v.now, "to", n)
	v.now = n
	v.level.Set(level(n))
}
