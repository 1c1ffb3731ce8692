package qmp

import (
	"context"
	"fmt"
	"os"
)

// Screendump writes a PNG of the first screen to a file that is open for writing
// only, and which it empties first. QEMU has PNG since 7.1.
func (c *Client) Screendump(ctx context.Context, output *os.File) (err error) {
	var added struct {
		Set int `json:"fdset-id"`
	}
	if err := c.Execute(ctx, "add-fd", struct{}{}, &added, output); err != nil {
		return err
	}
	defer func() {
		removed := c.Execute(ctx, "remove-fd", struct {
			Set int `json:"fdset-id"`
		}{added.Set}, nil)
		if err == nil {
			err = removed
		}
	}()
	return c.Execute(ctx, "screendump", struct {
		Filename string `json:"filename"`
		Format   string `json:"format"`
	}{fmt.Sprintf("/dev/fdset/%d", added.Set), "png"}, nil)
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
