package v1

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// TestMigratableByAddressAndDisks: a guest moves if every node can have its address and its disks, or if its disks can
// be copied.
func TestMigratableByAddressAndDisks(t *testing.T) {
	for name, c := range map[string]struct {
		spec, annotation string
		modes            []corev1.PersistentVolumeAccessMode
		reason           string
		copied           []string
	}{
		"bare": {`{}`, "", nil, "", nil},
		"masquerade": {`{domain: {devices: {interfaces: [{name: a, masquerade: {}}]}}}`, "", nil, "",
			nil},
		"bridge": {`{domain: {devices: {interfaces: [{name: a, bridge: {}}]}}}`, "", nil,
			ReasonInterfaceNotMigratable, nil},
		"bridge to Multus, not known yet": {
			`{networks: [{name: a, multus: {networkName: lan}}], domain: {devices: {interfaces: [{name: a, bridge: {}}]}}}`, "",
			nil, ReasonInterfaceNotMigratable, nil},
		"bridge to Multus as the pod's own": {
			`{networks: [{name: a, multus: {networkName: lan, default: true}}], domain: {devices: {interfaces: [{name: a, bridge: {}}]}}}`, "", nil, ReasonInterfaceNotMigratable, nil},
		"bridge that may": {`{domain: {devices: {interfaces: [{name: a, bridge: {}}]}}}`,
			AllowPodBridgeMigrationAnnotation, nil, "", nil},
		"local disks": {
			`{domain: {devices: {disks: [{name: a, disk: {}}, {name: b, cdrom: {}}, {name: c, disk: {readonly: true}}, {name: d}]}},
			volumes: [{name: a, containerDisk: {image: x}}, {name: b, containerDisk: {image: x}}, {name: c, emptyDisk: {capacity: 1Mi}}, {name: d, cloudInitNoCloud: {userData: x}}]}`, "", nil, "", []string{"a", "d"}},
		"disks of files": {
			`{domain: {devices: {disks: [{name: a, disk: {bus: virtio}}, {name: b, cdrom: {bus: sata}}, {name: c, disk: {bus: sata}}, {name: d, cdrom: {}}]}},
			volumes: [{name: a, configMap: {name: x}}, {name: b, secret: {secretName: x}}, {name: c, downwardAPI: {}}, {name: d, sysprep: {secret: {name: x}}}]}`, "", nil, "", []string{"a", "b", "c", "d"}},
		"a token": {
			`{domain: {devices: {disks: [{name: a, cdrom: {}}]}}, volumes: [{name: a, serviceAccount: {serviceAccountName: x}}]}`, "", nil, ReasonDisksNotMigratable, []string{"a"}},
		"shared claim": {`{domain: {devices: {disks: [{name: a}]}}, volumes: [{name: a, dataVolume: {name: x}}]}`, "",
			[]corev1.PersistentVolumeAccessMode{"ReadWriteOnce", "ReadWriteMany"}, "", nil},
		"claim of one node": {
			`{domain: {devices: {disks: [{name: a}]}}, volumes: [{name: a, persistentVolumeClaim: {claimName: x}}]}`, "",
			[]corev1.PersistentVolumeAccessMode{"ReadWriteOnce"}, ReasonDisksNotMigratable, nil},
		"unknown claim": {`{volumes: [{name: b, persistentVolumeClaim: {claimName: x}}]}`, "", nil,
			ReasonDisksNotMigratable, nil},
		"only written by one": {`{volumes: [{name: a, persistentVolumeClaim: {claimName: x}}]}`, "",
			[]corev1.PersistentVolumeAccessMode{"ReadOnlyMany"}, ReasonDisksNotMigratable, nil},
		"only read": {`{volumes: [{name: a, persistentVolumeClaim: {claimName: x, readOnly: true}}]}`, "",
			[]corev1.PersistentVolumeAccessMode{"ReadOnlyMany"}, "", nil},
		"overlay": {
			`{domain: {devices: {disks: [{name: a}]}}, volumes: [{name: a, ephemeral: {persistentVolumeClaim: {claimName: x}}}]}`, "",
			[]corev1.PersistentVolumeAccessMode{"ReadOnlyMany"}, "", []string{"a"}},
		"host disk": {
			`{domain: {devices: {disks: [{name: a}]}}, volumes: [{name: a, hostDisk: {path: /x/y, type: Disk}}]}`, "", nil,
			ReasonDisksNotMigratable, nil},
		"the node's Hyper-V": {`{domain: {features: {hypervPassthrough: {}}}}`, "", nil, ReasonHypervNotMigratable,
			nil},
		"Hyper-V": {
			`{domain: {features: {hypervPassthrough: {enabled: false}, hyperv: {relaxed: {}, frequencies: {}, reenlightenment: {enabled: false}}}}}`, "", nil, "", nil},
		"Hyper-V's TSC": {`{domain: {features: {hyperv: {reenlightenment: {}}}}}`, "", nil,
			ReasonTSCNotMigratable, nil},
		"an invariant TSC": {`{domain: {cpu: {features: [{name: aes}, {name: invtsc}]}}}`, "", nil,
			ReasonTSCNotMigratable, nil},
		"such a TSC if it is there": {`{domain: {cpu: {features: [{name: invtsc, policy: optional}]}}}`, "", nil,
			ReasonTSCNotMigratable, nil},
		"such a TSC by force": {`{domain: {cpu: {features: [{name: invtsc, policy: force}]}}}`, "", nil,
			ReasonTSCNotMigratable, nil},
		"no invariant TSC": {`{domain: {cpu: {features: [{name: invtsc, policy: disable}, {name: aes}]}}}`, "", nil,
			"", nil},
		"a forbidden TSC": {`{domain: {cpu: {features: [{name: invtsc, policy: forbid}]}}}`, "", nil, "", nil},
		"shared host disk": {
			`{domain: {devices: {disks: [{name: a}]}}, volumes: [{name: a, hostDisk: {path: /x/y, type: Disk, shared: true}}]}`,
			"", nil, "", nil},
	} {
		vmi := &VirtualMachineInstance{}
		if err := yaml.UnmarshalStrict([]byte(c.spec), &vmi.Spec); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if c.annotation != "" {
			vmi.Annotations = map[string]string{c.annotation: ""}
		}
		if c.modes != nil {
			vmi.Status.VolumeStatus = []VolumeStatus{{Name: "a",
				PersistentVolumeClaimInfo: &PersistentVolumeClaimInfo{AccessModes: c.modes}}}
		}
		reason, message := vmi.NotMigratable()
		if reason != c.reason || (reason == "") != (message == "") || reason != "" && !strings.HasPrefix(message, "spec.") {
			t.Errorf("%s: %q, %q, want %q", name, reason, message, c.reason)
		}
		if shares := strings.HasPrefix(name,
			"shared"); vmi.SharesDisks() != (shares || name == "claim of one node" || name == "host disk") {
			t.Errorf("%s: shares disks: %v", name, vmi.SharesDisks())
		}
		if got := vmi.CopiedDisks(); !slices.Equal(got, c.copied) ||
			(vmi.Method() == MethodBlockMigration) != (len(c.copied) > 0) {
			t.Errorf("%s: copies %v by %s, want %v", name, got, vmi.Method(), c.copied)
		}
	}
}

// TestInterfaceWithoutIPAMIsMigratable: a guest on a network of Multus moves if virt-handler has seen that the network
// has no IPAM.
func TestInterfaceWithoutIPAMIsMigratable(t *testing.T) {
	for name, c := range map[string]struct {
		status []NetworkInterfaceStatus
		says   string
	}{
		"no IPAM": {[]NetworkInterfaceStatus{{Name: "default"},
			{Name: "lan", IP: "192.168.1.50", IPAM: ptr.To(false)}}, ""},
		"IPAM": {[]NetworkInterfaceStatus{{Name: "lan", IP: "192.0.2.9", IPAM: ptr.To(true)}},
			"spec.domain.devices.interfaces[1], lan, is on a network of Multus that gives it an address by IPAM"},
		"no status": {nil,
			"interfaces[1], lan, is on a network of Multus, of which it is not known yet"},
		"of a virt-handler before": {[]NetworkInterfaceStatus{{Name: "lan", PodInterfaceName: "pod0"}},
			"not known yet"},
		"another interface has no IPAM": {[]NetworkInterfaceStatus{{Name: "default", IPAM: ptr.To(false)}},
			"not known yet"},
		"an interface of the agent's too": {[]NetworkInterfaceStatus{{InterfaceName: "lan", IPAM: ptr.To(false)}},
			"not known yet"},
	} {
		vmi := &VirtualMachineInstance{}
		// The annotation is about the pod network alone.
		vmi.Annotations = map[string]string{AllowPodBridgeMigrationAnnotation: ""}
		vmi.Spec.Networks = []Network{{Name: "default", Pod: &PodNetwork{}},
			{Name: "lan", Multus: &MultusNetwork{NetworkName: "lan"}}}
		vmi.Spec.Domain.Devices.Interfaces = []Interface{{Name: "default", Masquerade: &InterfaceMasquerade{}},
			{Name: "lan", Bridge: &InterfaceBridge{}}}
		vmi.Status.Interfaces = c.status
		reason, message := vmi.NotMigratable()
		if c.says == "" && reason != "" || c.says != "" &&
			(reason != ReasonInterfaceNotMigratable || !strings.Contains(message, c.says) ||
				!strings.Contains(message, "a network without IPAM can move")) {
			t.Errorf("%s: %q, %q, want %q", name, reason, message, c.says)
		}
	}
}

// TestMigrationConfigurationDefaults: what is not set has KubeVirt's value.
func TestMigrationConfigurationDefaults(t *testing.T) {
	type values struct {
		parallel, outbound             int
		bandwidth                      int64
		completion, progress, downtime time.Duration
		converge                       bool
	}
	of := func(c *MigrationConfiguration) values {
		return values{c.Parallel(), c.Outbound(), c.Bandwidth(), c.Completion(1<<30 + 1), c.Progress(), c.Downtime(),
			c.AutoConverge()}
	}
	defaults := values{5, 2, 0, 300 * time.Second, 150 * time.Second, 300 * time.Millisecond, false}
	if got := of(nil); got != defaults {
		t.Errorf("without a configuration: %+v", got)
	}
	if got := of(
		(&KubeVirtConfiguration{MigrationConfiguration: &ClusterMigrationConfiguration{}}).Migrations()); got != defaults {
		t.Errorf("of an empty configuration: %+v", got)
	}
	if got := of((*KubeVirtConfiguration)(nil).Migrations()); got != defaults {
		t.Errorf("of no KubeVirt: %+v", got)
	}
	set := &MigrationConfiguration{ParallelMigrationsPerCluster: ptr.To[uint32](1),
		ParallelOutboundMigrationsPerNode: ptr.To[uint32](3), BandwidthPerMigration: ptr.To(resource.MustParse("64Mi")),
		CompletionTimeoutPerGiB: ptr.To[int64](10), ProgressTimeout: ptr.To[int64](20), MaxDowntimeMs: ptr.To[uint64](40),
		AllowAutoConverge: ptr.To(true)}
	if got, want := of(set),
		(values{1, 3, 64 << 20, 20 * time.Second, 20 * time.Second, 40 * time.Millisecond, true}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := set.Completion(0); got != 10*time.Second {
		t.Errorf("nothing takes %s", got)
	}
	// virt-handler never asks a launcher for limits that the launcher refuses.
	set.CompletionTimeoutPerGiB, set.ProgressTimeout = ptr.To[int64](math.MaxInt64), ptr.To[int64](math.MaxInt64)
	for bytes, want := range map[int64]time.Duration{1: 24 * time.Hour, 20 << 40: MaxMigrationTime,
		math.MaxInt64: MaxMigrationTime, math.MinInt64: 24 * time.Hour} {
		if got := set.Completion(bytes); got != want {
			t.Errorf("%d bytes take %s, want %s", bytes, got, want)
		}
	}
	if got := (*MigrationConfiguration)(nil).Completion(20 << 40); got != MaxMigrationTime {
		t.Errorf("20 TiB take %s by default", got)
	}
	if got := set.Progress(); got != 24*time.Hour {
		t.Errorf("a migration may stall for %s", got)
	}
}

// TestMigrationPhaseNeverGoesBack: a phase never goes back, and each is noted with its time.
func TestMigrationPhaseNeverGoesBack(t *testing.T) {
	m := &VirtualMachineInstanceMigration{}
	for i, p := range []VirtualMachineInstanceMigrationPhase{MigrationPending, MigrationScheduling, MigrationPending,
		MigrationRunning, MigrationTargetReady, MigrationFailed, MigrationSucceeded} {
		if m.IsFinal() != (i > 5) || m.IsUnderway() != (i > 1 && i < 6) {
			t.Errorf("before %s: final %v, under way %v", p, m.IsFinal(), m.IsUnderway())
		}
		m.Status.SetPhase(p, metav1.Unix(int64(i), 0))
	}
	if m.Status.Phase != MigrationFailed || len(m.Status.PhaseTransitionTimestamps) != 4 {
		t.Errorf("%+v", m.Status)
	}
	if at, never := m.Status.Entered(MigrationRunning),
		m.Status.Entered(MigrationTargetReady); at.Unix() != 3 || !never.IsZero() {
		t.Errorf("running since %s", at)
	}
}

// TestMigrationConditionTimeFollowsItsStatus: the time of a condition changes with its status.
func TestMigrationConditionTimeFollowsItsStatus(t *testing.T) {
	var s VirtualMachineInstanceMigrationStatus
	c := VirtualMachineInstanceMigrationCondition{Type: MigrationAbortRequested, Status: metav1.ConditionTrue}
	s.SetCondition(c, metav1.Unix(1, 0))
	c.Message = "again"
	s.SetCondition(c, metav1.Unix(2, 0))
	if got := s.Condition(c.Type); got.Message != "again" || got.LastTransitionTime.Unix() != 1 {
		t.Errorf("%+v", got)
	}
	c.Status = metav1.ConditionFalse
	s.SetCondition(c, metav1.Unix(3, 0))
	if got := s.Condition(c.Type); got.LastTransitionTime.Unix() != 3 || len(s.Conditions) != 1 {
		t.Errorf("%+v", got)
	}
	if s.RemoveCondition(c.Type); s.Condition(c.Type) != nil {
		t.Error("it is still there")
	}
}

// TestWhichLauncherPodHasTheGuest: the guest is in its first pod, until the status names another.
func TestWhichLauncherPodHasTheGuest(t *testing.T) {
	vmi := &VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "u"}}
	first, second := LauncherPodName("a", "u", FirstPod), LauncherPodName("a", "u", "m")
	if vmi.LauncherPod() != first || first == second {
		t.Errorf("the guest is in %q", vmi.LauncherPod())
	}
	vmi.Status.LauncherPods = []LauncherPod{{Name: first}, {Name: second}}
	if vmi.Status.LauncherPod = second; vmi.LauncherPod() != second ||
		!slices.Equal(vmi.LauncherPodNames(), []string{second, first}) {
		t.Errorf("the guest is in %q of %q", vmi.LauncherPod(), vmi.LauncherPodNames())
	}
}

// TestPostCopyAllowed: allowWorkloadDisruption follows allowPostCopy, and forbids post-copy where it is false.
func TestPostCopyAllowed(t *testing.T) {
	no, yes := ptr.To(false), ptr.To(true)
	for _, c := range []struct {
		postCopy, disruption *bool
		want                 bool
	}{{nil, nil, false}, {nil, yes, false}, {no, yes, false}, {yes, nil, true}, {yes, yes, true}, {yes, no, false}} {
		if got := (&MigrationConfiguration{AllowPostCopy: c.postCopy,
			AllowWorkloadDisruption: c.disruption}).PostCopy(); got != c.want {
			t.Errorf("%v, %v: %t", c.postCopy, c.disruption, got)
		}
	}
	if (*MigrationConfiguration)(nil).PostCopy() {
		t.Error("without a configuration post-copy is allowed")
	}
}
