package guestagent

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"time"
)

// States of the guest's file systems, in the agent's words. The agent knows only of freezing
// that it did itself.
const (
	Frozen = "frozen"
	Thawed = "thawed"
)

// freezeTimeout is how long the guest has to write back its data and stop writing, before it
// is thawed again.
const freezeTimeout = 20 * time.Second

// FreezeStatus returns Frozen or Thawed.
func (c *Client) FreezeStatus(ctx context.Context) (string, error) {
	var said string
	if err := c.do(ctx, "guest-fsfreeze-status", nil, &said); err != nil {
		return "", err
	}
	if said != Frozen && said != Thawed {
		return "", fmt.Errorf("guest-fsfreeze-status: %w: it is neither frozen nor thawed", ErrReply)
	}
	return said, nil
}

// Freeze makes the guest write back its file systems and hold all writes. After an error that
// is no *Error the file systems may be frozen all the same, if the command was sent.
func (c *Client) Freeze(ctx context.Context) (sent bool, err error) {
	if err := c.begin(ctx); err != nil {
		return false, err
	}
	defer c.end()
	if err := c.sync(ctx); err != nil {
		return false, err
	}
	_, err = c.exchange(ctx, request{Execute: "guest-fsfreeze-freeze"}, freezeTimeout)
	return true, err
}

// Thaw undoes Freeze.
func (c *Client) Thaw(ctx context.Context) error {
	return c.do(ctx, "guest-fsfreeze-thaw", nil, nil)
}

// Shutdown makes the guest power off.
func (c *Client) Shutdown(ctx context.Context) error { return c.shutdown(ctx, "powerdown") }

// Reboot makes the guest reboot.
func (c *Client) Reboot(ctx context.Context) error { return c.shutdown(ctx, "reboot") }

func (c *Client) shutdown(ctx context.Context, mode string) error {
	return c.tell(ctx, request{"guest-shutdown", map[string]string{"mode": mode}})
}

// accountTimeout is how long the guest has to change a user: a password's hash takes time by
// design, and more of it in an emulated guest.
const accountTimeout = 30 * time.Second

// SetUserPassword sets the password of one of the guest's users.
func (c *Client) SetUserPassword(ctx context.Context, user, password string) error {
	_, err := c.ask(ctx, request{"guest-set-user-password", struct {
		User     string `json:"username"`
		Password []byte `json:"password"` // encoding/json writes base64
		Crypted  bool   `json:"crypted"`
	}{user, []byte(password), false}}, accountTimeout)
	return err
}

// SSHSetAuthorizedKeys replaces the public keys that one of the guest's users may
// log in with.
func (c *Client) SSHSetAuthorizedKeys(ctx context.Context, user string, keys []string) error {
	if keys == nil {
		keys = []string{} // an agent takes no null
	}
	_, err := c.ask(ctx, request{"guest-ssh-add-authorized-keys", struct {
		User  string   `json:"username"`
		Keys  []string `json:"keys"`
		Reset bool     `json:"reset"`
	}{user, keys, true}}, accountTimeout)
	return err
}

// Result is how a command in the guest ended.
type Result struct {
	ExitCode int    `json:"exitCode"`
	Signal   int    `json:"signal,omitempty"` // that ended it, or 0
	Stdout   []byte `json:"stdout,omitempty"` // only the beginning, as of Stderr
	Stderr   []byte `json:"stderr,omitempty"`
}

// How often a command in the guest is asked for its end, at first and at most.
const (
	firstAsk = 50 * time.Millisecond
	lastAsk  = time.Second
)

// Exec runs a program in the guest and waits for its end, or until ctx ends. After ctx's end
// the program goes on in the guest: an agent cannot end it.
func (c *Client) Exec(ctx context.Context, program string, args []string) (Result, error) {
	var started struct {
		PID int64 `json:"pid"`
	}
	err := c.do(ctx, "guest-exec", struct {
		Path    string   `json:"path"`
		Args    []string `json:"arg,omitempty"`
		Capture bool     `json:"capture-output"`
	}{program, args, true}, &started)
	if err != nil {
		return Result{}, err
	}
	for wait := firstAsk; ; wait = min(2*wait, lastAsk) {
		result, exited, err := c.execStatus(ctx, started.PID)
		if exited || err != nil {
			return result, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return Result{}, fmt.Errorf("wait for %s in the guest: %w", program, ctx.Err())
		}
	}
}

func (c *Client) execStatus(ctx context.Context, pid int64) (Result, bool, error) {
	var said struct {
		Exited   bool   `json:"exited"`
		ExitCode *int   `json:"exitcode"`
		Signal   int    `json:"signal"`
		Stdout   string `json:"out-data"`
		Stderr   string `json:"err-data"`
	}
	err := c.do(ctx, "guest-exec-status", map[string]int64{"pid": pid}, &said)
	if err != nil || !said.Exited {
		return Result{}, false, err
	}
	result := Result{Signal: said.Signal, Stdout: decoded(said.Stdout), Stderr: decoded(said.Stderr)}
	switch {
	case said.ExitCode != nil:
		result.ExitCode = *said.ExitCode
	case said.Signal == 0:
		return result, true, errors.New("guest-exec-status: the guest agent does not say how it ended")
	}
	return result, true, nil
}

// decoded decodes base64 as far as it is valid.
func decoded(text string) []byte {
	data := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, _ := base64.StdEncoding.Decode(data, []byte(text))
	return data[:n]
}
