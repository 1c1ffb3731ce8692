package launcher

import (
	"encoding/json"
	"strings"
	"testing"

	monitor "github.com/digitalocean/go-qemu/qmp"

	"github.com/kubeqemu/kubeqemu/launcher/life"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

func TestParseIOError(t *testing.T) {
	long := strings.Repeat("long-", 8) + "name"
	m := &qemuargs.Machine{Disks: []qemuargs.Disk{{Name: "root", Driver: qemuargs.VirtioBlk},
		{Name: long, Driver: qemuargs.VirtioBlk}}}
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
		want *life.IOError
	}{
		{`{"node-name": "disk-root", "operation": "write", "action": "stop", "nospace": true, "reason": "full"}`,
			&life.IOError{Disk: "root", Operation: "write", Text: "full", NoSpace: true}},
		{`{"node-name": "` + props.Drive + `", "operation": "read", "action": "stop", "reason": "bad"}`,
			&life.IOError{Disk: long, Operation: "read", Text: "bad"}},
		{`{"node-name": "other", "action": "stop"}`, &life.IOError{Disk: "other"}},
		{`{"node-name": "disk-root", "action": "report"}`, nil},
		{`{"node-name": 7, "action": ["stop"]}`, nil},
		{`null`, nil},
	} {
		var e monitor.Event
		if err := json.Unmarshal([]byte(tt.data), &e.Data); err != nil {
			t.Fatal(err)
		}
		got, stops := parseIOError(e, m)
		if stops != (tt.want != nil) || stops && got != *tt.want {
			t.Errorf("%s: %+v, %t, want %+v", tt.data, got, stops, tt.want)
		}
	}
}
