package node

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// TestStatusSaysUEFIVariablesCannotMove: the status says that a launcher cannot send the UEFI variables, until another launcher has the guest. It says nothing of guests
// whose variables end with them.
func TestStatusSaysUEFIVariablesCannotMove(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	if reportStateStays(vmi, nil, metav1.Unix(1, 0)); len(vmi.Status.Conditions) > 0 {
		t.Errorf("without variables on a claim: %+v", vmi.Status.Conditions)
	}
	vmi.Spec.Domain.Firmware = &v1.Firmware{Bootloader: &v1.Bootloader{EFI: &v1.EFI{Persistent: ptr.To(true)}}}
	for range 2 {
		reportStateStays(vmi, []string{control.FeatureState}, metav1.Unix(2, 0))
	}
	if c := vmi.Status.Condition(v1.ConditionStateStays); c == nil || c.Status != metav1.ConditionTrue || c.Reason != v1.ReasonEarlierLauncher || c.LastTransitionTime != metav1.Unix(2, 0) {
		t.Errorf("of an earlier launcher: %+v", c)
	}
	if reportStateStays(vmi, []string{control.FeatureStateCopy}, metav1.Unix(3, 0)); len(vmi.Status.Conditions) > 0 {
		t.Errorf("of the next launcher: %+v", vmi.Status.Conditions)
	}
}
