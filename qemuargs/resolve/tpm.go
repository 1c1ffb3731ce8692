package resolve

import (
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// tpm adds the TPM. The interface is KubeVirt's: a guest that is moved from KubeVirt finds what it had.
func tpm(b *build) {
	domain := &b.vmi.Spec.Domain
	if domain.TPM() == nil {
		return
	}
	t := &qemuargs.TPM{Interface: qemuargs.TIS, Folder: layout.Below(b.host.Root, layout.TPM)}
	if domain.PersistentTPM() {
		t = &qemuargs.TPM{Interface: qemuargs.CRB, Folder: layout.Below(b.host.Root, layout.StateTPM), InState: true}
	}
	if b.vmi.Spec.Architecture == v1.ARM64 {
		t.Interface = qemuargs.TISDevice // the board has no other
	}
	b.m.TPM = t
}
