package layout

// ResourceVariable returns the environment variable, in a launcher's container, with the resource of an interface's
// network cards of the node. The name is KubeVirt's.
func ResourceVariable(nic string) string { return "KUBEVIRT_RESOURCE_NAME_" + nic }
