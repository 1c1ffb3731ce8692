package v1

// InterfacePasstBinding is the binding by the program passt.
type InterfacePasstBinding struct{}

// PasstLabel is the label of nodes on which a pod can have passt: "true" if the node has the seccomp profile that passt
// needs, "false" if not.
const PasstLabel = "kubeqemu.io/passt"

// PasstProfile is the file of that profile, below the kubelet's folder of seccomp profiles.
const PasstProfile = "kubeqemu/passt.json"
