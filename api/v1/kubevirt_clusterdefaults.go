package v1

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
)

// EmulationPermitted reports whether guests may be emulated.
func (c *KubeVirtConfiguration) EmulationPermitted() bool {
	return c.DeveloperConfiguration != nil && c.DeveloperConfiguration.UseEmulation
}

// MaxInstancesPerNode is how many guests a node takes at most: the kubelet's default limit of pods.
const MaxInstancesPerNode = 110

// InstancesPerNode returns how many guests a node takes.
func (c *KubeVirtConfiguration) InstancesPerNode() int {
	if n := c.VirtualMachineInstancesPerNode; n != nil {
		return max(min(*n, MaxInstancesPerNode), 0)
	}
	return MaxInstancesPerNode
}

// CommonInstancetypes reports whether the cluster-wide instancetypes and preferences of KubeVirt's names
// are to be there. It is nil if the configuration does not say.
func (c *KubeVirtConfiguration) CommonInstancetypes() *bool {
	if d := c.CommonInstancetypesDeployment; d != nil {
		return d.Enabled
	}
	return nil
}

// FreePageReportingDisabled reports whether guests do not give back the pages that they have freed.
func (c *KubeVirtConfiguration) FreePageReportingDisabled() bool {
	return c.VirtualMachineOptions != nil && c.VirtualMachineOptions.DisableFreePageReporting != nil
}

// LocalhostProfile returns the file of the launcher pods' seccomp profile, below the kubelet's folder of
// profiles. It is empty for the container runtime's own profile.
func (c *KubeVirtConfiguration) LocalhostProfile() string {
	if profile, below := c.NamedProfile(); profile != kubeVirtsProfile && below {
		return profile
	}
	return ""
}

// NamedProfile returns the seccomp profile that the configuration names for the launcher pods, and whether that path
// stays below the kubelet's folder of profiles.
func (c *KubeVirtConfiguration) NamedProfile() (path string, below bool) {
	s := c.SeccompConfiguration
	if s != nil && s.VirtualMachineInstanceProfile != nil && s.VirtualMachineInstanceProfile.CustomProfile != nil {
		path = ptr.Deref(s.VirtualMachineInstanceProfile.CustomProfile.LocalhostProfile, "")
	}
	return path, !strings.HasPrefix(path, "/") && !slices.Contains(strings.Split(path, "/"), "..")
}

// RuntimeClass returns that of the launcher pods, or an empty text for the cluster's default. A name that no object can
// have counts as none: virt-api may not have been asked about the KubeVirt.
func (c *KubeVirtConfiguration) RuntimeClass() string {
	if len(validation.IsDNS1123Subdomain(c.DefaultRuntimeClass)) > 0 {
		return ""
	}
	return c.DefaultRuntimeClass
}

// NodeSelectors returns labels that a node must have to run guests, without those that no node can
// have.
func (c *KubeVirtConfiguration) NodeSelectors() map[string]string {
	if c.DeveloperConfiguration == nil {
		return nil
	}
	all := maps.Clone(c.DeveloperConfiguration.NodeSelectors)
	maps.DeleteFunc(all, func(key, value string) bool { return len(LabelProblems(key, value)) > 0 })
	return all
}

// LabelProblems returns why a node cannot have a label.
func LabelProblems(key, value string) []string {
	return append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...)
}

// kubeVirtsProfile is the seccomp profile that KubeVirt's virt-handler installs on each node. Here
// nobody installs it, and no pod could start with it.
const kubeVirtsProfile = "kubevirt/kubevirt.json"

// EmulatesARM64 reports whether guests of arm64 run on nodes of amd64.
func (c *KubeVirtConfiguration) EmulatesARM64() bool {
	return c.ArchitectureConfiguration != nil && c.ArchitectureConfiguration.Arm64 != nil &&
		c.ArchitectureConfiguration.Arm64.UseEmulation
}

// NodeArchitecture returns the architecture of the nodes that a guest of an architecture runs on.
func (c *KubeVirtConfiguration) NodeArchitecture(guest string) string {
	if guest == ARM64 && c.EmulatesARM64() {
		return AMD64
	}
	return guest
}

// defaultArchitecture returns the architecture that the configuration names, or an empty text if guests cannot have it.
func (c *KubeVirtConfiguration) defaultArchitecture() string {
	if a := c.ArchitectureConfiguration; a != nil && slices.Contains(Architectures(), a.DefaultArchitecture) {
		return a.DefaultArchitecture
	}
	return ""
}

// DefaultArchitecture returns that of guests that name none.
func (c *KubeVirtConfiguration) DefaultArchitecture() string {
	return cmp.Or(c.defaultArchitecture(), AMD64)
}

// DefaultMachineType returns the machine type that the configuration names for an architecture, or an empty text.
func (c *KubeVirtConfiguration) DefaultMachineType(architecture string) string {
	if architecture == ARM64 {
		if a := c.ArchitectureConfiguration; a != nil && a.Arm64 != nil {
			return a.Arm64.MachineType
		}
		return ""
	}
	if a := c.ArchitectureConfiguration; a != nil && a.Amd64 != nil && a.Amd64.MachineType != "" {
		return a.Amd64.MachineType
	}
	return c.MachineType
}

// KubeVirtInForce returns the one KubeVirt that has an effect: the oldest in the components' namespace,
// or the oldest of all if that namespace has none. It is nil if there is none.
func KubeVirtInForce(all []KubeVirt) *KubeVirt {
	if len(all) == 0 {
		return nil
	}
	elsewhere := func(kv KubeVirt) int {
		if kv.Namespace == KubeVirtNamespace {
			return 0
		}
		return 1
	}
	first := slices.MinFunc(all, func(a, b KubeVirt) int {
		return cmp.Or(elsewhere(a)-elsewhere(b), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return &first
}

// ClusterConfiguration returns the configuration in force, given all KubeVirts of the cluster.
func ClusterConfiguration(all []KubeVirt) *KubeVirtConfiguration {
	if kv := KubeVirtInForce(all); kv != nil {
		return &kv.Spec.Configuration
	}
	return &KubeVirtConfiguration{}
}

// ApplyClusterDefaults fills in what the spec leaves out from the cluster's configuration. It
// is called before Default, which fills in the rest. Like Default it is idempotent, and never
// changes a field that is set.
func ApplyClusterDefaults(vmi *VirtualMachineInstance, config *KubeVirtConfiguration) {
	spec := &vmi.Spec
	if spec.Architecture == "" && (spec.Domain.Machine == nil || spec.Domain.Machine.Type == "") {
		spec.Architecture = config.defaultArchitecture()
	}
	architecture := cmp.Or(spec.Architecture, spec.Domain.Machine.Architecture())
	if model := config.CPUModel; model != "" && architecture == AMD64 {
		if spec.Domain.CPU == nil {
			spec.Domain.CPU = &CPU{}
		}
		if spec.Domain.CPU.Model == "" {
			spec.Domain.CPU.Model = model
		}
	}
	if machine := config.DefaultMachineType(architecture); machine != "" &&
		slices.Contains(Architectures(), architecture) {
		if spec.Domain.Machine == nil {
			spec.Domain.Machine = &Machine{}
		}
		if spec.Domain.Machine.Type == "" {
			spec.Domain.Machine.Type = machine
		}
	}
	if strategy := config.EvictionStrategy; spec.EvictionStrategy == nil && strategy != nil &&
		supportedEviction(*strategy, vmi.Name) {
		spec.EvictionStrategy = ptr.To(*strategy)
	}
	if devices := &spec.Domain.Devices; config.silent() && devices.LogSerialConsole == nil {
		devices.LogSerialConsole = ptr.To(false)
	}
	if n := config.NetworkConfiguration; n != nil && n.NetworkInterface == "masquerade" && wantsInterface(spec) {
		const name = "default" // KubeVirt's
		spec.Networks = []Network{{Name: name, Pod: &PodNetwork{}}}
		spec.Domain.Devices.Interfaces = []Interface{{Name: name, Masquerade: &InterfaceMasquerade{}}}
	}
}

// supportedEviction reports whether a VMI of a name may have an eviction strategy.
func supportedEviction(s EvictionStrategy, name string) bool {
	return !s.Refuses() || len(name) <= MaxWholeName
}

// silent reports whether serial ports are not logged by default.
func (c *KubeVirtConfiguration) silent() bool {
	return c.VirtualMachineOptions != nil && c.VirtualMachineOptions.DisableSerialConsoleLog != nil
}

// wantsInterface reports whether a guest gets an interface that it does not name.
func wantsInterface(spec *VirtualMachineInstanceSpec) bool {
	auto := spec.Domain.Devices.AutoattachPodInterface
	return len(spec.Networks) == 0 && len(spec.Domain.Devices.Interfaces) == 0 && (auto == nil || *auto)
}
