package dhcp

import (
	"log/slog"
	"time"
)

// How often the guest can make the server log: at once logBurst lines, and then one
// per logInterval.
const (
	logBurst    = 20
	logInterval = 30 * time.Second
)

// limitedLog writes a bounded number of lines and counts what it leaves out. It is
// for one goroutine.
type limitedLog struct {
	log     *slog.Logger
	now     func() time.Time
	spent   int
	since   time.Time
	dropped int
}

func (l *limitedLog) info(text string, attrs ...any) {
	if l.allow() {
		l.log.Info(text, append(attrs, l.left()...)...)
	}
}

func (l *limitedLog) warn(text string, err error) {
	if l.allow() {
		l.log.Warn(text, append([]any{"err", err}, l.left()...)...)
	}
}

func (l *limitedLog) allow() bool {
	now := l.now()
	if l.spent == 0 {
		l.since = now
	}
	regained := int(now.Sub(l.since) / logInterval)
	l.spent = max(0, l.spent-regained)
	l.since = l.since.Add(time.Duration(regained) * logInterval)
	if l.spent >= logBurst {
		l.dropped++
		return false
	}
	l.spent++
	return true
}

func (l *limitedLog) left() []any {
	if l.dropped == 0 {
		return nil
	}
	n := l.dropped
	l.dropped = 0
	return []any{"linesLeftOut", n}
}
