package v1

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Ineffective is a field of a KubeVirt that is kept, and changes nothing.
type Ineffective struct {
	// Field is its path, such as spec.infra.
	Field string
	// Why says what to do instead, or what is missing.
	Why string
}

func (i Ineffective) String() string { return i.Field + ": " + i.Why }

// ineffectiveField is a field of a KubeVirt's spec that nothing reads.
type ineffectiveField struct {
	path, why string
	// with is the path of a field that gives this one an effect; "" for none.
	with string
	// asHere are the values that ask for what is so anyway.
	asHere harmless
}

// harmless are values of a field without an effect that ask for what is so anyway.
type harmless struct {
	texts []string
	// most: numbers up to this one; 0 for none.
	most int
	// allBut: every text but this one; "" for none.
	allBut string
	// bindings: registered plugins that interfaces may name.
	bindings bool
}

// has reports whether value, as JSON has it, is one of them.
func (h harmless) has(value any) bool {
	if h.bindings {
		return supportedBindings(value)
	}
	if n, ok := value.(float64); ok && h.most > 0 {
		return n <= float64(h.most)
	}
	if list, ok := value.([]any); ok {
		return !slices.ContainsFunc(list, func(entry any) bool { return !h.has(entry) })
	}
	return slices.Contains(h.texts, fmt.Sprint(value)) || h.allBut != "" && value != h.allBut
}

// supportedBindings reports whether interfaces may name each of the registered plugins.
func supportedBindings(value any) bool {
	var plugins map[string]InterfaceBindingPlugin
	text, err := json.Marshal(value)
	if err != nil || json.Unmarshal(text, &plugins) != nil {
		return false
	}
	for _, p := range plugins {
		if p.WhyRefused() != "" {
			return false
		}
	}
	return true
}

func (h harmless) String() string {
	if h.bindings {
		return "plugins of domainAttachmentType managedTap, with migration or without"
	}
	if h.most > 0 {
		return fmt.Sprintf("up to %d", h.most)
	}
	if h.allBut != "" {
		return "all but " + h.allBut
	}
	return strings.Join(h.texts, ", ")
}

// ineffectiveFields are in the order in which the status names them. A field below such a field is
// not listed.
var ineffectiveFields = []ineffectiveField{
	{path: "imageTag", why: byInstallation}, {path: "imageRegistry", why: byInstallation},
	{path: "imagePullPolicy", why: byInstallation},
	{path: "imagePullSecrets", why: byInstallation + "; a launcher pod has the pull secrets of its service account"},
	{path: "infra", why: byInstallation}, {path: "workloads", why: byInstallation},
	{path: "customizeComponents", why: byInstallation},
	{path: "productVersion", why: byInstallation}, {path: "productName", why: byInstallation},
	{path: "productComponent", why: byInstallation},
	{path: "monitorNamespace", why: byMonitoring}, {path: "serviceMonitorNamespace", why: byMonitoring},
	{path: "monitorAccount", why: byMonitoring},
	{path: "uninstallStrategy", why: "there is no operator, and the deletion of this object removes nothing; " +
		"`make undeploy` refuses while there are VirtualMachines"},
	{path: "certificateRotateStrategy", why: "the components' certificates live for a day, and their CAs for 30 days"},
	{path: "synchronizationPort", why: oneCluster},
	{path: migrations + "allowWorkloadDisruption", why: "no guest is paused so that its migration ends; set allowPostCopy",
		with: migrations + "allowPostCopy"},
	{path: migrations + "unsafeMigrationOverride", why: "a guest whose disks only one node can use stays where it is"},
	{path: migrations + "disableTLS", why: "virt-handlers always speak TLS"},
	{path: migrations + "network", why: "virt-handlers speak over the network of the nodes"},
	{path: migrations + "matchSELinuxLevelOnMigration", why: "the container runtime chooses the SELinux level"},
	{path: migrations + "utilityVolumesTimeout", why: "a VirtualMachineInstance with utilityVolumes is refused"},
	{path: migrations + "experimental", why: "what is experimental in KubeVirt is not here"},
	{path: "configuration.liveUpdateConfiguration", why: "a running guest gets no CPU, memory or device"},
	{path: "configuration.virtualMachineInstancesPerNode", why: "a node takes 110 guests at most",
		asHere: harmless{most: MaxInstancesPerNode}},
	{path: "configuration.ovmfPath", why: byImage},
	{path: "configuration.architectureConfiguration.amd64.ovmfPath", why: byImage},
	{path: "configuration.architectureConfiguration.arm64.ovmfPath", why: byImage},
	{path: "configuration.architectureConfiguration.ppc64le", why: onlyAMD64},
	{path: "configuration.architectureConfiguration.s390x", why: onlyAMD64},
	{path: "configuration.architectureConfiguration.defaultArchitecture", why: onlyAMD64,
		asHere: harmless{texts: Architectures()}},
	{path: "configuration.minCPUModel", why: "nodes are labelled with all CPU features that they can give"},
	{path: "configuration.selinuxLauncherType",
		why: "there is no SELinux policy of ours; a launcher pod has the container runtime's type"},
	{path: "configuration.seccompConfiguration.virtualMachineInstanceProfile.customProfile.localhostProfile",
		why: "KubeVirt's virt-handler installs kubevirt/kubevirt.json, and nobody does here; the launcher pods keep the " +
			"container runtime's profile",
		asHere: harmless{allBut: kubeVirtsProfile}},
	{path: "configuration.supportContainerResources",
		why: "docs/machine.md and docs/storage.md say what a launcher pod's containers book"},
	{path: "configuration.supportedGuestAgentVersions",
		why: "every version of the guest agent is supported; a command that the agent lacks is refused"},
	{path: "configuration.memBalloonStatsPeriod", why: "the balloon is asked when somebody reads the metrics"},
	{path: "configuration.permittedHostDevices", why: "a VirtualMachineInstance with hostDevices or gpus is refused"},
	{path: "configuration.mediatedDevicesConfiguration",
		why: "a VirtualMachineInstance with hostDevices or gpus is refused"},
	{path: "configuration.apiConfiguration", why: fixedRates},
	{path: "configuration.webhookConfiguration", why: fixedRates},
	{path: "configuration.controllerConfiguration", why: fixedRates},
	{path: "configuration.handlerConfiguration", why: fixedRates},
	{path: "configuration.tlsConfiguration.minTLSVersion", why: "every server speaks TLS 1.3 only",
		asHere: harmless{texts: []string{"VersionTLS13"}}},
	{path: "configuration.tlsConfiguration.ciphers",
		why: "every server speaks TLS 1.3 only, which has no choice of ciphers"},
	{path: "configuration.ksmConfiguration", why: "the nodes' KSM is left as it is"},
	{path: "configuration.virtTemplateDeployment", why: "there are no templates of VirtualMachines"},
	{path: "configuration.instancetype.referencePolicy", why: "a VirtualMachine keeps its reference",
		asHere: harmless{texts: []string{"reference"}}},
	{path: "configuration.hypervisors", why: "the hypervisor is KVM, or QEMU's TCG with useEmulation"},
	{path: "configuration.changedBlockTrackingLabelSelectors", why: "there are no backups"},
	{path: "configuration.persistentReservationConfiguration",
		why: "a VirtualMachineInstance with a reservation is refused"},
	{path: "configuration.confidentialCompute", why: "a VirtualMachineInstance with launchSecurity is refused"},
	{path: "configuration.roleAggregationStrategy", why: "leave the labels aggregate-to-* out of the manifests",
		asHere: harmless{texts: []string{"AggregateToDefault"}}},
	{path: "configuration.network.permitSlirpInterface", why: "slirp interfaces are refused"},
	{path: "configuration.network.binding", why: "interfaces are refused that name a plugin with more than " +
		"domainAttachmentType managedTap and migration", asHere: harmless{bindings: true}},
	{path: developer + "featureGates", why: "what is supported needs no gate but " + ImageVolumeGate +
		", and the rest is refused by name", asHere: harmless{texts: []string{ImageVolumeGate}}},
	{path: developer + "disabledFeatureGates", why: "what is supported needs no gate but " + ImageVolumeGate,
		asHere: harmless{texts: []string{ImageVolumeGate}}},
	{path: developer + "pvcTolerateLessSpaceUpToPercent", why: "a disk may be 10 % smaller than its claim",
		asHere: harmless{texts: []string{"10"}}},
	{path: developer + "minimumReservePVCBytes", why: "5.5 % of a claim are left to its file system"},
	{path: developer + "diskVerification", why: "no program reads the format of a disk"},
	{path: developer + "clusterProfiler", why: "the components have no profiler"},
	{path: developer + "logVerbosity.virtOperator", why: "there is no operator"},
	{path: developer + "logVerbosity.virtSynchronizationController", why: oneCluster},
}

const (
	developer      = "configuration.developerConfiguration."
	migrations     = "configuration.migrations."
	byInstallation = "the manifests or the Helm chart install the components: set it there"
	byMonitoring   = "scraping is configured where Prometheus is; docs/metrics.md has an example"
	byImage        = "the firmware is in virt-launcher's image"
	oneCluster     = "no guest moves to another cluster"
	onlyAMD64      = "guests are amd64 or arm64"
	fixedRates     = "the components' request rates are fixed"
)

// IneffectiveFields returns the fields of a KubeVirt's spec that are set and change nothing. It is
// pure. A value that is empty, 0 or false counts as not set.
func IneffectiveFields(spec *KubeVirtSpec) ([]Ineffective, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encode the spec: %w", err)
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, fmt.Errorf("decode the spec: %w", err)
	}
	var out []Ineffective
	for _, f := range ineffectiveFields {
		value := lookup(fields, strings.Split(f.path, "."))
		if isSet(value) && !f.asHere.has(value) && (f.with == "" || !isSet(lookup(fields, strings.Split(f.with, ".")))) {
			out = append(out, Ineffective{"spec." + f.path, f.why})
		}
	}
	return out, nil
}

func lookup(value any, path []string) any {
	for _, name := range path {
		object, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = object[name]
	}
	return value
}

// isSet reports whether a value holds anything but empty objects, empty lists and zero values.
func isSet(value any) bool {
	switch v := value.(type) {
	case nil:
		return false
	case map[string]any:
		for _, inner := range v {
			if isSet(inner) {
				return true
			}
		}
		return false
	case []any:
		return len(v) > 0
	case bool:
		return v
	case string:
		return v != ""
	case float64:
		return v != 0
	}
	return true
}
