package subresources

import (
	"errors"
	"net/http"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestGuestAgentErrorsAreKubeVirts: codes and words of KubeVirt's, for what needs a guest agent.
func TestGuestAgentErrorsAreKubeVirts(t *testing.T) {
	with := func(phase v1.VirtualMachineInstancePhase, conditions ...v1.ConditionType) *v1.VirtualMachineInstance {
		vmi := instanceIn(phase)
		for _, c := range conditions {
			vmi.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: c, Status: metav1.ConditionTrue}, metav1.Now())
		}
		return vmi
	}
	noACPI := func(vmi *v1.VirtualMachineInstance) *v1.VirtualMachineInstance {
		vmi.Spec.Domain.Features = &v1.Features{ACPI: v1.FeatureState{Enabled: ptr.To(false)}}
		return vmi
	}
	reboot := func(vmi *v1.VirtualMachineInstance) error { return operable(vmi, "softreboot") }
	for name, c := range map[string]struct {
		check func(*v1.VirtualMachineInstance) error
		vmi   *v1.VirtualMachineInstance
		code  int32
	}{
		"connected":           {askable, with(v1.Running, v1.ConditionAgentConnected), 0},
		"not connected":       {askable, with(v1.Running), http.StatusInternalServerError},
		"not running":         {askable, with(v1.Scheduled, v1.ConditionAgentConnected), http.StatusInternalServerError},
		"reboot":              {reboot, with(v1.Running), 0},
		"reboot, paused":      {reboot, with(v1.Running, v1.ConditionPaused), http.StatusConflict},
		"reboot, not running": {reboot, with(v1.Failed), http.StatusConflict},
		"reboot, no ACPI":     {reboot, noACPI(with(v1.Running)), http.StatusConflict},
		"reboot, agent alone": {reboot, noACPI(with(v1.Running, v1.ConditionAgentConnected)), 0},
	} {
		var code int32
		var status apierrors.APIStatus
		if err := c.check(c.vmi); errors.As(err, &status) {
			code = status.Status().Code
		} else if err != nil {
			code = -1
		}
		if code != c.code {
			t.Errorf("%s: %d, want %d", name, code, c.code)
		}
	}
}

// TestFreezeTimeIsOptional: the time is optional, and is one.
func TestFreezeTimeIsOptional(t *testing.T) {
	s := serve(t)
	s.allowed = "virtualmachineinstances/freeze"
	path := root + "/namespaces/ns/virtualmachineinstances/vm/freeze"
	// 503: there is no virt-handler here.
	for body, want := range map[string]int{"": 503, "{}": 503, `{"unfreezeTimeout":"0s"}`: 503, `{"unfreezeTimeout":"5m"}`: 503,
		`{"unfreezeTimeout":"-1s"}`: 400, `{"unfreezeTimeout":"2562047h47m16s"}`: 400, `{"unfreezeTimeout":"soon"}`: 400, `{"unfreezeTimeout":5}`: 400} {
		if code, status := s.ask(true, "ann", http.MethodPut, path, body); code != want {
			t.Errorf("%q: %d %q, want %d", body, code, status.Message, want)
		}
	}
}
