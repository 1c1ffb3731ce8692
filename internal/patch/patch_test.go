package patch

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestOperationsAreBounded: virt-controller compares objects as large as the API
// server takes them, and whose lists a tenant has chosen.
func TestOperationsAreBounded(t *testing.T) {
	values := strings.TrimSuffix(strings.Repeat(`"v",`, 300_000), ",")
	var disks []string
	for i := range 256 {
		disks = append(disks, fmt.Sprintf(`{"name":"d%d","pad":%q}`, i, strings.Repeat("x", 1000)))
	}
	list := strings.Join(disks, ",")
	raw := []byte(`{"spec":{"affinity":[` + values + `],"disks":[` + list + `]}}`)
	after := []byte(`{"spec":{"affinity":[` + values + `],"disks":[` + strings.ReplaceAll(list, `"pad"`, `"bus":"sata","pad"`) + `,{"name":"more"}],"more":[` + values + `]}}`)
	runtime.LockOSThread() // so that the thread's time is this test's
	defer runtime.UnlockOSThread()
	before := threadTime(t)
	operations, err := Operations(raw, raw, after)
	took := threadTime(t) - before
	if err != nil || len(operations) == 0 {
		t.Fatal(len(operations), err)
	}
	text, err := json.Marshal(operations)
	t.Logf("%d operations, %d bytes, in %s (%v)", len(operations), len(text), took, err)
	if took > 10*time.Second {
		t.Errorf("%d bytes took %s", len(raw), took)
	}
}

// threadTime is the CPU time that the thread has had. Beside others that compute, the
// clock on the wall says nothing of what a comparison costs.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
