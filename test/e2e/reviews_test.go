package e2e

import (
	"crypto/tls"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"
)

// TestHalfSentReviews: who reaches virt-api's port, from the API server's own address
// too, can send it as much as they like that is never whole. It goes on, and so do
// the reviews of what users apply.
func TestHalfSentReviews(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	targets, err := metricsTargets()
	if err != nil {
		t.Fatal(err)
	}
	restarts := componentRestarts(t)
	const length = 5 << 20
	half := strings.Repeat(" ", length*9/10)
	for range 56 {
		conn, err := tls.Dial("tcp", targets["virt-api"], &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		// It may be ended at any time.
		_, _ = fmt.Fprintf(conn, "POST /virtualmachineinstances-validate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", length, half)
	}
	for range 5 {
		// The API server itself refuses the VMI if the review takes longer than the webhook's timeout.
		kubectl(t, "-n", ns, "apply", "--dry-run=server", "-f", "../../config/samples/vmi-tiny.yaml")
	}
	if now := componentRestarts(t); !maps.Equal(now, restarts) {
		t.Errorf("restarts were %v, are %v", restarts, now)
	}
}
