package v1

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// valid has at least one of everything that is validated.
const valid = `
domain:
  resources: {requests: {memory: 64Mi, cpu: 1}, limits: {memory: 128Mi, cpu: 2}}
  devices:
    disks:
    - {name: root, bootOrder: 1, disk: {bus: virtio}}
    - {name: media, bootOrder: 2, cdrom: {}}
    - {name: seed}
    interfaces:
    - {name: default, masquerade: {}, macAddress: "52:54:00:00:00:01", ports: [{name: http, port: 80}, {port: 53, protocol: UDP}]}
networks:
- {name: default, pod: {}}
volumes:
- {name: root, containerDisk: {image: "registry.example/root:v1"}}
- {name: media, containerDisk: {image: "registry.example/media:v1"}}
- {name: seed, cloudInitNoCloud: {userData: "#cloud-config"}}
`

func TestValidate(t *testing.T) {
	const (
		disks      = "spec.domain.devices.disks"
		interfaces = "spec.domain.devices.interfaces"
	)
	type spec = VirtualMachineInstanceSpec
	// devices and others shorten the mutations.
	devices := func(s *spec) *Devices { return &s.Domain.Devices }
	nic := func(s *spec) *Interface { return &s.Domain.Devices.Interfaces[0] }
	seed := func(s *spec) *CloudInitNoCloudSource { return s.Volumes[2].CloudInitNoCloud }
	long := strings.Repeat("x", maxCloudInitBytes+1)
	tests := []struct {
		name   string
		mutate func(s *spec) // after defaulting
		want   []string      // exactly the fields that are wrong
	}{
		{"valid", func(s *spec) {}, nil},
		{"architecture", func(s *spec) { s.Architecture = "arm64" }, []string{"spec.architecture"}},
		{"negative grace period", func(s *spec) { s.TerminationGracePeriodSeconds = ptr.To[int64](-1) }, []string{"spec.terminationGracePeriodSeconds"}},
		{"no grace", func(s *spec) { s.TerminationGracePeriodSeconds = ptr.To[int64](0) }, nil},
		{"two things at once", func(s *spec) { s.Architecture = ""; s.Domain.Machine.Type = "" }, []string{"spec.architecture", "spec.domain.machine.type"}},

		{"no memory", func(s *spec) { s.Domain.Memory.Guest = nil }, []string{"spec.domain.memory.guest"}},
		{"memory without unit", func(s *spec) { s.Domain.Memory.Guest = ptr.To(resource.MustParse("512")) }, []string{"spec.domain.memory.guest"}},
		{"negative memory", func(s *spec) { s.Domain.Memory.Guest = ptr.To(resource.MustParse("-1Gi")) }, []string{"spec.domain.memory.guest"}},
		{"64 TiB", func(s *spec) { s.Domain.Memory.Guest = ptr.To(resource.MustParse("64Ti")) }, nil},
		{"more than 64 TiB", func(s *spec) { s.Domain.Memory.Guest = ptr.To(resource.MustParse("65Ti")) }, []string{"spec.domain.memory.guest"}},
		{"more than an int64", func(s *spec) { s.Domain.Memory.Guest = ptr.To(resource.MustParse("1e30")) }, []string{"spec.domain.memory.guest"}},
		{"request over limit", func(s *spec) { s.Domain.Resources.Requests["memory"] = resource.MustParse("1Gi") }, []string{"spec.domain.resources.requests[memory]"}},
		{"CPU request over limit", func(s *spec) { s.Domain.Resources.Requests["cpu"] = resource.MustParse("2001m") }, []string{"spec.domain.resources.requests[cpu]"}},
		{"negative limit", func(s *spec) { s.Domain.Resources.Limits["ephemeral-storage"] = resource.MustParse("-1") }, []string{"spec.domain.resources.limits[ephemeral-storage]"}},
		{"small request", func(s *spec) { s.Domain.Resources.Requests["memory"] = resource.MustParse("64") }, []string{"spec.domain.resources.requests[memory]"}},

		{"255 vCPUs", func(s *spec) { *s.Domain.CPU = CPU{Model: "host-model", Cores: 51, Sockets: 5, Threads: 1} }, nil},
		{"256 vCPUs", func(s *spec) { *s.Domain.CPU = CPU{Model: "host-model", Cores: 256, Sockets: 1, Threads: 1} }, []string{"spec.domain.cpu"}},
		{"vCPUs that overflow", func(s *spec) { *s.Domain.CPU = CPU{Model: "host-model", Cores: 1 << 31, Sockets: 1 << 31, Threads: 4} }, []string{"spec.domain.cpu"}},
		{"no vCPU", func(s *spec) { s.Domain.CPU.Cores = 0 }, []string{"spec.domain.cpu"}},
		{"pc", func(s *spec) { s.Domain.Machine.Type = "pc" }, []string{"spec.domain.machine.type"}},
		{"machine with options", func(s *spec) { s.Domain.Machine.Type = "q35,smm=on" }, []string{"spec.domain.machine.type"}},
		{"machine with a line", func(s *spec) { s.Domain.Machine.Type = "q35\n" }, []string{"spec.domain.machine.type"}},
		{"versioned machine", func(s *spec) { s.Domain.Machine.Type = "pc-q35-10.1" }, nil},

		{"volume without source", func(s *spec) { s.Volumes[0].ContainerDisk = nil }, []string{"spec.volumes[0]"}},
		{"volume with two sources", func(s *spec) { s.Volumes[2].ContainerDisk = s.Volumes[0].ContainerDisk }, []string{"spec.volumes[2]"}},
		{"two volumes of a name", func(s *spec) { s.Volumes[2].Name = "root" }, []string{disks + "[2].name", "spec.volumes[2].name"}},
		{"no image", func(s *spec) { s.Volumes[0].ContainerDisk.Image = "" }, []string{"spec.volumes[0].containerDisk.image"}},
		{"no user data", func(s *spec) { *seed(s) = CloudInitNoCloudSource{} }, []string{"spec.volumes[2].cloudInitNoCloud"}},
		{"network data alone", func(s *spec) { *seed(s) = CloudInitNoCloudSource{NetworkData: "version: 2"} }, nil},
		{"user data twice", func(s *spec) { seed(s).UserDataBase64 = "eA==" }, []string{"spec.volumes[2].cloudInitNoCloud.userDataBase64"}},
		{"no base64", func(s *spec) { *seed(s) = CloudInitNoCloudSource{NetworkDataBase64: "%"} }, []string{"spec.volumes[2].cloudInitNoCloud.networkDataBase64"}},
		{"long user data", func(s *spec) { seed(s).UserData = long }, []string{"spec.volumes[2].cloudInitNoCloud.userData"}},
		{"user data as long as may be", func(s *spec) { seed(s).UserData = long[1:] }, nil},

		{"disk without volume", func(s *spec) { devices(s).Disks[1].Name = "none" }, []string{disks + "[1].name"}},
		{"two disks of a volume", func(s *spec) { devices(s).Disks[1].Name = "root" }, []string{disks + "[1].name"}},
		{"boot order 0", func(s *spec) { devices(s).Disks[0].BootOrder = ptr.To[uint32](0) }, []string{disks + "[0].bootOrder"}},
		{"boot order twice", func(s *spec) { devices(s).Disks[1].BootOrder = ptr.To[uint32](1) }, []string{disks + "[1].bootOrder"}},
		{"disk and CD-ROM", func(s *spec) { devices(s).Disks[1].Disk = &DiskTarget{Bus: DiskBusVirtio} }, []string{disks + "[1]"}},
		{"LUN", func(s *spec) { devices(s).Disks[0] = Disk{Name: "root", Lun: &Unsupported{}} }, []string{disks + "[0].lun"}},
		{"read-only SATA disk", func(s *spec) { devices(s).Disks[2].Disk.ReadOnly = true }, []string{disks + "[2].disk.readonly"}},
		{"read-only virtio disk", func(s *spec) { devices(s).Disks[0].Disk.ReadOnly = true }, nil},
		{"virtio CD-ROM", func(s *spec) { devices(s).Disks[1].CDRom.Bus = DiskBusVirtio }, []string{disks + "[1].cdrom.bus"}},
		{"writable CD-ROM", func(s *spec) { devices(s).Disks[1].CDRom.ReadOnly = ptr.To(false) }, []string{disks + "[1].cdrom.readonly"}},

		{"no interface", func(s *spec) { devices(s).Interfaces, s.Networks = nil, nil }, []string{interfaces}},
		{"no interface wanted", func(s *spec) {
			devices(s).Interfaces, s.Networks = nil, nil
			devices(s).AutoattachPodInterface = ptr.To(false)
		}, nil},
		{"network without interface", func(s *spec) { devices(s).Interfaces = nil }, []string{"spec.networks[0].name"}},
		{"interface without network", func(s *spec) { s.Networks = nil }, []string{interfaces + "[0].name"}},
		{"two interfaces of a name", func(s *spec) { devices(s).Interfaces = append(devices(s).Interfaces, *nic(s)) }, []string{interfaces + "[1].name"}},
		{"two pod networks", func(s *spec) {
			s.Networks = append(s.Networks, Network{Name: "more", Pod: &PodNetwork{VMNetworkCIDR: "10.1.0.0/24"}})
			devices(s).Interfaces = append(devices(s).Interfaces, Interface{Name: "more", Model: "virtio", Masquerade: &InterfaceMasquerade{}})
		}, []string{"spec.networks[1].pod"}},
		{"network without source", func(s *spec) { s.Networks[0].Pod = nil }, []string{"spec.networks[0].pod"}},
		{"no CIDR", func(s *spec) { s.Networks[0].Pod.VMNetworkCIDR = "10.0.2.0" }, []string{"spec.networks[0].pod.vmNetworkCIDR"}},
		{"host's address in the CIDR", func(s *spec) { s.Networks[0].Pod.VMNetworkCIDR = "10.0.2.1/24" }, []string{"spec.networks[0].pod.vmNetworkCIDR"}},
		{"IPv6 CIDR", func(s *spec) { s.Networks[0].Pod.VMNetworkCIDR = "fd10::/120" }, []string{"spec.networks[0].pod.vmNetworkCIDR"}},
		{"narrow CIDR", func(s *spec) { s.Networks[0].Pod.VMNetworkCIDR = "10.0.2.0/30" }, []string{"spec.networks[0].pod.vmNetworkCIDR"}},

		{"no binding", func(s *spec) { nic(s).Masquerade = nil }, []string{interfaces + "[0]"}},
		{"two bindings", func(s *spec) { nic(s).SRIOV = &Unsupported{} }, []string{interfaces + "[0]", interfaces + "[0].sriov"}},
		{"no MAC", func(s *spec) { nic(s).MacAddress = "52:54:00" }, []string{interfaces + "[0].macAddress"}},
		{"EUI-64", func(s *spec) { nic(s).MacAddress = "52:54:00:00:00:00:00:01" }, []string{interfaces + "[0].macAddress"}},
		{"multicast MAC", func(s *spec) { nic(s).MacAddress = "01:00:5e:00:00:01" }, []string{interfaces + "[0].macAddress"}},
		{"gateway's MAC", func(s *spec) { nic(s).MacAddress = "02-00-00-00-00-00" }, []string{interfaces + "[0].macAddress"}},
		{"port 0", func(s *spec) { nic(s).Ports[0].Port = 0 }, []string{interfaces + "[0].ports[0].port"}},
		{"port 65536", func(s *spec) { nic(s).Ports[1].Port = 65536 }, []string{interfaces + "[0].ports[1].port"}},
		{"SCTP", func(s *spec) { nic(s).Ports[1].Protocol = "SCTP" }, []string{interfaces + "[0].ports[1].protocol"}},
		{"two ports of a name", func(s *spec) { nic(s).Ports[1].Name = "http" }, []string{interfaces + "[0].ports[1].name"}},

		{"not supported yet", func(s *spec) {
			d := devices(s)
			d.TPM, d.Watchdog, d.GPUs, d.HostDevices, d.Filesystems = &Unsupported{}, &Unsupported{}, []Unsupported{{}}, []Unsupported{{}}, []Unsupported{{}}
		}, []string{"spec.domain.devices.filesystems", "spec.domain.devices.gpus", "spec.domain.devices.hostDevices", "spec.domain.devices.tpm", "spec.domain.devices.watchdog"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			object := parse(t, valid)
			Default(object)
			tt.mutate(&object.Spec)
			before := object.DeepCopy()
			var got []string
			errs := Validate(object)
			for _, e := range errs {
				got = append(got, e.Field)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s\n%v", diff, errs)
			}
			if !equality.Semantic.DeepEqual(before, object) {
				t.Error("Validate changed the object")
			}
		})
	}
}

// Whatever the API server may hand over, Default settles and neither panics.
func FuzzValidate(f *testing.F) {
	seed, err := json.Marshal(parse(f, valid))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"spec":{"domain":{"memory":{"guest":"1e30"},"cpu":{"cores":4294967295,"sockets":4294967295,"threads":4294967295}}}}`))
	f.Add([]byte(`{"spec":{"domain":{"resources":{"requests":{"cpu":"-1"},"limits":{"cpu":"9e18","memory":"1n"}},"devices":{"disks":[{"name":""},{"lun":{}}],"interfaces":[{"ports":[{"port":-1}]}]}},"networks":[{"pod":null}],"volumes":[{},{"name":"a","containerDisk":{}}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		vmi := &VirtualMachineInstance{}
		if longExponent.Match(data) {
			t.Skip("apimachinery takes minutes to parse 1e-999999999")
		}
		if json.Unmarshal(data, vmi) != nil {
			t.Skip("the API server refuses it")
		}
		Default(vmi)
		again := vmi.DeepCopy()
		Default(again)
		if !equality.Semantic.DeepEqual(vmi, again) {
			t.Errorf("defaulted twice is not defaulted once: %s", cmp.Diff(vmi, again))
		}
		if first, second := problems(vmi), problems(vmi); first != second {
			t.Error("validated twice, two answers")
		}
	})
}

var longExponent = regexp.MustCompile(`[eE]-?[0-9]{4}`)

func problems(vmi *VirtualMachineInstance) string {
	if errs := Validate(vmi); len(errs) > 0 {
		return errs.ToAggregate().Error()
	}
	return ""
}
