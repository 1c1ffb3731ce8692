package testkit

import (
	"os"
	"testing"
)

// ShortFolder returns a new folder whose path does not have the test's name, and removes it with the test. The path of a
// socket has at most 107 bytes (unix(7)).
func ShortFolder(t testing.TB) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "t")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	return folder
}
