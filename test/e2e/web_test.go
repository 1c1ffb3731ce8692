package e2e

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"
)

// TestWeb looks at virt-api's page with a browser: test/web, which is a module of its own.
func TestWeb(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-v", "-timeout=14m", ".")
	cmd.Dir = "../web"
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("test the page: %v", err)
	}
}
