package migration

import (
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// TestClosedSocketIsHungUp: a socket is hung up once its other end is closed, also if something is left to read.
func TestClosedSocketIsHungUp(t *testing.T) {
	here, there := testkit.SocketFiles(t)
	if hungUp(here) {
		t.Error("hung up from the start")
	}
	if _, err := there.WriteString("x"); err != nil || hungUp(here) {
		t.Errorf("hung up when something comes (%v)", err)
	}
	there.Close()
	if !hungUp(here) {
		t.Error("not hung up after the end")
	}
}
