package diskimage

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCopyOfATemplateFillsUpZeros: the copy of a template that leaves out its zeros has them, and takes no room for zeros.
func TestCopyOfATemplateFillsUpZeros(t *testing.T) {
	const size, written = 64 << 20, 128 << 10
	from, path := filepath.Join(t.TempDir(), "template"), filepath.Join(t.TempDir(), "copy")
	template := append(append(bytes.Repeat([]byte("v"), written), make([]byte, 1<<20)...), 'e')
	if err := os.WriteFile(from, template, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Copy(from, path, size); err != nil {
		t.Fatal(err)
	}
	copied, err := os.ReadFile(path)
	if err != nil || len(copied) != size || !bytes.Equal(copied[:len(template)], template) || len(bytes.Trim(copied[len(template):], "\x00")) > 0 {
		t.Errorf("the copy has %d bytes (%v), or others", len(copied), err)
	}
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil || stat.Blocks*512 > 4*written {
		t.Errorf("the copy takes %d bytes (%v)", stat.Blocks*512, err)
	}
	for _, wrong := range []int{0, size + 1} {
		if err := os.Truncate(from, int64(wrong)); err != nil {
			t.Fatal(err)
		}
		if err := Copy(from, path, size); err == nil {
			t.Errorf("a template of %d bytes is copied", wrong)
		}
	}
}
