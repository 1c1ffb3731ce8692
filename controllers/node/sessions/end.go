package sessions

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// endTimeout bounds each of two questions to a launcher whose guest is to end.
const endTimeout = 5 * time.Second

// EndAtOnce asks the launcher to end its guest without a grace period. A launcher that hangs up has ended.
func (s *Session) EndAtOnce(ctx context.Context) error {
	ask := func(command string, arguments any) error {
		ctx, cancel := context.WithTimeout(ctx, endTimeout)
		defer cancel()
		if err := s.Call(ctx, command, arguments, nil); err != nil && !errors.Is(err, control.ErrClosed) {
			return fmt.Errorf("ask for %s: %w", command, err)
		}
		return nil
	}
	return errors.Join(ask(control.CommandGrace, control.GraceRequest{}), ask(control.CommandShutdown, nil))
}
