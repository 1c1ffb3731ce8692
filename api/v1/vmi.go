package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// VirtualMachineInstance is one running guest: one pod, one QEMU process. It
// runs once; when the guest powers off it is Succeeded and stays so.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=virtualmachineinstances,shortName=vmi;vmis,categories=all
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=.status.nodeName
// +kubebuilder:selectablefield:JSONPath=.status.migrationState.targetNode
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=.metadata.creationTimestamp
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=.status.phase
// +kubebuilder:printcolumn:name="IP",type=string,JSONPath=.status.interfaces[0].ipAddress
// +kubebuilder:printcolumn:name="NodeName",type=string,JSONPath=.status.nodeName
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=.status.conditions[?(@.type=='Ready')].status
// +kubebuilder:printcolumn:name="Live-Migratable",type=string,JSONPath=.status.conditions[?(@.type=='LiveMigratable')].status,priority=1
// +kubebuilder:printcolumn:name="Paused",type=string,JSONPath=.status.conditions[?(@.type=='Paused')].status,priority=1
//
// +kubebuilder:validation:XValidation:rule="!has(self.spec.domain.devices) || !has(self.spec.domain.devices.interfaces) || self.spec.domain.devices.interfaces.all(i, has(i.masquerade) || has(i.bridge) || has(i.sriov) || has(i.passtBinding) || has(i.binding) || has(i.slirp) || has(i.macvtap) || has(i.passt))",message="exactly one binding must be set (supported: bridge, masquerade, sriov, passtBinding, binding)",fieldPath=".spec.domain.devices.interfaces"
type VirtualMachineInstance struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec VirtualMachineInstanceSpec `json:"spec"`
	// +optional
	Status VirtualMachineInstanceStatus `json:"status,omitempty"`
}

// VirtualMachineInstanceList is a list of VirtualMachineInstances.
//
// +kubebuilder:object:root=true
type VirtualMachineInstanceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VirtualMachineInstance `json:"items"`
}

// VirtualMachineInstanceSpec describes the guest and where its pod may run.
type VirtualMachineInstanceSpec struct {
	// Architecture of the guest; the pod gets it as the node selector
	// kubernetes.io/arch, unless the cluster's configuration has guests of arm64 emulated. Default: that of the cluster's configuration, else amd64.
	// +optional
	// +kubebuilder:validation:Enum=amd64;arm64
	Architecture string `json:"architecture,omitempty"`

	// Domain describes the virtual hardware.
	Domain DomainSpec `json:"domain"`

	// NodeSelector is copied to the launcher pod.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Affinity is copied to the launcher pod: kubectl explain pod.spec.affinity.
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`
	// Tolerations are copied to the launcher pod: kubectl explain pod.spec.tolerations.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// TopologySpreadConstraints are copied to the launcher pod: kubectl explain pod.spec.topologySpreadConstraints.
	// +optional
	// +listType=map
	// +listMapKey=topologyKey
	// +listMapKey=whenUnsatisfiable
	// +kubebuilder:validation:MaxItems=64
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`
	// PriorityClassName of the launcher pod.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// SchedulerName of the launcher pod.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	SchedulerName string `json:"schedulerName,omitempty"`
	// ServiceAccountName of the launcher pod, in its namespace: its image pull secrets, and what
	// policies say of it, hold for the pod. The pod gets no token of it. Default: default.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// StartStrategy Paused: the guest's CPUs wait until it is unpaused. Refused with a
	// livenessProbe by HTTP or TCP.
	// +optional
	// +kubebuilder:validation:Enum=Paused
	StartStrategy StartStrategy `json:"startStrategy,omitempty"`
	// TerminationGracePeriodSeconds is how long the guest may take to shut down after the ACPI
	// power button, before QEMU is ended. Unit: seconds. Default: 30.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty"`
	// EvictionStrategy says what an eviction of the launcher pod does, such as kubectl drain's. None:
	// the eviction ends the guest. LiveMigrate: the eviction is refused until the guest has moved to
	// another node; where there is no other node, the eviction ends the guest. LiveMigrateIfPossible:
	// the same, and a guest that cannot move is ended. External: the eviction is refused, and
	// status.evacuationNodeName asks another program to bring the guest elsewhere. Default: the
	// KubeVirt object's configuration.evictionStrategy.
	// +optional
	// +kubebuilder:validation:Enum=None;LiveMigrate;LiveMigrateIfPossible;External
	EvictionStrategy *EvictionStrategy `json:"evictionStrategy,omitempty"`

	// Hostname of the guest and of the launcher pod. Default: the first label
	// of the object's name.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Hostname string `json:"hostname,omitempty"`
	// Subdomain: with a headless Service of this name, the guest's full name
	// is hostname.subdomain.namespace.svc and the cluster's domain.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Subdomain string `json:"subdomain,omitempty"`
	// DNSPolicy of the launcher pod. DHCP tells the guest the pod's name servers.
	// +optional
	// +kubebuilder:validation:Enum=ClusterFirst;ClusterFirstWithHostNet;Default;None
	DNSPolicy corev1.DNSPolicy `json:"dnsPolicy,omitempty"`
	// DNSConfig of the launcher pod: kubectl explain pod.spec.dnsConfig.
	// +optional
	DNSConfig *corev1.PodDNSConfig `json:"dnsConfig,omitempty"`

	// LivenessProbe: a guest that fails it is ended as by a deletion of its launcher pod: by
	// the ACPI power button, then QEMU's end after the grace period. With a probe by HTTP or
	// TCP the guest cannot be paused: the kubelet would end it (KubeVirt: with any but
	// guestAgentPing).
	// +optional
	LivenessProbe *Probe `json:"livenessProbe,omitempty"`
	// ReadinessProbe: while the guest passes it, the VMI is Ready and Services send to the
	// guest.
	// +optional
	ReadinessProbe *Probe `json:"readinessProbe,omitempty"`
	// AccessCredentials are SSH keys and passwords for the guest, from Secrets.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	AccessCredentials []AccessCredential `json:"accessCredentials,omitempty"`
	// ResourceClaims are refused: not supported yet: no device of the node is offered to pods yet.
	// +optional
	ResourceClaims UnsupportedList `json:"resourceClaims,omitempty" later:"no device of the node is offered to pods yet"`
	// UtilityVolumes are refused: not supported yet: there is no hotplug yet.
	// +optional
	UtilityVolumes UnsupportedList `json:"utilityVolumes,omitempty" later:"there is no hotplug yet"`

	// Networks the interfaces connect to, matched by name.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	Networks []Network `json:"networks,omitempty"`

	// Volumes the disks show, matched by name.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	Volumes []Volume `json:"volumes,omitempty"`
}

// StartStrategy says how a guest starts.
type StartStrategy string

// StartStrategyPaused starts a guest whose CPUs do not run yet.
const StartStrategyPaused StartStrategy = "Paused"

// EvictionStrategy says what an eviction of the pod does to the guest.
type EvictionStrategy string

// Eviction strategies.
const (
	EvictionStrategyNone                  EvictionStrategy = "None"
	EvictionStrategyLiveMigrate           EvictionStrategy = "LiveMigrate"
	EvictionStrategyLiveMigrateIfPossible EvictionStrategy = "LiveMigrateIfPossible"
	EvictionStrategyExternal              EvictionStrategy = "External"
)

// Moves reports whether an eviction with the strategy has the guest move to another node.
func (s *EvictionStrategy) Moves() bool {
	return s != nil && (*s == EvictionStrategyLiveMigrate || *s == EvictionStrategyLiveMigrateIfPossible)
}

// Refuses reports whether evictions with the strategy may be refused whatever the guest is like.
func (s EvictionStrategy) Refuses() bool {
	return s == EvictionStrategyLiveMigrate || s == EvictionStrategyExternal
}

// VirtualMachineInstancePhase is where a VMI is in its life. It never goes back.
type VirtualMachineInstancePhase string

// Phases, in order. virt-controller writes Pending, Scheduling, Scheduled and the two final
// ones, virt-handler Running.
const (
	// Pending: accepted, no pod yet.
	Pending VirtualMachineInstancePhase = "Pending"
	// Scheduling: the launcher pod exists.
	Scheduling VirtualMachineInstancePhase = "Scheduling"
	// Scheduled: the launcher runs on its node and waits for virt-handler.
	Scheduled VirtualMachineInstancePhase = "Scheduled"
	// Running: the guest's CPUs run.
	Running VirtualMachineInstancePhase = "Running"
	// Succeeded: the guest powered itself off.
	Succeeded VirtualMachineInstancePhase = "Succeeded"
	// Failed: the guest ended in any other way, or never started.
	Failed VirtualMachineInstancePhase = "Failed"
)

// VirtualMachineInstanceStatus is what is known of the guest.
type VirtualMachineInstanceStatus struct {
	// NodeName is the node of the launcher pod.
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// Reason says in one word why the VMI is Failed.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Conditions of the guest and its pod.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []VirtualMachineInstanceCondition `json:"conditions,omitempty"`
	// +optional
	// +kubebuilder:validation:Enum=Pending;Scheduling;Scheduled;Running;Succeeded;Failed
	Phase VirtualMachineInstancePhase `json:"phase,omitempty"`
	// PhaseTransitionTimestamps says when each phase was entered.
	// +optional
	// +listType=atomic
	PhaseTransitionTimestamps []PhaseTransitionTimestamp `json:"phaseTransitionTimestamps,omitempty"`
	// Interfaces of the guest: first those in the spec, in its order, then others that the
	// guest agent reports, up to 10 in all.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Interfaces []NetworkInterfaceStatus `json:"interfaces,omitempty"`
	// VolumeStatus has one entry per volume, in the spec's order, and one for the claim with the guest's state, which has
	// the claim's name.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=257
	VolumeStatus []VolumeStatus `json:"volumeStatus,omitempty"`
	// MigratedVolumes are the volumes whose disks the migration that is under way copies to other claims.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	MigratedVolumes []StorageMigratedVolumeInfo `json:"migratedVolumes,omitempty"`
	// ActivePods maps the UID of each launcher pod of this VMI to its node.
	// +optional
	ActivePods map[types.UID]string `json:"activePods,omitempty"`
	// LauncherPods are the launcher pods of this VMI and their addresses. KubeVirt
	// has no such field. virt-controller copies it from the pods' status;
	// virt-handler takes only a network namespace that has these addresses.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	LauncherPods []LauncherPod `json:"launcherPods,omitempty"`
	// Bindings: the plugins of interfaces when the guest was started; not KubeVirt's.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=31
	Bindings []InterfaceBinding `json:"bindings,omitempty"`
	// LauncherPod is the name of the launcher pod that has the guest, once the guest has moved. Empty: the
	// guest is in its first pod. KubeVirt has no such field.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	LauncherPod string `json:"launcherPod,omitempty"`
	// MigrationState is the state of the last migration.
	// +optional
	MigrationState *VirtualMachineInstanceMigrationState `json:"migrationState,omitempty"`
	// MigrationMethod is LiveMigration, or BlockMigration if disks are copied too. It is empty if the guest
	// cannot move.
	// +optional
	// +kubebuilder:validation:Enum=LiveMigration;BlockMigration
	MigrationMethod MigrationMethod `json:"migrationMethod,omitempty"`
	// MigrationTransport is Unix.
	// +optional
	// +kubebuilder:validation:Enum=Unix
	MigrationTransport string `json:"migrationTransport,omitempty"`
	// EvacuationNodeName is the node that the guest is asked to leave, by an eviction of its launcher pod.
	// virt-api writes it. It stays until the guest has left, or the evacuation is cancelled.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	EvacuationNodeName string `json:"evacuationNodeName,omitempty"`
	// QOSClass of the launcher pod.
	// +optional
	QOSClass *string `json:"qosClass,omitempty"`
	// Memory of the guest, and what the launcher pod books besides it.
	// +optional
	Memory *MemoryStatus `json:"memory,omitempty"`
	// Machine is what QEMU was started as.
	// +optional
	Machine *Machine `json:"machine,omitempty"`
	// RuntimeUser is the user ID that QEMU runs as.
	// +optional
	RuntimeUser int64 `json:"runtimeUser,omitempty"`
	// TopologyHints are what the guest's node must be like. virt-controller finds them out before the guest starts.
	// +optional
	TopologyHints *TopologyHints `json:"topologyHints,omitempty"`
	// LauncherContainerImageVersion is the image of the launcher that has the guest, as virt-controller asked for it.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	LauncherContainerImageVersion string `json:"launcherContainerImageVersion,omitempty"`
	// GuestOSInfo is the guest's operating system, as its guest agent reported it last. The
	// guest controls what is reported.
	// +optional
	GuestOSInfo VirtualMachineInstanceGuestOSInfo `json:"guestOSInfo,omitzero"`
	// FSFreezeStatus is "frozen" while the guest's file systems are frozen by the subresource
	// freeze: no program in the guest can write to them.
	// +optional
	// +kubebuilder:validation:MaxLength=16
	FSFreezeStatus string `json:"fsFreezeStatus,omitempty"`
}

// LauncherPod is what the API server knows of a launcher pod.
type LauncherPod struct {
	// Name of the pod.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// UID of the pod: its key in activePods once it is bound to a node.
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// IPs of the pod: at most one of each family. None until the kubelet has
	// reported them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	IPs []string `json:"ips,omitempty"`
	// Devices are the node's PCI addresses of interfaces with sriov, as Multus says.
	// +optional
	// +kubebuilder:validation:MaxProperties=31
	Devices map[string]PCIAddress `json:"devices,omitempty"`
}

// PCIAddress of a device on the node.
//
// +kubebuilder:validation:MaxLength=12
type PCIAddress string

// PhaseTransitionTimestamp says when a phase was entered.
type PhaseTransitionTimestamp struct {
	Phase VirtualMachineInstancePhase `json:"phase,omitempty"`
	// PhaseTransitionTimestamp is when it was entered.
	PhaseTransitionTimestamp metav1.Time `json:"phaseTransitionTimestamp,omitempty"`
}

// NetworkInterfaceStatus is what is known of one of the guest's interfaces.
type NetworkInterfaceStatus struct {
	// IP under which the guest is reached; with masquerade, the pod's.
	// +optional
	IP string `json:"ipAddress,omitempty"`
	// IPs are all addresses of the interface.
	// +optional
	// +listType=atomic
	IPs []string `json:"ipAddresses,omitempty"`
	// MAC is the guest interface's hardware address.
	// +optional
	MAC string `json:"mac,omitempty"`
	// Name of the interface in the spec.
	// +optional
	Name string `json:"name,omitempty"`
	// PodInterfaceName is the link in the pod that it is connected to.
	// +optional
	PodInterfaceName string `json:"podInterfaceName,omitempty"`
	// InterfaceName is the interface's name in the guest, as its guest agent says.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	InterfaceName string `json:"interfaceName,omitempty"`
	// InfoSource is "domain", "guest-agent", or both with a comma. The guest controls what its
	// agent reports.
	// +optional
	InfoSource string `json:"infoSource,omitempty"`
	// QueueCount is the number of queues.
	// +optional
	QueueCount int32 `json:"queueCount,omitempty"`
	// LinkState is up or down: the state of the link of the guest's card. Without a value it is not known.
	// +optional
	LinkState InterfaceState `json:"linkState,omitempty"`
	// IPAM says, of an interface on a network of Multus, whether the network has given it an IPv4
	// address. The guest then cannot move. Without a value it is not known.
	// +optional
	IPAM *bool `json:"ipam,omitempty"`
}

// VirtualMachineInstanceCondition is one condition of a VMI.
type VirtualMachineInstanceCondition struct {
	Type ConditionType `json:"type"`
	// Status is True, False or Unknown.
	Status metav1.ConditionStatus `json:"status"`
	// LastProbeTime has no value; it is there for KubeVirt's clients.
	// +optional
	// +nullable
	LastProbeTime metav1.Time `json:"lastProbeTime,omitempty"`
	// LastTransitionTime is when the status changed last.
	// +optional
	// +nullable
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
	// Reason is why, in one word.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message is why, in a sentence.
	// +optional
	Message string `json:"message,omitempty"`
	// ObservedGeneration is the generation of the VirtualMachine that the condition is about;
	// KubeVirt has no such field. Without it, kubectl wait would use status.observedGeneration,
	// by which the guest runs, and take conditions for outdated until a restart.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// Labels, annotations and finalizers that others rely on; KubeVirt's names.
const (
	// AppLabel is "virt-launcher" on launcher pods.
	AppLabel = "kubevirt.io"
	// CreatedByLabel holds the VMI's UID on its pods.
	CreatedByLabel = "kubevirt.io/created-by"
	// VirtualMachineInstanceIDLabel holds the VMI's name on its pods;
	// "virtctl expose" and NetworkPolicies select by it.
	VirtualMachineInstanceIDLabel = "vmi.kubevirt.io/id"
	// VirtualMachineNameLabel holds the guest's hostname on its pods, as in KubeVirt: the VMI's name, unless the spec names a
	// hostname. CNI plugins and old versions of "virtctl expose" select by it.
	VirtualMachineNameLabel = "vm.kubevirt.io/name"
	// NodeNameLabel of a VMI is the name of the node that has its guest. Objects of a CustomResourceDefinition had no field
	// selectors for long, so programs select VMIs by it.
	NodeNameLabel = "kubevirt.io/nodeName"
	// OutdatedLauncherLabel is on VMIs whose launchers have another image than those of new VMIs. Its value is empty.
	OutdatedLauncherLabel = "kubevirt.io/outdatedLauncherImage"
	// DomainAnnotation holds the VMI's name on its pods.
	DomainAnnotation = "kubevirt.io/domain"
	// MemoryOverheadAnnotation holds the memory that a launcher pod books besides the guest's, as a quantity.
	MemoryOverheadAnnotation = "kubeqemu.io/memory-overhead"
	// KeepLauncherAnnotation set to "true" lets the launcher pod live on after
	// the guest failed, until it or the VMI is deleted, so that somebody can
	// look around in it. The VMI stays Running meanwhile, and not Ready.
	KeepLauncherAnnotation = "kubevirt.io/keep-launcher-alive-after-failure"
	// PauseGuestAgentProbesAnnotation set to "true" holds a VMI's guestAgentPing probes: they
	// succeed, and the guest agent is not asked. It may be set and removed while the guest runs.
	PauseGuestAgentProbesAnnotation = "kubevirt.io/pause-guest-agent-probes"
	// EvictOnlyAnnotation is on launcher pods. The descheduler then takes a refused eviction that began a migration for one that
	// goes on, and not for a failure.
	EvictOnlyAnnotation = "descheduler.alpha.kubernetes.io/request-evict-only"
	// SchedulableLabel is "true" on nodes whose virt-handler renews its Lease.
	SchedulableLabel = "kubevirt.io/schedulable"
	// VMIFinalizer keeps a VMI until its pods are gone.
	VMIFinalizer = "kubevirt.io/foregroundDeleteVirtualMachine"
)

// IsFinal reports whether the guest has ended for good.
func (vmi *VirtualMachineInstance) IsFinal() bool {
	return vmi.Status.Phase == Succeeded || vmi.Status.Phase == Failed
}

// LauncherPodIPs returns the addresses of a launcher pod, by the pod's name. It
// returns none while they are unknown.
func (s *VirtualMachineInstanceStatus) LauncherPodIPs(pod string) []string {
	for _, p := range s.LauncherPods {
		if p.Name == pod {
			return p.IPs
		}
	}
	return nil
}

// LauncherDevices returns the network cards of the node that a launcher pod got, by interface, as Multus says.
func (s *VirtualMachineInstanceStatus) LauncherDevices(pod string) map[string]PCIAddress {
	for _, p := range s.LauncherPods {
		if p.Name == pod {
			return p.Devices
		}
	}
	return nil
}

// DefaultGracePeriodSeconds is the grace period of a VMI that names none.
const DefaultGracePeriodSeconds int64 = 30

// GracePeriodSeconds returns how long the guest has to go down by itself, in seconds.
func (vmi *VirtualMachineInstance) GracePeriodSeconds() int64 {
	if vmi.Spec.TerminationGracePeriodSeconds != nil {
		return *vmi.Spec.TerminationGracePeriodSeconds
	}
	return DefaultGracePeriodSeconds
}
