package resolve

import (
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// tpm is nil for a machine without a TPM. The interface is KubeVirt's: a guest that is moved from KubeVirt finds what it had.
func tpm(domain *v1.DomainSpec, host Host, why *Decisions) *qemuargs.TPM {
	const field = "spec.domain.devices.tpm"
	why.add("tpm", field+" "+field+".enabled", "none unless it is named and not turned off")
	if domain.TPM() == nil {
		return nil
	}
	why.add("tpm.interface", field, "tpm-tis, as in KubeVirt")
	why.add("tpm.folder", "", "the launcher's folder for the TPM's state")
	return &qemuargs.TPM{Interface: qemuargs.TIS, Folder: layout.Below(host.Root, layout.TPM)}
}
