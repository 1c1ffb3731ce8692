package node

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// FuzzReport plays a launcher that says anything of its state: what comes of it
// is a status that the API server takes, and no end of the VMI.
func FuzzReport(f *testing.F) {
	for _, s := range []string{`{"state":"running","machine":{"type":"pc-q35-7.2","accelerator":"tcg"},"startedAt":"2026-01-01T00:00:00Z"}`,
		`{"state":"paused","pause":{"status":"io-error","disk":"root","error":"No space left on device","noSpace":true},"startedAt":"2026-01-01T00:00:00Z"}`,
		`{"state":"running","qemuSilent":true}`, `{"state":"exited"}`, `{"state":"succeeded"}`, `{"state":"paused","pause":{"status":"\u0000"}}`} {
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, data []byte, launcherSilent bool) {
		var state control.StateReport
		if len(data) > control.MaxMessageBytes || control.Told(data, &state) != nil || !sessions.Plausible(state) {
			return
		}
		before := &v1.VirtualMachineInstance{Status: v1.VirtualMachineInstanceStatus{Phase: v1.Scheduled, NodeName: "node"}}
		after := before.DeepCopy()
		report(after, state, someNetwork(), metav1.Unix(1000, 0))
		reportSilence(after, before, state, launcherSilent, metav1.Unix(1000, 0))
		if p := after.Status.Phase; p != v1.Scheduled && p != v1.Running || after.Status.NodeName != "node" {
			t.Fatalf("phase %s on %s", p, after.Status.NodeName)
		}
		written, err := json.Marshal(after.Status)
		if err != nil || len(written) > 8<<10 {
			t.Fatalf("a status of %d bytes, error %v", len(written), err)
		}
	})
}
