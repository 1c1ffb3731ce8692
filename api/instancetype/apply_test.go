package instancetype

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func decode[T any](t *testing.T, text string) *T {
	t.Helper()
	if text == "" {
		return nil
	}
	object := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), object); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return object
}

const (
	small   = "{cpu: {guest: 4}, memory: {guest: 2Gi}}"
	devices = "domain: {devices: {disks: [{name: root}, {name: media, cdrom: {}}, {name: old, disk: {bus: sata}}], " +
		"interfaces: [{name: default}, {name: other, bridge: {}, model: e1000}], inputs: [{name: pointer}]}}\n" +
		"networks: [{name: default, pod: {}}, {name: other, pod: {}}]\n"
)

func TestApply(t *testing.T) {
	tests := []struct {
		name             string
		size, preference string
		spec             string
		want             string // the spec afterwards
	}{
		{"nothing", "", "", devices, devices},
		{"size", small, "", "domain: {}", "domain: {cpu: {sockets: 4, cores: 1, threads: 1}, memory: {guest: 2Gi}}"},
		{"size with everything", "{cpu: {guest: 1, model: Nehalem}, memory: {guest: 1000Mi, overcommitPercent: 25}, nodeSelector: {a: b}, schedulerName: mine}", "",
			"{nodeSelector: {c: d}, domain: {resources: {requests: {ephemeral-storage: 1Gi}}}}",
			"{nodeSelector: {a: b, c: d}, schedulerName: mine, domain: {cpu: {model: Nehalem, sockets: 1, cores: 1, threads: 1}, memory: {guest: 1000Mi}, " +
				"resources: {requests: {memory: 750Mi, ephemeral-storage: 1Gi}}}}"},
		{"cores", small, "cpu: {preferredCPUTopology: cores}", "domain: {}", "domain: {cpu: {sockets: 1, cores: 4, threads: 1}, memory: {guest: 2Gi}}"},
		{"threads, by the old name", small, "cpu: {preferredCPUTopology: preferThreads}", "domain: {}", "domain: {cpu: {sockets: 1, cores: 1, threads: 4}, memory: {guest: 2Gi}}"},
		{"any", small, "cpu: {preferredCPUTopology: any}", "domain: {}", "domain: {cpu: {sockets: 4, cores: 1, threads: 1}, memory: {guest: 2Gi}}"},
		{"spread", small, "cpu: {preferredCPUTopology: spread}", "domain: {}", "domain: {cpu: {sockets: 2, cores: 2, threads: 1}, memory: {guest: 2Gi}}"},
		{"spread by the old ratio", small, "{preferSpreadSocketToCoreRatio: 4, cpu: {preferredCPUTopology: spread}}", "domain: {}", "domain: {cpu: {sockets: 1, cores: 4, threads: 1}, memory: {guest: 2Gi}}"},
		{"spread over threads", small, "cpu: {preferredCPUTopology: spread, spreadOptions: {across: CoresThreads}}", "domain: {}", "domain: {cpu: {sockets: 1, cores: 2, threads: 2}, memory: {guest: 2Gi}}"},
		{"spread over all", small, "cpu: {preferredCPUTopology: spread, spreadOptions: {across: SocketsCoresThreads, ratio: 1}}", "domain: {}", "domain: {cpu: {sockets: 2, cores: 1, threads: 2}, memory: {guest: 2Gi}}"},
		{"one CPU is not spread", "{cpu: {guest: 1}, memory: {guest: 1Gi}}", "cpu: {preferredCPUTopology: spread}", "domain: {}", "domain: {cpu: {sockets: 1, cores: 1, threads: 1}, memory: {guest: 1Gi}}"},

		{"topology without size", "", "cpu: {preferredCPUTopology: cores}", "domain: {}", "domain: {}"},
		{"device preferences", "", "devices: {preferredDiskBus: virtio, preferredCdromBus: scsi, preferredInterfaceModel: virtio, preferredInterfaceMasquerade: {}, " +
			"preferredInputBus: virtio, preferredInputType: tablet, preferredRng: {}, preferredAutoattachGraphicsDevice: false, preferredVideoType: virtio}", devices,
			"domain: {devices: {disks: [{name: root, disk: {bus: virtio}}, {name: media, cdrom: {bus: scsi}}, {name: old, disk: {bus: sata}}], " +
				"interfaces: [{name: default, model: virtio, masquerade: {}}, {name: other, bridge: {}, model: e1000}], " +
				"inputs: [{name: pointer, bus: virtio, type: tablet}], rng: {}, autoattachGraphicsDevice: false}}\n" +
				"networks: [{name: default, pod: {}}, {name: other, pod: {}}]\n"},
		{"how disks are read and written", "", "devices: {preferredDiskCache: writeback, preferredDiskIO: threads, preferredDiskDedicatedIoThread: true, preferredDiskBlockSize: {matchVolume: {}}}",
			"domain: {devices: {disks: [{name: a}, {name: b, disk: {bus: virtio}}, {name: c, cdrom: {}}, {name: d, disk: {bus: virtio}, cache: none, io: native, dedicatedIOThread: false, blockSize: {custom: {logical: 512, physical: 4096}}}]}}",
			"domain: {devices: {disks: [{name: a, cache: writeback, io: threads}, {name: b, disk: {bus: virtio}, cache: writeback, io: threads, dedicatedIOThread: true, blockSize: {matchVolume: {}}}, " +
				"{name: c, cdrom: {}}, {name: d, disk: {bus: virtio}, cache: none, io: native, dedicatedIOThread: false, blockSize: {custom: {logical: 512, physical: 4096}}}]}}"},
		{"what a disk leaves no room for", "", "devices: {preferredDiskCache: writeback, preferredDiskIO: native, preferredDiskBlockSize: {custom: {logical: 4096, physical: 4096}}}",
			"domain: {devices: {disks: [{name: a, disk: {bus: sata}, shareable: true}, {name: b, disk: {bus: virtio}, io: native}, {name: c, disk: {bus: scsi}, cache: writethrough}, {name: d, disk: {bus: usb}, cache: none}]}}",
			"domain: {devices: {disks: [{name: a, disk: {bus: sata}, shareable: true, io: native}, {name: b, disk: {bus: virtio}, io: native, blockSize: {custom: {logical: 4096, physical: 4096}}}, " +
				"{name: c, disk: {bus: scsi}, cache: writethrough, blockSize: {custom: {logical: 4096, physical: 4096}}}, {name: d, disk: {bus: usb}, cache: none, io: native}]}}"},
		{"sound and panics", "", "devices: {preferredSoundModel: ac97, preferredPanicDeviceModel: pvpanic}", "domain: {devices: {sound: {name: a}, panicDevices: [{}, {model: isa}]}}",
			"domain: {devices: {sound: {name: a, model: ac97}, panicDevices: [{model: pvpanic}, {model: isa}]}}"},
		{"a size that SATA has", "", "devices: {preferredDiskBlockSize: {custom: {logical: 512, physical: 4096}}}", "domain: {devices: {disks: [{name: a, disk: {bus: sata}}]}}",
			"domain: {devices: {disks: [{name: a, disk: {bus: sata}, blockSize: {custom: {logical: 512, physical: 4096}}}]}}"},
		{"threads for disks", "{cpu: {guest: 1}, memory: {guest: 1Gi}, ioThreadsPolicy: supplementalPool, ioThreads: {supplementalPoolThreadCount: 4}}", "", "domain: {}",
			"domain: {ioThreadsPolicy: supplementalPool, ioThreads: {supplementalPoolThreadCount: 4}, cpu: {sockets: 1, cores: 1, threads: 1}, memory: {guest: 1Gi}}"},
		{"devices that the spec implies", "", "devices: {preferredDiskBus: virtio, preferredInterfaceModel: e1000, preferredInputBus: virtio, preferredAutoattachInputDevice: true, preferredInterfaceMasquerade: {}}",
			"{domain: {}, volumes: [{name: root, emptyDisk: {capacity: 1Gi}}]}",
			"domain: {devices: {disks: [{name: root, disk: {bus: virtio}}], inputs: [{name: default-0, bus: virtio}], autoattachInputDevice: true}}\n" +
				"volumes: [{name: root, emptyDisk: {capacity: 1Gi}}]\n"},
		{"no interface is wanted", "", "devices: {preferredAutoattachPodInterface: false, preferredInterfaceModel: e1000}", "domain: {}", "domain: {devices: {autoattachPodInterface: false}}"},
		{"machine preferences", "", "{machine: {preferredMachineType: pc-q35-7.2}, firmware: {preferredUseBios: true, preferredUseBiosSerial: true}, " +
			"features: {preferredAcpi: {enabled: false}, preferredApic: {}}, clock: {preferredClockOffset: {utc: {}}, preferredTimer: {hpet: {present: false}}}, " +
			"preferredSubdomain: sub, preferredTerminationGracePeriodSeconds: 3, preferredArchitecture: amd64}", "domain: {}",
			"{architecture: amd64, subdomain: sub, terminationGracePeriodSeconds: 3, domain: {machine: {type: pc-q35-7.2}, firmware: {bootloader: {bios: {useSerial: true}}}, " +
				"features: {acpi: {enabled: false}, apic: {}}, clock: {utc: {}, timer: {hpet: {present: false}}}}}"},
		{"UEFI", "", "{firmware: {preferredEfi: {secureBoot: false}, preferredUseSecureBoot: true}, features: {preferredSmm: {}}}", "domain: {}",
			"domain: {firmware: {bootloader: {efi: {secureBoot: false}}}, features: {smm: {}}}"},
		{"a CPU feature's other name", "", "cpu: {preferredCPUFeatures: [{name: lahf-lm}, {name: sse4_1}]}", "domain: {cpu: {features: [{name: lahf_lm, policy: disable}]}}", "domain: {cpu: {features: [{name: lahf_lm, policy: disable}, {name: sse4_1}]}}"},
		{"CPU features", "", "cpu: {preferredCPUFeatures: [{name: vmx}, {name: aes, policy: disable}]}", "domain: {cpu: {features: [{name: aes}]}}", "domain: {cpu: {features: [{name: aes}, {name: vmx}]}}"},
		{"time zone", "", "clock: {preferredClockOffset: {timezone: Europe/Berlin}}", "domain: {}", "domain: {clock: {timezone: Europe/Berlin}}"},
		{"no time zone for a clock with UTC", "", "clock: {preferredClockOffset: {timezone: Europe/Berlin}}", "domain: {clock: {utc: {}}}", "domain: {clock: {utc: {}}}"},
		{"Hyper-V", "", "features: {preferredHyperv: {relaxed: {}, vapic: {}, spinlocks: {spinlocks: 8191}, synictimer: {direct: {}}}, preferredKvm: {hidden: true}, preferredPvspinlock: {enabled: false}, preferredApic: {endOfInterrupt: true}}",
			"domain: {features: {hyperv: {vapic: {enabled: false}, spinlocks: {enabled: false}}}}",
			"domain: {features: {apic: {endOfInterrupt: true}, kvm: {hidden: true}, pvspinlock: {enabled: false}, hyperv: {relaxed: {}, vapic: {enabled: false}, spinlocks: {enabled: false}, synictimer: {direct: {}}}}}"},
		{"Hyper-V of the node", "", "features: {preferredHyperv: {relaxed: {}}}", "domain: {features: {hypervPassthrough: {}}}", "domain: {features: {hypervPassthrough: {}}}"},
		{"UEFI by the deprecated fields", "", "firmware: {preferredUseEfi: true, preferredUseSecureBoot: false}", "domain: {}", "domain: {firmware: {bootloader: {efi: {secureBoot: false}}}}"},
		{"secure boot of a template's UEFI", "", "firmware: {preferredUseEfi: true, preferredUseSecureBoot: false}", "domain: {firmware: {bootloader: {efi: {}}}}",
			"domain: {firmware: {bootloader: {efi: {secureBoot: false}}}}"},
		{"no UEFI for a template with the BIOS", "", "{firmware: {preferredEfi: {}}, features: {preferredSmm: {}}}", "domain: {firmware: {bootloader: {bios: {}}}, features: {smm: {enabled: false}}}",
			"domain: {firmware: {bootloader: {bios: {}}}, features: {smm: {enabled: false}}}"},
		{"UEFI for an empty boot loader", "", "firmware: {preferredEfi: {secureBoot: false}}", "domain: {firmware: {bootloader: {}}}", "domain: {firmware: {bootloader: {efi: {secureBoot: false}}}}"},
		{"TPM", "", "devices: {preferredTPM: {}}", "domain: {}", "domain: {devices: {tpm: {}}}"},
		{"a template without a TPM", "", "devices: {preferredTPM: {}}", "domain: {devices: {tpm: {enabled: false}}}", "domain: {devices: {tpm: {enabled: false}}}"},
		{"UEFI is not preferred", "", "firmware: {preferredUseEfi: false}", "domain: {}", "domain: {}"},
		{"what is set stays", "", "{machine: {preferredMachineType: pc-q35-7.2}, clock: {preferredTimer: {hpet: {}}}, preferredTerminationGracePeriodSeconds: 3}",
			"{terminationGracePeriodSeconds: 0, domain: {machine: {type: q35}, clock: {timer: {}}}}",
			"{terminationGracePeriodSeconds: 0, domain: {machine: {type: q35}, clock: {timer: {}}}}"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			vmi := &v1.VirtualMachineInstance{Spec: *decode[v1.VirtualMachineInstanceSpec](t, tt.spec)}
			size, preference := decode[v1beta1.VirtualMachineInstancetypeSpec](t, tt.size), decode[v1beta1.VirtualMachinePreferenceSpec](t, tt.preference)
			if errs := Apply(size, preference, vmi, template()); len(errs) > 0 {
				t.Fatal(errs.ToAggregate())
			}
			if diff := cmp.Diff(*decode[v1.VirtualMachineInstanceSpec](t, tt.want), vmi.Spec); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestApplyConflicts(t *testing.T) {
	const everything = "{cpu: {guest: 3, model: Nehalem}, memory: {guest: 2Gi}, nodeSelector: {a: b}, schedulerName: mine, annotations: {a: b}}"
	tests := []struct {
		name, size, preference, vmi string
		want                        []string
	}{
		{"none", everything, "", "spec: {nodeSelector: {c: d}}", nil},
		{"CPU", everything, "", "spec: {domain: {cpu: {cores: 1, sockets: 1, threads: 1, model: max}}}",
			[]string{"spec.domain.cpu.sockets", "spec.domain.cpu.cores", "spec.domain.cpu.threads", "spec.domain.cpu.model"}},
		{"model alone", small, "", "spec: {domain: {cpu: {model: max}}}", nil},
		{"memory", small, "", "spec: {domain: {memory: {guest: 1Gi}}}", []string{"spec.domain.memory.guest"}},
		{"resources", small, "", "spec: {domain: {resources: {requests: {cpu: 1, memory: 1Gi}, limits: {cpu: 1, memory: 1Gi}}}}",
			[]string{"spec.domain.resources.requests.cpu", "spec.domain.resources.limits.cpu", "spec.domain.resources.requests.memory", "spec.domain.resources.limits.memory"}},
		{"placement", everything, "", "{metadata: {annotations: {a: c}}, spec: {nodeSelector: {a: b}, schedulerName: other}}",
			[]string{"spec.nodeSelector[a]", "spec.schedulerName", "metadata.annotations[a]"}},
		{"the same annotation", everything, "", "metadata: {annotations: {a: b}}", nil},
		{"threads for disks", "{cpu: {guest: 1}, memory: {guest: 1Gi}, ioThreadsPolicy: auto, ioThreads: {}}", "", "spec: {domain: {ioThreadsPolicy: shared, ioThreads: {}}}",
			[]string{"spec.domain.ioThreadsPolicy", "spec.domain.ioThreads"}},
		{"not divisible", everything, "cpu: {preferredCPUTopology: spread}", "spec: {}", []string{"instancetype.spec.cpu.guest"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			vmi, before := decode[v1.VirtualMachineInstance](t, tt.vmi), decode[v1.VirtualMachineInstance](t, tt.vmi)
			var fields []string
			errs := Apply(decode[v1beta1.VirtualMachineInstancetypeSpec](t, tt.size), decode[v1beta1.VirtualMachinePreferenceSpec](t, tt.preference), vmi, template())
			for _, err := range errs {
				fields = append(fields, err.Field)
			}
			for i, f := range tt.want {
				if f != "instancetype.spec.cpu.guest" {
					tt.want[i] = "spec.template." + f
				}
			}
			if diff := cmp.Diff(tt.want, fields); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if len(tt.want) > 0 && tt.want[0] != "instancetype.spec.cpu.guest" && !cmp.Equal(before, vmi) {
				t.Error("changed in spite of a conflict")
			}
		})
	}
}

// TestRefusalsHaveKubeVirtsWords: clients of KubeVirt look for the words and the fields.
func TestRefusalsHaveKubeVirtsWords(t *testing.T) {
	const three = "{cpu: {guest: 3}, memory: {guest: 2Gi}}"
	for _, tt := range []struct {
		name, size, preference, spec string
		want                         []metav1.StatusCause
		text                         string
	}{
		{"conflicts", small, "", "domain: {cpu: {cores: 1, sockets: 2}}", []metav1.StatusCause{
			{Type: "FieldValueInvalid", Field: "spec.template.spec.domain.cpu.sockets", Message: "VM field(s) spec.template.spec.domain.cpu.sockets conflicts with selected instance type"},
			{Type: "FieldValueInvalid", Field: "spec.template.spec.domain.cpu.cores", Message: "VM field(s) spec.template.spec.domain.cpu.cores conflicts with selected instance type"}},
			"VM field(s) spec.template.spec.domain.cpu.sockets, spec.template.spec.domain.cpu.cores conflicts with selected instance type"},
		{"resources", small, "", "domain: {resources: {requests: {memory: 1Gi}}}", []metav1.StatusCause{
			{Type: "FieldValueInvalid", Field: "spec.template.spec.domain.resources.requests.memory", Message: "VM field(s) spec.template.spec.domain.resources.requests.memory conflicts with selected instance type"}},
			"VM field(s) spec.template.spec.domain.resources.requests.memory conflicts with selected instance type"},
		{"no spread", three, "cpu: {preferredCPUTopology: spread}", "{}", unspread("3 vCPUs provided by the instance type are not divisible by the Spec.PreferSpreadSocketToCoreRatio or Spec.CPU.PreferSpreadOptions.Ratio of 2 provided by the preference"),
			"3 vCPUs provided by the instance type are not divisible by the Spec.PreferSpreadSocketToCoreRatio or Spec.CPU.PreferSpreadOptions.Ratio of 2 provided by the preference"},
		{"no spread over threads", three, "cpu: {preferredCPUTopology: spread, spreadOptions: {across: CoresThreads}}", "{}",
			unspread("3 vCPUs provided by the instance type are not divisible by the number of threads per core 2"), "3 vCPUs provided by the instance type are not divisible by the number of threads per core 2"},
		{"no spread over all", three, "cpu: {preferredCPUTopology: preferSpread, spreadOptions: {across: SocketsCoresThreads, ratio: 4}}", "{}",
			unspread("3 vCPUs provided by the instance type are not divisible by the number of threads per core 2 and Spec.PreferSpreadSocketToCoreRatio or Spec.CPU.PreferSpreadOptions.Ratio of 4"),
			"3 vCPUs provided by the instance type are not divisible by the number of threads per core 2 and Spec.PreferSpreadSocketToCoreRatio or Spec.CPU.PreferSpreadOptions.Ratio of 4"},
	} {
		vmi := &v1.VirtualMachineInstance{Spec: *decode[v1.VirtualMachineInstanceSpec](t, tt.spec)}
		errs := Apply(decode[v1beta1.VirtualMachineInstancetypeSpec](t, tt.size), decode[v1beta1.VirtualMachinePreferenceSpec](t, tt.preference), vmi, template())
		if diff := cmp.Diff(tt.want, ConflictCauses(errs)); diff != "" {
			t.Errorf("%s: -want +got:\n%s", tt.name, diff)
		}
		if got := ConflictText(errs); got != tt.text {
			t.Errorf("%s: %s", tt.name, got)
		}
	}
}

func unspread(message string) []metav1.StatusCause {
	return []metav1.StatusCause{{Type: "FieldValueInvalid", Field: "instancetype.spec.cpu.guest", Message: message}}
}

// TestRequestOfAnOvercommittedSize: the pod requests as many bytes as in KubeVirt.
func TestRequestOfAnOvercommittedSize(t *testing.T) {
	for _, c := range []struct {
		guest   int64
		percent int32
		want    int64
	}{{128 << 20, 15, 114085072}, {1000 << 20, 25, 750 << 20}, {64 << 40, 1, 69665057406976}, {math.MaxInt64, 1, 9131138404447158272}, {1 << 30, 100, 0}} {
		if got := request(c.guest, c.percent); got != c.want {
			t.Errorf("%d less %d %%: %d, want %d", c.guest, c.percent, got, c.want)
		}
	}
}

func TestLacks(t *testing.T) {
	const all = "requirements: {cpu: {guest: 2}, memory: {guest: 1Gi}, architecture: amd64}"
	for _, tt := range []struct {
		name, size, preference, spec string
		want                         []string
	}{
		{"no requirements", "", "{}", "domain: {memory: {guest: 1Mi}}", nil},
		{"met", "", all, "domain: {cpu: {cores: 2}, memory: {guest: 1Gi}}", nil},
		{"met by a size", "{cpu: {guest: 2}, memory: {guest: 1Gi}}", all, "domain: {}", nil},
		{"not met", "", all, "{architecture: arm64, domain: {cpu: {sockets: 1}, memory: {guest: 1023Mi}}}", []string{
			"spec.template.spec.domain.cpu: failure checking preference requirements: insufficient CPU resources of 1 vCPU provided by VirtualMachine, preference requires 2 vCPU provided as sockets",
			"spec.template.spec.domain.memory: failure checking preference requirements: insufficient Memory resources of 1023Mi provided by VirtualMachine, preference requires 1Gi",
			"spec.template.spec.architecture: failure checking preference requirements: preference requires architecture amd64 but arm64 is being requested"}},
		{"not met by a size", "{cpu: {guest: 1}, memory: {guest: 1Mi}}", all, "domain: {}", []string{
			"spec.instancetype: failure checking preference requirements: insufficient CPU resources of 1 vCPU provided by instance type, preference requires 2 vCPU",
			"spec.instancetype: failure checking preference requirements: insufficient Memory resources of 1Mi provided by instance type, preference requires 1Gi"}},
		{"a size without CPUs", "{cpu: {guest: 0}, memory: {guest: 1Gi}}", "requirements: {cpu: {guest: 1}}", "domain: {}", []string{
			"spec.instancetype: failure checking preference requirements: insufficient CPU resources of 0 vCPU provided by instance type, preference requires 1 vCPU"}},
		{"no memory", "", "{cpu: {preferredCPUTopology: spread}, requirements: {cpu: {guest: 4}, memory: {guest: 1Gi}}}", "domain: {cpu: {cores: 3}}", []string{
			"spec.template.spec.domain.cpu: failure checking preference requirements: insufficient CPU resources of 3 vCPU provided by VirtualMachine, preference requires 4 vCPU provided as SocketsCores",
			"spec.template.spec.domain.memory: failure checking preference requirements: insufficient Memory resources of 0 provided by VirtualMachine, preference requires 1Gi"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			vm := &v1.VirtualMachine{}
			vm.Spec.Template.Spec = *decode[v1.VirtualMachineInstanceSpec](t, tt.spec)
			size, preference := decode[v1beta1.VirtualMachineInstancetypeSpec](t, tt.size), decode[v1beta1.VirtualMachinePreferenceSpec](t, tt.preference)
			expanded, errs := Expand(vm, size, preference)
			if len(errs) > 0 {
				t.Fatal(errs.ToAggregate())
			}
			var said []string
			for _, cause := range LackCauses(Lacks(expanded, size, preference)) {
				said = append(said, cause.Field+": "+cause.Message)
			}
			if diff := cmp.Diff(tt.want, said); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
