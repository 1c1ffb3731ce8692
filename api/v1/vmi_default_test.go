package v1

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// parse reads a VMI's spec from YAML.
func parse(t testing.TB, spec string) *VirtualMachineInstance {
	t.Helper()
	vmi := &VirtualMachineInstance{}
	vmi.Name, vmi.UID = "vm", "0a1b2c3d-0000-4000-8000-000000000001"
	if err := yaml.UnmarshalStrict([]byte(spec), &vmi.Spec); err != nil {
		t.Fatal(err)
	}
	return vmi
}

// TestDefaultsAreKubeVirts: each rule of KubeVirt's defaulting, by what is set and what that part of the spec becomes.
func TestDefaultsAreKubeVirts(t *testing.T) {
	domain := func(vmi *VirtualMachineInstance) any { return vmi.Spec.Domain }
	resources := func(vmi *VirtualMachineInstance) any { return vmi.Spec.Domain.Resources }
	memory := func(vmi *VirtualMachineInstance) any { return vmi.Spec.Domain.Memory }
	cpu := func(vmi *VirtualMachineInstance) any { return vmi.Spec.Domain.CPU }
	disks := func(vmi *VirtualMachineInstance) any { return vmi.Spec.Domain.Devices.Disks }
	tests := []struct {
		name string
		spec string
		part func(*VirtualMachineInstance) any
		want string // JSON
	}{
		{"architecture", `{}`, func(vmi *VirtualMachineInstance) any { return vmi.Spec.Architecture }, `"amd64"`},
		{"architecture that is set", `{architecture: arm64}`,
			func(vmi *VirtualMachineInstance) any { return vmi.Spec.Architecture }, `"arm64"`},
		{"architecture of a machine type", `{domain: {machine: {type: virt-10.0}}}`,
			func(vmi *VirtualMachineInstance) any { return vmi.Spec.Architecture }, `"arm64"`},
		{"machine of arm64", `{architecture: arm64}`,
			func(vmi *VirtualMachineInstance) any { return vmi.Spec.Domain.Machine }, `{"type":"virt"}`},
		{"CPU of arm64", `{architecture: arm64}`, cpu, `{"cores":1,"sockets":1,"threads":1,"model":"host-passthrough"}`},
		{"firmware of arm64", `{architecture: arm64}`,
			func(vmi *VirtualMachineInstance) any { return vmi.Spec.Domain.Firmware },
			`{"uuid":"0a1b2c3d-0000-4000-8000-000000000001","bootloader":{"efi":{"secureBoot":false}}}`},
		{"disks of arm64", `{architecture: arm64, domain: {devices: {disks: [{name: a, cdrom: {}}, {name: b, disk: {bus: scsi}}]}}, volumes: [{name: a, containerDisk: {image: i}}, {name: b, containerDisk: {image: i}}, {name: c, containerDisk: {image: i}}]}`, disks,
			`[{"name":"a","cdrom":{"bus":"scsi","readonly":true,"tray":"closed"}},{"name":"b","disk":{"bus":"scsi"}},{"name":"c","disk":{"bus":"virtio"}}]`},
		{"machine", `{}`, func(vmi *VirtualMachineInstance) any { return vmi.Spec.Domain.Machine }, `{"type":"q35"}`},
		{"machine that is set", `{domain: {machine: {type: pc-q35-7.2}}}`,
			func(vmi *VirtualMachineInstance) any { return vmi.Spec.Domain.Machine }, `{"type":"pc-q35-7.2"}`},
		{"firmware", `{}`, func(vmi *VirtualMachineInstance) any { return vmi.Spec.Domain.Firmware },
			`{"uuid":"0a1b2c3d-0000-4000-8000-000000000001"}`},
		{"firmware that is set", `{domain: {firmware: {uuid: u, serial: s}}}`,
			func(vmi *VirtualMachineInstance) any { return vmi.Spec.Domain.Firmware }, `{"uuid":"u","serial":"s"}`},

		{"CPU request from limit", `{domain: {resources: {limits: {cpu: 2}}}}`, resources,
			`{"requests":{"cpu":"2"},"limits":{"cpu":"2"}}`},
		{"CPU request that is set", `{domain: {resources: {requests: {cpu: 1}, limits: {cpu: 2}}}}`, resources,
			`{"requests":{"cpu":"1"},"limits":{"cpu":"2"}}`},
		{"memory request is not taken from the limit", `{domain: {resources: {limits: {memory: 1Gi}}}}`, resources,
			`{"limits":{"memory":"1Gi"}}`},

		{"guest memory from the request", `{domain: {resources: {requests: {memory: 1Gi}, limits: {memory: 2Gi}}}}`, memory,
			`{"guest":"1Gi"}`},
		{"guest memory from the limit", `{domain: {resources: {limits: {memory: 2Gi}}}}`, memory, `{"guest":"2Gi"}`},
		{"guest memory that is set", `{domain: {memory: {guest: 3Gi}, resources: {requests: {memory: 1Gi}}}}`, memory,
			`{"guest":"3Gi"}`},
		{"no memory", `{}`, memory, `{}`},

		{"CPU", `{}`, cpu, `{"cores":1,"sockets":1,"threads":1,"model":"host-model"}`},
		{"CPU model", `{domain: {cpu: {model: Haswell}}}`, cpu, `{"cores":1,"sockets":1,"threads":1,"model":"Haswell"}`},
		{"only cores", `{domain: {cpu: {cores: 4}, resources: {limits: {cpu: 2}}}}`, cpu,
			`{"cores":4,"sockets":1,"threads":1,"model":"host-model"}`},
		{"only threads", `{domain: {cpu: {threads: 2}}}`, cpu, `{"cores":1,"sockets":1,"threads":2,"model":"host-model"}`},
		{"sockets from the limit", `{domain: {resources: {requests: {cpu: 1}, limits: {cpu: 3}}}}`, cpu,
			`{"cores":1,"sockets":3,"threads":1,"model":"host-model"}`},
		{"sockets from the request, rounded up", `{domain: {resources: {requests: {cpu: 1500m}}}}`, cpu,
			`{"cores":1,"sockets":2,"threads":1,"model":"host-model"}`},
		{"sockets from a CPU request of none", `{domain: {resources: {requests: {cpu: 0}}}}`, cpu,
			`{"cores":1,"sockets":1,"threads":1,"model":"host-model"}`},

		{"a disk for a volume",
			`{volumes: [{name: a}, {name: b}], domain: {devices: {disks: [{name: b, disk: {bus: virtio}}]}}}`, disks,
			`[{"name":"b","disk":{"bus":"virtio"}},{"name":"a","disk":{"bus":"sata"}}]`},
		{"disk's target and bus", `{domain: {devices: {disks: [{name: a}, {name: b, disk: {}}]}}}`, disks,
			`[{"name":"a","disk":{"bus":"sata"}},{"name":"b","disk":{"bus":"sata"}}]`},
		{"CD-ROM", `{domain: {devices: {disks: [{name: a, cdrom: {}}]}}}`, disks,
			`[{"name":"a","cdrom":{"bus":"sata","readonly":true,"tray":"closed"}}]`},
		{"CD-ROM that is set", `{domain: {devices: {disks: [{name: a, cdrom: {bus: virtio, readonly: false}}]}}}`, disks,
			`[{"name":"a","cdrom":{"bus":"virtio","readonly":false,"tray":"closed"}}]`},
		{"LUN", `{domain: {devices: {disks: [{name: a, lun: {}}]}}}`, disks, `[{"name":"a","lun":{"bus":"scsi"}}]`},

		{"interface", `{domain: {devices: {interfaces: [{name: a, ports: [{port: 80}, {port: 53, protocol: UDP}]}]}}}`,
			func(vmi *VirtualMachineInstance) any { return vmi.Spec.Domain.Devices.Interfaces },
			`[{"name":"a","model":"virtio","ports":[{"protocol":"TCP","port":80},{"protocol":"UDP","port":53}]}]`},
		{"interface and network are added", `{}`,
			func(vmi *VirtualMachineInstance) any { return []any{vmi.Spec.Domain.Devices, vmi.Spec.Networks} },
			`[{"interfaces":[{"name":"default","model":"virtio","bridge":{}}]},[{"name":"default","pod":{"vmNetworkCIDR":"10.0.2.0/24"}}]]`},
		{"no interface is wanted", `{domain: {devices: {autoattachPodInterface: false}}}`,
			func(vmi *VirtualMachineInstance) any { return vmi.Spec.Domain.Devices },
			`{"autoattachPodInterface":false}`},
		{"no interface is added to a network", `{networks: [{name: a, pod: {}}]}`,
			func(vmi *VirtualMachineInstance) any { return vmi.Spec.Domain.Devices }, `{}`},
		{"Hyper-V", `{domain: {features: {hyperv: {synictimer: {}, tlbflush: {direct: {}}, spinlocks: {}}}}}`,
			func(vmi *VirtualMachineInstance) any { return vmi.Spec.Domain.Features.Hyperv },
			`{"vapic":{"enabled":true},"spinlocks":{"spinlocks":4096},"vpindex":{"enabled":true},"synic":{"enabled":true},"synictimer":{},"tlbflush":{"direct":{}}}`},
		{"Hyper-V within the guest", `{domain: {features: {hyperv: {evmcs: {}}}}}`, cpu,
			`{"cores":1,"sockets":1,"threads":1,"model":"host-model","features":[{"name":"vmx","policy":"require"}]}`},
		{"Hyper-V that is off needs nothing",
			`{domain: {features: {hyperv: {synic: {enabled: false}, evmcs: {enabled: false}, tlbflush: {enabled: false, direct: {}}, spinlocks: {enabled: false}}}}}`,
			func(vmi *VirtualMachineInstance) any { return vmi.Spec.Domain.Features.Hyperv },
			`{"spinlocks":{"enabled":false},"synic":{"enabled":false},"tlbflush":{"enabled":false,"direct":{}},"evmcs":{"enabled":false}}`},
		{"Hyper-V's needs that are off stay off", `{domain: {features: {hyperv: {ipi: {}, vpindex: {enabled: false}}}}}`,
			func(vmi *VirtualMachineInstance) any { return vmi.Spec.Domain.Features.Hyperv },
			`{"vpindex":{"enabled":false},"ipi":{}}`},
		{"watchdog", `{domain: {devices: {watchdog: {name: dog}}}}`,
			func(vmi *VirtualMachineInstance) any { return vmi.Spec.Domain.Devices.Watchdog },
			`{"name":"dog","i6300esb":{"action":"reset"}}`},
		{"input", `{domain: {devices: {autoattachInputDevice: true}}}`,
			func(vmi *VirtualMachineInstance) any { return vmi.Spec.Domain.Devices.Inputs },
			`[{"name":"default-0","type":"tablet","bus":"usb"}]`},
		{"kernel", `{domain: {firmware: {kernelBoot: {container: {image: "k"}}}}}`,
			func(vmi *VirtualMachineInstance) any { return vmi.KernelContainer().ImagePullPolicy }, `"Always"`},
		{"network", `{networks: [{name: a, pod: {}}, {name: b, pod: {vmNetworkCIDR: 10.1.0.0/24}}, {name: c}]}`,
			func(vmi *VirtualMachineInstance) any { return vmi.Spec.Networks },
			`[{"name":"a","pod":{"vmNetworkCIDR":"10.0.2.0/24"}},{"name":"b","pod":{"vmNetworkCIDR":"10.1.0.0/24"}},{"name":"c"}]`},
		{"grace period is left open", `{}`,
			func(vmi *VirtualMachineInstance) any { return vmi.Spec.TerminationGracePeriodSeconds }, `null`},
		{"all of an empty domain", `{}`, domain,
			`{"resources":{},"cpu":{"cores":1,"sockets":1,"threads":1,"model":"host-model"},"memory":{},"machine":{"type":"q35"},"firmware":{"uuid":"0a1b2c3d-0000-4000-8000-000000000001"},"devices":{"interfaces":[{"name":"default","model":"virtio","bridge":{}}]}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			vmi := parse(t, tt.spec)
			Default(vmi)
			got, err := json.Marshal(tt.part(vmi))
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			again := vmi.DeepCopy()
			Default(again)
			if diff := cmp.Diff(vmi, again); diff != "" {
				t.Errorf("defaulted twice is not defaulted once:\n%s", diff)
			}
		})
	}
}

func TestDefaultPullPolicy(t *testing.T) {
	for image, want := range map[string]string{
		"alpine": "Always", "alpine:latest": "Always", "alpine:3.20": "IfNotPresent", "registry:5000/alpine": "Always",
		"registry:5000/alpine:3.20": "IfNotPresent",
		"registry:5000/a/b:latest":  "Always", "alpine@sha256:0000": "IfNotPresent",
		"alpine:latest@sha256:0000": "IfNotPresent", "": "Always",
	} {
		vmi := parse(
			t, `{volumes: [{name: a, containerDisk: {image: ""}}, {name: b, containerDisk: {image: "", imagePullPolicy: Never}}]}`)
		vmi.Spec.Volumes[0].ContainerDisk.Image, vmi.Spec.Volumes[1].ContainerDisk.Image = image, image
		Default(vmi)
		if got := string(vmi.Spec.Volumes[0].ContainerDisk.ImagePullPolicy); got != want {
			t.Errorf("%q: %s, want %s", image, got, want)
		}
		if got := vmi.Spec.Volumes[1].ContainerDisk.ImagePullPolicy; got != "Never" {
			t.Errorf("%q: %s, was set to Never", image, got)
		}
	}
}
