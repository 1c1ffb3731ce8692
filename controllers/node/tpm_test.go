package node

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// TestReportTPM: the status says for good that a TPM has failed, and only of a VMI that has one. The launcher's text
// is made printable.
func TestReportTPM(t *testing.T) {
	lost := control.StateReport{State: control.StateRunning, TPMLost: "the emulator of the TPM exited with code 1:\x00" + strings.Repeat("why ", 60)}
	vmi := &v1.VirtualMachineInstance{}
	if reportTPM(vmi, lost, metav1.Unix(1, 0)); len(vmi.Status.Conditions) > 0 {
		t.Errorf("without a TPM: %+v", vmi.Status.Conditions)
	}
	vmi.Spec.Domain.Devices.TPM = &v1.TPMDevice{}
	if reportTPM(vmi, control.StateReport{State: control.StateRunning}, metav1.Unix(1, 0)); len(vmi.Status.Conditions) > 0 {
		t.Errorf("with a TPM that works: %+v", vmi.Status.Conditions)
	}
	reportTPM(vmi, lost, metav1.Unix(2, 0))
	reportTPM(vmi, lost, metav1.Unix(3, 0))
	c := vmi.Status.Condition(v1.ConditionTPMFailed)
	if want := "the guest's TPM has failed, and works again when the VM is stopped and started: the emulator of the TPM exited with code 1:" + strings.Repeat("why ", 60); c == nil ||
		c.Message != want || c.Status != metav1.ConditionTrue || c.LastTransitionTime != metav1.Unix(2, 0) {
		t.Errorf("the condition is %+v, want the message %q", c, want)
	}
}
