package vmi

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// labelAfter is how long a VMI keeps its phase before its labels follow its status. A quick start passes
// through three phases in that time. So a start has one write of labels, and has it after the guest runs.
const labelAfter = 2 * time.Second

// settling returns how long a VMI's labels still wait. It returns 0 if the VMI has had its phase for long
// enough, or if the clock of the node, which may have written the time, is ahead.
func settling(vmi *v1.VirtualMachineInstance, now time.Time) time.Duration {
	times := vmi.Status.PhaseTransitionTimestamps
	if len(times) == 0 {
		return 0
	}
	if age := now.Sub(times[len(times)-1].PhaseTransitionTimestamp.Time); age >= 0 {
		return max(labelAfter-age, 0)
	}
	return 0
}

// observedLabels returns those labels of a VMI that do not say what its status says, with their new values. Nil
// removes a label.
func observedLabels(vmi *v1.VirtualMachineInstance, images ...string) map[string]any {
	out := map[string]any{}
	set := func(key, value string, wanted bool) {
		have, there := vmi.Labels[key]
		switch {
		case wanted && (!there || have != value):
			out[key] = value
		case !wanted && there:
			out[key] = nil
		}
	}
	set(v1.NodeNameLabel, vmi.Status.NodeName, vmi.Status.NodeName != "")
	set(v1.OutdatedLauncherLabel, "", vmi.Outdated(images...))
	return out
}

// label writes the labels that follow a VMI's status, or returns how long to wait until then. Labels of an
// object and its status are written by two requests. If the status has just been written, that event brings the
// VMI back.
func (r *Reconciler) label(ctx context.Context, t *turn) (time.Duration, error) {
	vmi := t.vmi
	if vmi.ResourceVersion != t.before.ResourceVersion {
		return 0, nil
	}
	labels := observedLabels(vmi, r.Config.LauncherImage, r.Config.ARM64Image)
	if len(labels) == 0 {
		return 0, nil
	}
	if wait := settling(vmi, r.Clock.Now()); wait > 0 {
		return wait, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": vmi.UID, "labels": labels}})
	if err != nil {
		return 0, fmt.Errorf("encode labels: %w", err)
	}
	after := vmi.DeepCopy()
	if err := r.Client.Patch(ctx, after, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return 0, fmt.Errorf("write labels: %w", err)
	}
	r.writes.Note(vmi, after)
	return 0, nil
}
