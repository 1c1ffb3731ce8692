package qmp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// screenSet is the descriptor set of pictures, far above those of disks, which
// are numbered by their descriptors.
const screenSet = 1 << 20

// removeTimeout bounds the end of a picture, whose own time may be over.
const removeTimeout = 10 * time.Second

// Screendump writes a PNG of the first screen to a file that is open for writing
// only, and which it empties first. QEMU has PNG since 7.1. One may be under way
// at a time; what one left that nobody waited for is gone with the next.
func (c *Client) Screendump(ctx context.Context, output *os.File) (err error) {
	set := struct {
		Set int `json:"fdset-id"`
	}{screenSet}
	if err := c.Execute(ctx, "remove-fd", set, nil); errors.Is(err, ErrClosed) || ctx.Err() != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
		defer cancel()
		if removed := c.Execute(ctx, "remove-fd", set, nil); err == nil {
			err = removed
		}
	}()
	if err := c.Execute(ctx, "add-fd", set, nil, output); err != nil {
		return err
	}
	return c.Execute(ctx, "screendump", struct {
		Filename string `json:"filename"`
		Format   string `json:"format"`
	}{fmt.Sprintf("/dev/fdset/%d", screenSet), "png"}, nil)
}

// MovePointer moves the mouse by so many units to the right.
func (c *Client) MovePointer(ctx context.Context, by int) error {
	type move struct {
		Axis  string `json:"axis"`
		Value int    `json:"value"`
	}
	type event struct {
		Type string `json:"type"`
		Data move   `json:"data"`
	}
	return c.Execute(ctx, "input-send-event", struct {
		Events []event `json:"events"`
	}{[]event{{"rel", move{"x", by}}}}, nil)
}
