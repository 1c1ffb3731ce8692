package remote

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// finalError is an error that another try would not heal.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

func final(err error) error { return finalError{err} }

// retry tries until a try succeeds, fails for good, or nothing has been gained for as long as patience
// says. try says whether it gained something.
func (c *client) retry(ctx context.Context, patience time.Duration, try func() (gained bool, err error)) error {
	wait, until := c.options.FirstWait, time.Now().Add(patience)
	for {
		gained, err := try()
		var stop finalError
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &stop):
			return stop.error
		}
		if gained {
			wait, until = c.options.FirstWait, time.Now().Add(patience)
		}
		if !time.Now().Add(wait).Before(until) {
			return fmt.Errorf("nothing came for %s: %w", patience, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		wait = min(2*wait, c.options.MaxWait)
	}
}
