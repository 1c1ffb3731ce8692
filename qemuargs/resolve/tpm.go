package resolve

import (
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// tpm is nil for a machine without a TPM. The interface is KubeVirt's: a guest that is moved from KubeVirt finds what it had.
func tpm(domain *v1.DomainSpec, architecture string, host Host, why *Decisions) *qemuargs.TPM {
	const field = "spec.domain.devices.tpm"
	why.add("tpm", field+" "+field+".enabled", "none unless it is named and not turned off")
	if domain.TPM() == nil {
		return nil
	}
	why.add("tpm.interface", field+".persistent", "as in KubeVirt, tpm-crb if the state is persistent, and else tpm-tis")
	why.add("tpm.folder", field+".persistent", "the folder for the TPM's state")
	why.add("tpm.inState", field+".persistent", "")
	t := &qemuargs.TPM{Interface: qemuargs.TIS, Folder: layout.Below(host.Root, layout.TPM)}
	if domain.PersistentTPM() {
		t = &qemuargs.TPM{Interface: qemuargs.CRB, Folder: layout.Below(host.Root, layout.StateTPM), InState: true}
	}
	if architecture == v1.ARM64 {
		why.add("tpm.interface", "", "the board of arm64 has no other")
		t.Interface = qemuargs.TISDevice
	}
	return t
}
