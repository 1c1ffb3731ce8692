package libvirt

import "github.com/kubeqemu/kubeqemu/qemuargs"

// TPM is a TPM 2.0 that swtpm emulates.
type TPM struct {
	Model   string     `xml:"model,attr"`
	Backend TPMBackend `xml:"backend"`
}

// TPMBackend is what the TPM is.
type TPMBackend struct {
	Type    string `xml:"type,attr"`
	Version string `xml:"version,attr"`
}

func tpm(t *qemuargs.TPM) *TPM {
	if t == nil {
		return nil
	}
	model := t.Interface
	if model == qemuargs.TISDevice { // which libvirt tells from TIS by the board
		model = qemuargs.TIS
	}
	return &TPM{Model: string(model), Backend: TPMBackend{Type: "emulator", Version: "2.0"}}
}
