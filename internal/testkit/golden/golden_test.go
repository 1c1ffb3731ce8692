package golden

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// recorder is a test that takes down its failure.
type recorder struct {
	testing.TB
	failure string
}

func (r *recorder) Errorf(format string, args ...any) { r.failure = fmt.Sprintf(format, args...) }
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); panic(r) }

// failure is what Compare says.
func failure(t *testing.T, path, got string) string {
	r := &recorder{TB: t}
	func() {
		defer func() { recover() }()
		Compare(r, path, got)
	}()
	return r.failure
}

func TestCompare(t *testing.T) {
	t.Cleanup(func() { *update = false })
	path := filepath.Join(t.TempDir(), "made", "a.golden")
	const command = "go test ./internal/testkit/golden -update"
	if got := failure(t, path, "one\n"); !strings.Contains(got, command) {
		t.Errorf("without a file: %q", got)
	}
	*update = true
	if got := failure(t, path, "one\n"); got != "" {
		t.Errorf("-update says %q", got)
	}
	*update = false
	if got := failure(t, path, "one\n"); got != "" {
		t.Errorf("of the same text: %q", got)
	}
	if got := failure(t, path, "two\n"); !strings.Contains(got, "one") || !strings.Contains(got, "two") || !strings.Contains(got, command) {
		t.Errorf("of another text: %q", got)
	}
}

func TestStale(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"used.golden", "stale.golden", "other.txt"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	Compare(t, folder+"/./used.golden", "x")
	if got, want := stale([]string{folder + "/*.golden"}), []string{folder + "/stale.golden"}; !slices.Equal(got, want) {
		t.Errorf("stale: %q, not %q", got, want)
	}
}
