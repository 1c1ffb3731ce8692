package migration

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// carrying returns a file that a source sends, and a target's file for it.
func carrying(t *testing.T, data []byte) (from Carried, to *Target, path string) {
	t.Helper()
	dir := t.TempDir()
	source, path := filepath.Join(dir, "source"), filepath.Join(dir, "target")
	for name, content := range map[string][]byte{source: data, path: make([]byte, len(data))} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	to = &Target{}
	channel, err := to.Take("files", path, int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { channel.Close(); to.Close() })
	return Carried{Disk: "files", Path: source, Size: int64(len(data)), Channel: channel}, to, path
}

// TestTargetHasTheFileBeforeSourceGoesOn: the target has the file when the source goes on, and not before.
func TestTargetHasTheFileBeforeSourceGoesOn(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789abcde\n"), 200_000)
	from, to, path := carrying(t, data)
	if err := to.whole(); err == nil {
		t.Error("the target takes a guest whose file has not come")
	}
	if err := (&Source{Channels: Channels{Carried: []Carried{from}}}).carry(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := to.whole(); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes have come (%v), and they differ", len(got), err)
	}
}

// TestBadCarryEndsTheMigration: a source that says less than it should, or a target that says nothing, ends the
// migration.
func TestBadCarryEndsTheMigration(t *testing.T) {
	t.Run("the source ends early", func(t *testing.T) {
		from, to, _ := carrying(t, []byte("content"))
		if _, err := from.Channel.Write([]byte("cont")); err != nil {
			t.Fatal(err)
		}
		from.Channel.Close()
		taken := to.taken[0]
		if err := <-taken.came; err == nil {
			t.Error("half a file is taken for the whole")
		} else {
			taken.came <- err
		}
		if err := to.whole(); err == nil || !strings.Contains(err.Error(), "files") {
			t.Errorf("error %v, want one that names the disk", err)
		}
	})
	t.Run("the target is silent", func(t *testing.T) {
		from, _, _ := carrying(t, []byte("content"))
		silent, other := testkit.SocketFiles(t)
		defer other.Close()
		from.Channel.Close()
		from.Channel = silent
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := from.send(ctx); err == nil || ctx.Err() == nil {
			t.Errorf("error %v", err)
		}
	})
	t.Run("the target ends", func(t *testing.T) {
		from, _, _ := carrying(t, []byte("content"))
		silent, other := testkit.SocketFiles(t)
		go func() { io.CopyN(io.Discard, other, 7); other.Close() }()
		from.Channel.Close()
		from.Channel = silent
		if err := from.send(t.Context()); err == nil || !strings.Contains(err.Error(), "does not say") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("the file is shorter than the machine says", func(t *testing.T) {
		from, _, _ := carrying(t, []byte("content"))
		from.Size++
		if err := from.send(t.Context()); err == nil {
			t.Error("it was sent")
		}
	})
}

// TestLargeFileMayTakeLonger: a large file may take longer, and none takes for ever.
func TestLargeFileMayTakeLonger(t *testing.T) {
	for size, want := range map[int64]time.Duration{-1: time.Minute, 0: time.Minute, 540 << 10: time.Minute + 4*time.Second, 64 << 20: time.Minute + 512*time.Second, 1 << 62: 30 * time.Minute} {
		if got := (Carried{Size: size}).patience(); got != want {
			t.Errorf("%d bytes: %s, want %s", size, got, want)
		}
	}
}
