package v1

// The components, by their names. Each is a program, a pod and a ServiceAccount.
const (
	VirtAPI        = "virt-api"
	VirtController = "virt-controller"
	VirtHandler    = "virt-handler"
)

// Verbosity returns how much a component on a node logs: logVerbosity's value for the node, or else for
// the component, or else 0.
func (c *KubeVirtConfiguration) Verbosity(component, node string) int {
	if c.DeveloperConfiguration == nil || c.DeveloperConfiguration.LogVerbosity == nil {
		return 0
	}
	v := c.DeveloperConfiguration.LogVerbosity
	if n := v.NodeVerbosity[node]; n > 0 {
		return int(n)
	}
	return int(map[string]int32{VirtAPI: v.VirtAPI, VirtController: v.VirtController,
		VirtHandler: v.VirtHandler}[component])
}
