package qmp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// screenSet is the fdset of pictures. Its number is far above those of the disks' fdsets,
// which are numbered by their descriptors.
const screenSet = 1 << 20

// removeTimeout bounds the removal of the fdset, also when the picture's own time is over.
const removeTimeout = 10 * time.Second

// Screendump writes a PNG of the first screen to a file that is open for writing only, and
// empties the file first. QEMU has PNG since 7.1. One Screendump may be under way at a time.
// It removes the fdset that an earlier Screendump may have left.
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
