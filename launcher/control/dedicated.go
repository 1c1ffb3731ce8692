package control

// DedicatedCPUs says that the pod has CPUs of its own, one for each of the guest's.
type DedicatedCPUs struct {
	// IsolateEmulator: the pod has one more, for QEMU's other threads.
	IsolateEmulator bool `json:"isolateEmulator,omitempty"`
}
