package launcher

import (
	"bytes"
	"context"
	"image/png"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// pictured reads a screenshot.
func pictured(v *vm) []byte {
	v.Helper()
	conn := pictureOf(v)
	v.must(conn.SetReadDeadline(time.Now().Add(patience)))
	data, err := io.ReadAll(conn)
	v.must(err)
	return data
}

func pictureOf(v *vm) net.Conn {
	v.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := v.conn.CallForStream(ctx, control.CommandScreenshot, nil)
	v.must(err)
	v.Cleanup(func() { conn.Close() })
	return conn
}

// TestScreenshot: a screenshot shows the BIOS's words, again and again, also of a guest that stands still. Nothing
// is left of it in the launcher or in QEMU.
func TestScreenshot(t *testing.T) { // not beside others, whose files would be counted
	v := launch(t)
	v.request.Machine.Graphics = &qemuargs.Graphics{PCI: &qemuargs.PCIAddress{Bus: "pcie.0", Slot: 1},
		Socket: v.path("vnc.sock")}
	ask := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, err := v.conn.CallForStream(ctx, control.CommandScreenshot, nil)
		return err
	}
	if err := ask(); err == nil || !strings.Contains(err.Error(), "no graphics card") {
		t.Errorf("before there is a guest: %v", err)
	}
	v.boot()
	pictured(v)
	before := openFiles(t)
	for range 5 {
		data := pictured(v)
		image, err := png.Decode(bytes.NewReader(data))
		v.must(err)
		first, seen := image.At(0, 0), map[any]bool{}
		for x := range image.Bounds().Dx() {
			for y := range image.Bounds().Dy() {
				seen[image.At(x, y)] = true
			}
		}
		if size := image.Bounds().Size(); size.X < 640 || size.Y < 400 || len(seen) < 2 {
			t.Errorf("a picture of %v, all of it %v", size, first)
		}
	}
	if now := openFiles(t); now > before+6 { // the test's ends of the sockets, and one beside
		t.Errorf("%d files are open, and were %d", now, before)
	}
	v.must(v.call(control.CommandMovePointer, nil, nil))
	v.must(v.call(control.CommandPause, nil, nil))
	v.expectState(control.StatePaused)
	if data := pictured(v); !bytes.HasPrefix(data, []byte("\x89PNG")) {
		t.Errorf("the picture of a paused guest begins with %q", data[:min(len(data), 8)])
	}
}
