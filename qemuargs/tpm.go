package qemuargs

// TPMInterface is how the guest talks to a TPM: the name of QEMU's device.
type TPMInterface string

// Interfaces of a TPM. TIS is older: Linux knows it since 3.x, and every firmware knows it. CRB is that of TPM 2.0.
const (
	TIS TPMInterface = "tpm-tis"
	CRB TPMInterface = "tpm-crb"
	// TISDevice is TIS on a machine of arm64.
	TISDevice TPMInterface = "tpm-tis-device"
)

// TPM is a TPM 2.0. The program swtpm emulates it beside QEMU. QEMU inherits swtpm's control socket, over which it
// hands swtpm another socket for the guest's commands. A TPM is no PCI device: in a machine of amd64 its registers are
// at 0xfed40000.
type TPM struct {
	Interface TPMInterface `json:"interface"`
	// Folder holds the TPM's state. swtpm gets it as an open descriptor, and QEMU does not see it.
	Folder string `json:"folder"`
	// InState: Folder is in the volume with the guest's state, and outlives the machine. The state is in a folder in
	// there.
	InState bool `json:"inState,omitempty"`
}

const tpmID = "tpm0"

type tpmProps struct {
	Driver string `json:"driver"`
	ID     string `json:"id"`
	TPMDev string `json:"tpmdev"`
}

// args returns the TPM's arguments; file is the descriptor of the control socket.
func (t *TPM) args(file string) []Arg {
	const socketID, backend = "chrtpm", "tpm-" + tpmID
	return []Arg{
		{Flag: "-chardev", Value: socket(socketID, file)},
		{Flag: "-tpmdev", Value: Options{{Value: "emulator"}, {Key: "id", Value: backend},
			{Key: "chardev", Value: socketID}}},
		{Flag: "-device", Value: tpmProps{Driver: string(t.Interface), ID: tpmID, TPMDev: backend}},
	}
}
