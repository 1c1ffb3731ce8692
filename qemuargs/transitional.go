package qemuargs

// virtio returns the driver of a device such as virtio-rng-pci. A transitional device is known also to guests without
// virtio 1.
func virtio(device string, transitional bool) string {
	if transitional {
		return device + "-transitional"
	}
	return device + "-non-transitional"
}
