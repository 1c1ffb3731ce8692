package atomicfile

import (
	"os"
	"path/filepath"
	"testing"
)

// TestWriteReplacesTheWholeFile: a file is replaced as a whole, and a write that fails changes nothing and leaves
// nothing behind.
func TestWriteReplacesTheWholeFile(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "file")
	for i, text := range []string{"a long text", "short", "", "synced"} {
		write := []func(string, []byte) error{Write, WriteSynced}[i%2]
		if err := write(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		info, statErr := os.Stat(path)
		if err != nil || statErr != nil || string(got) != text || info.Mode() != 0o600 {
			t.Errorf("the file holds %q: %v, %v", got, err, statErr)
		}
	}
	taken := filepath.Join(folder, "folder")
	if err := os.Mkdir(taken, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(taken, []byte("text")); err == nil {
		t.Error("a file took a folder's place")
	}
	if entries, err := os.ReadDir(folder); err != nil || len(entries) != 2 {
		t.Errorf("the folder holds %v: %v", entries, err)
	}
	if err := Write(filepath.Join(folder, "none", "file"), nil); err == nil {
		t.Error("a file was written into a folder that is not there")
	}
}
