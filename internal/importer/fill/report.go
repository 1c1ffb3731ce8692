package fill

import (
	"context"
	"log/slog"
	"time"
)

// Report logs the progress, if there is any, again and again until ctx ends.
func Report(ctx context.Context, meter *Meter, log *slog.Logger, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	last, since := meter.current().Done, time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			p := meter.current()
			if p.Done == 0 && p.Total == 0 { // it waits for its source
				last, since = 0, now
				continue
			}
			attributes := []any{"done", p.Done, "total", p.Total, "bytesPerSecond", int64(float64(p.Done-last) / now.Sub(since).Seconds())}
			if percent, known := p.Percent(); known {
				attributes = append(attributes, "percent", int(percent))
			}
			log.Info("importing", attributes...)
			last, since = p.Done, now
		}
	}
}
