package v1

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestWhetherTPMIsThereAndPersistent(t *testing.T) {
	for name, c := range map[string]struct {
		tpm             *TPMDevice
		has, persistent bool
	}{
		"none":                     {nil, false, false},
		"plain":                    {&TPMDevice{}, true, false},
		"on":                       {&TPMDevice{Enabled: ptr.To(true), Persistent: ptr.To(false)}, true, false},
		"off":                      {&TPMDevice{Enabled: ptr.To(false)}, false, false},
		"persistent":               {&TPMDevice{Persistent: ptr.To(true)}, true, true},
		"off, and else persistent": {&TPMDevice{Enabled: ptr.To(false), Persistent: ptr.To(true)}, false, false},
	} {
		spec := VirtualMachineInstanceSpec{}
		spec.Domain.Devices.TPM = c.tpm
		if has := spec.Domain.TPM() != nil; has != c.has || spec.Domain.PersistentTPM() != c.persistent ||
			spec.StateClaim() != c.persistent {
			t.Errorf("%s: there %t, persistent %t, a claim %t", name, has, spec.Domain.PersistentTPM(), spec.StateClaim())
		}
	}
}

// TestGuestWithFailedTPMIsNotMigratable: a guest whose TPM has failed does not move.
func TestGuestWithFailedTPMIsNotMigratable(t *testing.T) {
	vmi := &VirtualMachineInstance{}
	if reason, _ := vmi.NotMigratable(); reason != "" {
		t.Errorf("a guest stays for %s", reason)
	}
	vmi.Status.SetCondition(VirtualMachineInstanceCondition{Type: ConditionTPMFailed, Status: metav1.ConditionTrue},
		metav1.Now())
	if reason, _ := vmi.NotMigratable(); reason != ReasonTPMNotMigratable {
		t.Errorf("a guest whose TPM has failed stays for %q", reason)
	}
}
