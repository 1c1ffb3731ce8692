package node

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// reportStateStays says in a VMI's status that the guest's launcher cannot send the UEFI variables to another claim, so that nobody tries that again and
// again. features are the launcher's. The condition goes with the guest's move to another launcher.
func reportStateStays(object *v1.VirtualMachineInstance, features []string, now metav1.Time) {
	if !object.Spec.Domain.PersistentVariables() || slices.Contains(features, control.FeatureStateCopy) {
		if object.Status.Condition(v1.ConditionStateStays) != nil {
			object.Status.RemoveCondition(v1.ConditionStateStays)
		}
		return
	}
	object.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionStateStays, Status: metav1.ConditionTrue, Reason: v1.ReasonEarlierLauncher,
		Message: "the launcher is of an earlier release, without the feature " + control.FeatureStateCopy + ", and cannot send the UEFI variables to another claim until the VM is stopped and started"}, now)
}
