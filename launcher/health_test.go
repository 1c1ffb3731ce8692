package launcher

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	monitor "github.com/digitalocean/go-qemu/qmp"

	"github.com/kubeqemu/kubeqemu/qemuargs"
)

func TestParseIOError(t *testing.T) {
	long := strings.Repeat("long-", 8) + "name"
	m := &qemuargs.Machine{Disks: []qemuargs.Disk{{Name: "root", Driver: qemuargs.VirtioBlk}, {Name: long, Driver: qemuargs.VirtioBlk}}}
	device, err := json.Marshal(m.Disks[1].Device())
	var props struct{ Drive string }
	if err == nil {
		err = json.Unmarshal(device, &props)
	}
	if err != nil || props.Drive == "disk-"+long {
		t.Fatalf("node name %q: %v", props.Drive, err)
	}
	for _, tt := range []struct {
		data string
		want *ioError
	}{
		{`{"node-name": "disk-root", "operation": "write", "action": "stop", "nospace": true, "reason": "full"}`, &ioError{disk: "root", operation: "write", text: "full", noSpace: true}},
		{`{"node-name": "` + props.Drive + `", "operation": "read", "action": "stop", "reason": "bad"}`, &ioError{disk: long, operation: "read", text: "bad"}},
		{`{"node-name": "other", "action": "stop"}`, &ioError{disk: "other"}},
		{`{"node-name": "disk-root", "action": "report"}`, nil},
		{`{"node-name": 7, "action": ["stop"]}`, nil},
		{`null`, nil},
	} {
		var e monitor.Event
		if err := json.Unmarshal([]byte(tt.data), &e.Data); err != nil {
			t.Fatal(err)
		}
		got := parseIOError(e, m)
		if (got == nil) != (tt.want == nil) || got != nil && *got != *tt.want {
			t.Errorf("%s: %+v, want %+v", tt.data, got, tt.want)
		}
	}
}

// TestRetryWaits: longer each time, up to a bound, and from the beginning after
// it has gone well.
func TestRetryWaits(t *testing.T) {
	r := retry{timer: stoppedTimer(), settled: stoppedTimer()}
	for range 2 {
		for i, want := range []time.Duration{firstRetry, 2 * firstRetry, 4 * firstRetry, 8 * firstRetry, lastRetry, lastRetry} {
			if r.schedule(); r.wait != want || r.trying {
				t.Errorf("attempt %d is made after %s, want %s", i, r.wait, want)
			}
		}
		r.stop()
	}
}
