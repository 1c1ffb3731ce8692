package testkit

import (
	"io"
	"testing"
)

func TestSocketPair(t *testing.T) {
	a, b := SocketPair(t)
	if _, err := io.WriteString(a, "x"); err != nil {
		t.Fatal(err)
	}
	a.Close()
	if got, err := io.ReadAll(b); err != nil || string(got) != "x" {
		t.Errorf("read %q, %v", got, err)
	}
}
