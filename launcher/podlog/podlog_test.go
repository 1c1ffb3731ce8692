package podlog

import (
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"
)

// TestUnreadLogHoldsUpNobody: a log that nobody reads holds up nobody.
func TestUnreadLogHoldsUpNobody(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	w := NewWriter(writer)
	log := slog.New(slog.NewJSONHandler(w, nil))
	log.Info("first")
	// A pipe holds 64 KiB (pipe(7)).
	start := time.Now()
	for range 100 {
		log.Info(strings.Repeat("x", 10<<10))
	}
	w.Close()
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("1 MB of log and the end took %s", took)
	}
	writer.Close() // ends the write that waits
	text, err := io.ReadAll(reader)
	if err != nil || !strings.Contains(string(text), `"msg":"first"`) {
		t.Errorf("read what was logged: %v, %.200q", err, text)
	}
}
