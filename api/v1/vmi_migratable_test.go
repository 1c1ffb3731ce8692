package v1

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// TestMigratableFields: which fields of the machine, of its disks and of its volumes keep a guest on its node.
// docs/migration.md has the same in words. A line adds fields to a VMI and facts to its status.
func TestMigratableFields(t *testing.T) {
	once, many, readers := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		[]corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
	claim := func(volume string, modes []corev1.PersistentVolumeAccessMode) func(*VirtualMachineInstance) {
		return func(vmi *VirtualMachineInstance) {
			vmi.Status.VolumeStatus = append(vmi.Status.VolumeStatus,
				VolumeStatus{Name: volume,
					PersistentVolumeClaimInfo: &PersistentVolumeClaimInfo{ClaimName: "c", AccessModes: modes}})
		}
	}
	state := func(modes []corev1.PersistentVolumeAccessMode) func(*VirtualMachineInstance) {
		return claim("c", modes)
	}
	failed := func(kind ConditionType) func(*VirtualMachineInstance) {
		return func(vmi *VirtualMachineInstance) {
			vmi.Status.SetCondition(VirtualMachineInstanceCondition{Type: kind, Status: metav1.ConditionTrue}, metav1.Now())
		}
	}
	const disk, volume = "domain: {devices: {disks: [{name: v, disk: {bus: virtio}}]}}\nvolumes: [{name: v, ", "}]"
	filesystem := func(source string) string {
		return "domain: {devices: {filesystems: [{name: v, virtiofs: {}}]}}\nvolumes: [{name: v, " + source + "}]"
	}
	onClaim := "persistentVolumeClaim: {claimName: c}"
	tuned := func(fields string) string {
		return "domain: {devices: {disks: [{name: v, disk: {bus: virtio}, " + fields + "}]}}\nvolumes: [{name: v, " +
			onClaim + "}]"
	}
	for name, c := range map[string]struct {
		spec   string
		facts  func(*VirtualMachineInstance)
		reason string // empty: the guest can move
		word   string // of the message
	}{
		"UEFI": {"domain: {firmware: {bootloader: {efi: {secureBoot: false}}}}", nil, "", ""},
		"secure boot": {"domain: {features: {smm: {enabled: true}}, firmware: {bootloader: {efi: {}}}}",
			nil, "", ""},
		"variables on a shared claim": {"domain: {firmware: {bootloader: {efi: {persistent: true}}}}", state(many), "",
			""},
		"variables on a claim of a node": {"domain: {firmware: {bootloader: {efi: {persistent: true}}}}", state(once), "",
			""},
		"variables on an unknown claim": {"domain: {firmware: {bootloader: {efi: {persistent: true}}}}", nil,
			ReasonDisksNotMigratable, "nothing is known yet"},
		"TPM":                      {"domain: {devices: {tpm: {}}}", nil, "", ""},
		"TPM on a shared claim":    {"domain: {devices: {tpm: {persistent: true}}}", state(many), "", ""},
		"TPM on a claim of a node": {"domain: {devices: {tpm: {persistent: true}}}", state(once), "", ""},
		"TPM that has failed": {"domain: {devices: {tpm: {}}}", failed(ConditionTPMFailed),
			ReasonTPMNotMigratable, "TPM has failed"},
		"kernelBoot": {"domain: {firmware: {kernelBoot: {container: {image: i, kernelPath: /k}}}}", nil,
			"", ""},
		"ACPI table": {
			"domain: {firmware: {acpi: {slicNameRef: v}}}\nvolumes: [{name: v, secret: {secretName: s}}]", nil, "", ""},
		"chassis and serial": {"domain: {chassis: {serial: s}, firmware: {serial: s}}", nil, "", ""},
		"Hyper-V":            {"domain: {features: {hyperv: {relaxed: {}, vapic: {}}}}", nil, "", ""},
		"Hyper-V of the node": {"domain: {features: {hypervPassthrough: {enabled: true}}}", nil,
			ReasonHypervNotMigratable, "hypervPassthrough"},
		"reenlightenment, no TSC": {"domain: {features: {hyperv: {reenlightenment: {}}}}", nil,
			ReasonTSCNotMigratable, "reenlightenment"},
		"invtsc, no TSC": {"domain: {cpu: {features: [{name: invtsc}]}}", nil, ReasonTSCNotMigratable,
			"cpu.features[0]"},
		"clock and timers": {"domain: {clock: {timezone: Europe/Berlin, timer: {hpet: {present: false}}}}",
			nil, "", ""},
		"host-model":       {"domain: {cpu: {model: host-model}}", nil, "", ""},
		"host-passthrough": {"domain: {cpu: {model: host-passthrough}}", nil, "", ""},
		"dedicated CPUs": {"domain: {cpu: {dedicatedCpuPlacement: true, isolateEmulatorThread: true}}", nil,
			"", ""},
		"huge pages":  {"domain: {memory: {hugepages: {pageSize: 2Mi}}}", nil, "", ""},
		"I/O threads": {"domain: {ioThreadsPolicy: auto}", nil, "", ""},
		"panic device, sound and watchdog": {
			"domain: {devices: {panicDevices: [{}], sound: {name: s}, watchdog: {name: w, i6300esb: {}}}}", nil, "", ""},
		"tuned disk": {
			tuned("cache: none, io: native, errorPolicy: report, blockSize: {custom: {logical: 4096, physical: 4096}}"),
			claim("v", many), "", ""},
		"disk shared with other guests": {tuned("shareable: true"), claim("v", many), "", ""},
		"shared disk on one node": {tuned("shareable: true"), claim("v", once), ReasonDisksNotMigratable,
			"lack ReadWriteMany"},
		"claim of one node": {disk + onClaim + volume, claim("v", once), ReasonDisksNotMigratable,
			"lack ReadWriteMany"},
		"claim that is only read": {disk + "persistentVolumeClaim: {claimName: c, readOnly: true}" + volume,
			claim("v", readers), "", ""},
		"lun of one node": {
			"domain: {devices: {disks: [{name: v, lun: {bus: scsi}}]}}\nvolumes: [{name: v, " + onClaim + "}]", claim("v", once),
			ReasonDisksNotMigratable, "claim c"},
		"lun of all nodes": {
			"domain: {devices: {disks: [{name: v, lun: {bus: scsi}}]}}\nvolumes: [{name: v, " + onClaim + "}]", claim("v", many),
			"", ""},
		"container disk": {disk + "containerDisk: {image: i}" + volume, nil, "", ""},
		"empty disk":     {disk + "emptyDisk: {capacity: 1Gi}" + volume, nil, "", ""},
		"host disk": {disk + "hostDisk: {path: /d, type: Disk}" + volume, nil,
			ReasonDisksNotMigratable, "a file of its node"},
		"host disk of all nodes": {disk + "hostDisk: {path: /d, type: Disk, shared: true}" + volume, nil, "", ""},
		"configMap":              {disk + "configMap: {name: m}" + volume, nil, "", ""},
		"secret":                 {disk + "secret: {secretName: s}" + volume, nil, "", ""},
		"downwardAPI":            {disk + "downwardAPI: {fields: []}" + volume, nil, "", ""},
		"sysprep":                {disk + "sysprep: {configMap: {name: m}}" + volume, nil, "", ""},
		"serviceAccount": {disk + "serviceAccount: {serviceAccountName: a}" + volume, nil,
			ReasonDisksNotMigratable, "has a token"},
		"file system of a configMap": {filesystem("configMap: {name: m}"), nil, "", ""},
		"file system of all nodes":   {filesystem(onClaim), claim("v", many), "", ""},
		"file system of one node": {filesystem(onClaim), claim("v", once), ReasonVirtioFSNotMigratable,
			"lack ReadWriteMany"},
		"file system that has failed": {filesystem(onClaim), failed(ConditionFilesystemFailed),
			ReasonVirtioFSNotMigratable, "has failed"},
	} {
		vmi := &VirtualMachineInstance{}
		if err := yaml.UnmarshalStrict([]byte(c.spec), &vmi.Spec); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if c.facts != nil {
			c.facts(vmi)
		}
		if reason, message := vmi.NotMigratable(); reason != c.reason || !strings.Contains(message, c.word) ||
			(reason == "") != (message == "") {
			t.Errorf("%s: %q: %q; want %q with %q", name, reason, message, c.reason, c.word)
		}
	}
}
