package v1

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
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
		firmware   = "spec.domain.firmware"
	)
	type spec = VirtualMachineInstanceSpec
	// devices and others shorten the mutations.
	devices := func(s *spec) *Devices { return &s.Domain.Devices }
	nic := func(s *spec) *Interface { return &s.Domain.Devices.Interfaces[0] }
	seed := func(s *spec) *CloudInitNoCloudSource { return s.Volumes[2].CloudInitNoCloud }
	empty := func(s *spec) *EmptyDiskSource {
		s.Volumes[2].CloudInitNoCloud, s.Volumes[2].EmptyDisk = nil, &EmptyDiskSource{}
		return s.Volumes[2].EmptyDisk
	}
	boot := func(s *spec) *KernelBootContainer {
		s.Domain.Firmware.KernelBoot = &KernelBoot{Container: &KernelBootContainer{Image: "registry.example/kernel:v1"}}
		return s.Domain.Firmware.KernelBoot.Container
	}
	drive := func(s *spec) *CloudInitConfigDriveSource {
		s.Volumes[2].CloudInitNoCloud, s.Volumes[2].CloudInitConfigDrive = nil, &CloudInitConfigDriveSource{}
		return s.Volumes[2].CloudInitConfigDrive
	}
	key := func(s *spec, secret string) *SSHPublicKeyAccessCredentialPropagationMethod {
		k := &SSHPublicKeyAccessCredential{Source: SSHPublicKeyAccessCredentialSource{Secret: &AccessCredentialSecretSource{SecretName: secret}}}
		s.AccessCredentials = []AccessCredential{{SSHPublicKey: k}}
		return &k.PropagationMethod
	}
	const agentUsers = "spec.accessCredentials[0].sshPublicKey.propagationMethod.qemuGuestAgent.users"
	byAgent := func(s *spec, users ...string) *SSHPublicKeyAccessCredentialPropagationMethod {
		method := key(s, "keys")
		method.QemuGuestAgent = &QemuGuestAgentSSHPublicKeyAccessCredentialPropagation{Users: users}
		return method
	}
	password := func(s *spec) *UserPasswordAccessCredential {
		p := &UserPasswordAccessCredential{Source: UserPasswordAccessCredentialSource{Secret: &AccessCredentialSecretSource{SecretName: "passwords"}}}
		p.PropagationMethod.QemuGuestAgent = &QemuGuestAgentUserPasswordAccessCredentialPropagation{}
		s.AccessCredentials = []AccessCredential{{UserPassword: p}}
		return p
	}
	liveness := func(s *spec, h Handler) *Probe {
		s.LivenessProbe = &Probe{Handler: h}
		defaultProbes(s)
		return s.LivenessProbe
	}
	tcp := func(port intstr.IntOrString) Handler { return Handler{TCPSocket: &corev1.TCPSocketAction{Port: port}} }
	long := strings.Repeat("x", maxCloudInitBytes+1)
	tests := []struct {
		name   string
		mutate func(s *spec) // after defaulting
		want   []string      // exactly the fields that are wrong
	}{
		{"valid", func(s *spec) {}, nil},
		{"architecture", func(s *spec) { s.Architecture = "arm64" }, []string{"spec.architecture"}},
		{"negative grace period", func(s *spec) { s.TerminationGracePeriodSeconds = ptr.To[int64](-1) }, []string{"spec.terminationGracePeriodSeconds"}},
		{"more than a year of grace", func(s *spec) { s.TerminationGracePeriodSeconds = ptr.To[int64](10_000_000_000) }, []string{"spec.terminationGracePeriodSeconds"}},
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
		{"user data twice", func(s *spec) { seed(s).UserDataBase64 = "eA==" }, []string{"spec.volumes[2].cloudInitNoCloud.userData"}},
		{"no base64", func(s *spec) { *seed(s) = CloudInitNoCloudSource{NetworkDataBase64: "%"} }, []string{"spec.volumes[2].cloudInitNoCloud.networkDataBase64"}},
		{"long user data", func(s *spec) { seed(s).UserData = long }, []string{"spec.volumes[2].cloudInitNoCloud.userData"}},
		{"user data as long as may be", func(s *spec) { seed(s).UserData = long[1:] }, nil},

		{"ConfigDrive", func(s *spec) { drive(s).UserData = "#cloud-config" }, nil},
		{"long network data of a ConfigDrive", func(s *spec) { drive(s).NetworkData = long }, []string{"spec.volumes[2].cloudInitConfigDrive.networkData"}},
		{"both kinds of seed in a volume", func(s *spec) {
			s.Volumes[2].CloudInitConfigDrive = &CloudInitConfigDriveSource{UserData: "x"}
		}, []string{"spec.volumes[2]"}},
		{"key in the seed", func(s *spec) { key(s, "keys").NoCloud = &NoCloudSSHPublicKeyAccessCredentialPropagation{} }, nil},
		{"key in a seed that is not there", func(s *spec) {
			key(s, "keys").ConfigDrive = &ConfigDriveSSHPublicKeyAccessCredentialPropagation{}
		}, []string{"spec.accessCredentials[0].sshPublicKey.propagationMethod.configDrive"}},
		{"key for nobody", func(s *spec) { key(s, "keys") }, []string{"spec.accessCredentials[0].sshPublicKey.propagationMethod"}},
		{"key of no Secret", func(s *spec) {
			key(s, "").NoCloud = &NoCloudSSHPublicKeyAccessCredentialPropagation{}
			s.AccessCredentials[0].SSHPublicKey.Source.Secret = nil
		}, []string{"spec.accessCredentials[0].sshPublicKey.source"}},
		{"keys by the agent", func(s *spec) { byAgent(s, "demo", "_apt", "pc$", "a@b.example", ".x-y") }, nil},
		{"keys by the agent for nobody", func(s *spec) { byAgent(s) }, []string{agentUsers}},
		{"keys by the agent for no users", func(s *spec) {
			byAgent(s, "demo", "a:b", "a\nb", "-x", "@a", "", "a/b", "a b", "ü", strings.Repeat("x", 65), "demo")
		}, []string{agentUsers + "[10]", agentUsers + "[1]", agentUsers + "[2]", agentUsers + "[3]", agentUsers + "[4]", agentUsers + "[5]",
			agentUsers + "[6]", agentUsers + "[7]", agentUsers + "[8]", agentUsers + "[9]"}},
		{"keys by the agent for too many", func(s *spec) { byAgent(s, slices.Repeat([]string{"x"}, 65)...) }, []string{agentUsers}},
		{"keys by two methods", func(s *spec) {
			byAgent(s, "demo").NoCloud = &NoCloudSSHPublicKeyAccessCredentialPropagation{}
		}, []string{"spec.accessCredentials[0].sshPublicKey.propagationMethod"}},
		{"passwords", func(s *spec) { password(s) }, nil},
		{"passwords of no Secret", func(s *spec) { password(s).Source.Secret = nil }, []string{"spec.accessCredentials[0].userPassword.source"}},
		{"passwords of a Secret without name", func(s *spec) { password(s).Source.Secret.SecretName = "" },
			[]string{"spec.accessCredentials[0].userPassword.source.secret.secretName"}},
		{"passwords for nobody", func(s *spec) { password(s).PropagationMethod.QemuGuestAgent = nil },
			[]string{"spec.accessCredentials[0].userPassword.propagationMethod"}},
		{"keys and passwords at once", func(s *spec) {
			byAgent(s, "demo")
			k := s.AccessCredentials[0].SSHPublicKey
			password(s)
			s.AccessCredentials[0].SSHPublicKey = k
		}, []string{"spec.accessCredentials[0]"}},
		{"no credential", func(s *spec) { s.AccessCredentials = []AccessCredential{{}} }, []string{"spec.accessCredentials[0]"}},

		{"disk without volume", func(s *spec) { devices(s).Disks[1].Name = "none" }, []string{disks + "[1].name"}},
		{"two disks of a volume", func(s *spec) { devices(s).Disks[1].Name = "root" }, []string{disks + "[1].name"}},
		{"boot order 0", func(s *spec) { devices(s).Disks[0].BootOrder = ptr.To[uint32](0) }, []string{disks + "[0].bootOrder"}},
		{"boot order that QEMU cannot count", func(s *spec) { devices(s).Disks[0].BootOrder = ptr.To[uint32](1 << 31) }, []string{disks + "[0].bootOrder"}},
		{"long serial on SCSI", func(s *spec) {
			devices(s).Disks[0].Disk.Bus, devices(s).Disks[0].Serial = "scsi", strings.Repeat("x", 37)
		}, []string{disks + "[0].serial"}},
		{"UUID as serial on SCSI", func(s *spec) {
			devices(s).Disks[0].Disk.Bus, devices(s).Disks[0].Serial = "scsi", strings.Repeat("x", 36)
		}, nil},
		{"boot order twice", func(s *spec) { devices(s).Disks[1].BootOrder = ptr.To[uint32](1) }, []string{disks + "[1].bootOrder"}},
		{"disk and CD-ROM", func(s *spec) { devices(s).Disks[1].Disk = &DiskTarget{Bus: DiskBusVirtio} }, []string{disks + "[1]"}},
		{"LUN", func(s *spec) { devices(s).Disks[0] = Disk{Name: "root", Lun: &Unsupported{}} }, []string{disks + "[0].lun"}},
		{"read-only SATA disk", func(s *spec) { devices(s).Disks[2].Disk.ReadOnly = true }, []string{disks + "[2].disk.readonly"}},
		{"read-only virtio disk", func(s *spec) { devices(s).Disks[0].Disk.ReadOnly = true }, nil},
		{"virtio CD-ROM", func(s *spec) { devices(s).Disks[1].CDRom.Bus = DiskBusVirtio }, []string{disks + "[1].cdrom.bus"}},
		{"writable CD-ROM", func(s *spec) { devices(s).Disks[1].CDRom.ReadOnly = ptr.To(false) }, []string{disks + "[1].cdrom.readonly"}},

		{"no interface", func(s *spec) { devices(s).Interfaces, s.Networks = nil, nil }, nil},
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
		{"loopback CIDR", func(s *spec) { s.Networks[0].Pod.VMNetworkCIDR = "127.0.0.0/8" }, []string{"spec.networks[0].pod.vmNetworkCIDR"}},
		{"multicast CIDR", func(s *spec) { s.Networks[0].Pod.VMNetworkCIDR = "224.0.0.0/8" }, []string{"spec.networks[0].pod.vmNetworkCIDR"}},
		{"more DHCP options than fit", func(s *spec) {
			nic(s).DHCPOptions = &DHCPOptions{PrivateOptions: []DHCPPrivateOptions{{224, long[:250]}, {225, long[:250]}, {226, long[:250]}}}
		}, []string{interfaces + "[0].dhcpOptions"}},
		{"narrow CIDR", func(s *spec) { s.Networks[0].Pod.VMNetworkCIDR = "10.0.2.0/30" }, []string{"spec.networks[0].pod.vmNetworkCIDR"}},

		{"no probe's handler", func(s *spec) { liveness(s, Handler{}) }, []string{"spec.livenessProbe"}},
		{"two handlers of a probe", func(s *spec) {
			liveness(s, Handler{GuestAgentPing: &GuestAgentPing{}, TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(7)}})
		}, []string{"spec.livenessProbe"}},
		{"probe of port 0", func(s *spec) { liveness(s, tcp(intstr.FromInt32(0))) }, []string{"spec.livenessProbe.tcpSocket.port"}},
		{"probe of a port by name", func(s *spec) { liveness(s, tcp(intstr.FromString("http"))) }, nil},
		{"probe of an unknown port", func(s *spec) { liveness(s, tcp(intstr.FromString("www"))) }, []string{"spec.livenessProbe.tcpSocket.port"}},
		{"probe without network", func(s *spec) {
			devices(s).Interfaces, s.Networks = nil, nil
			liveness(s, tcp(intstr.FromInt32(7)))
		}, []string{"spec.livenessProbe.tcpSocket"}},
		{"probe of the agent without network", func(s *spec) {
			devices(s).Interfaces, s.Networks = nil, nil
			liveness(s, Handler{Exec: &corev1.ExecAction{Command: []string{"true"}}})
		}, nil},
		{"probe of no command", func(s *spec) { liveness(s, Handler{Exec: &corev1.ExecAction{}}) }, []string{"spec.livenessProbe.exec.command"}},
		{"probe by no HTTP", func(s *spec) {
			liveness(s, Handler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(80), Scheme: "FTP", HTTPHeaders: []corev1.HTTPHeader{{Name: "a b"}}}})
		}, []string{"spec.livenessProbe.httpGet.httpHeaders[0].name", "spec.livenessProbe.httpGet.scheme"}},
		{"negative times", func(s *spec) {
			liveness(s, tcp(intstr.FromInt32(7))).PeriodSeconds = -1
		}, []string{"spec.livenessProbe.periodSeconds"}},
		{"alive at the second good answer", func(s *spec) {
			liveness(s, tcp(intstr.FromInt32(7))).SuccessThreshold = 2
		}, []string{"spec.livenessProbe.successThreshold"}},
		{"ready at the second good answer", func(s *spec) {
			s.ReadinessProbe = liveness(s, tcp(intstr.FromInt32(7)))
			s.LivenessProbe = nil
			s.ReadinessProbe.SuccessThreshold = 2
		}, nil},
		{"started paused, and alive", func(s *spec) {
			liveness(s, tcp(intstr.FromInt32(7)))
			s.StartStrategy = StartStrategyPaused
		}, []string{"spec.startStrategy"}},
		{"started paused, and alive by the agent", func(s *spec) {
			liveness(s, Handler{GuestAgentPing: &GuestAgentPing{}})
			s.StartStrategy = StartStrategyPaused
		}, nil},

		{"no binding", func(s *spec) { nic(s).Masquerade = nil }, []string{interfaces + "[0]"}},
		{"bridge", func(s *spec) { nic(s).Masquerade, nic(s).Bridge = nil, &InterfaceBridge{} }, nil},
		{"bridge and masquerade", func(s *spec) { nic(s).Bridge = &InterfaceBridge{} }, []string{interfaces + "[0]"}},
		{"two bindings", func(s *spec) { nic(s).SRIOV = &Unsupported{} }, []string{interfaces + "[0]", interfaces + "[0].sriov"}},
		{"no MAC", func(s *spec) { nic(s).MacAddress = "52:54:00" }, []string{interfaces + "[0].macAddress"}},
		{"EUI-64", func(s *spec) { nic(s).MacAddress = "52:54:00:00:00:00:00:01" }, []string{interfaces + "[0].macAddress"}},
		{"multicast MAC", func(s *spec) { nic(s).MacAddress = "01:00:5e:00:00:01" }, []string{interfaces + "[0].macAddress"}},
		{"gateway's MAC", func(s *spec) { nic(s).MacAddress = "02-00-00-00-00-00" }, []string{interfaces + "[0].macAddress"}},
		{"port 0", func(s *spec) { nic(s).Ports[0].Port = 0 }, []string{interfaces + "[0].ports[0].port"}},
		{"port 65536", func(s *spec) { nic(s).Ports[1].Port = 65536 }, []string{interfaces + "[0].ports[1].port"}},
		{"SCTP", func(s *spec) { nic(s).Ports[1].Protocol = "SCTP" }, []string{interfaces + "[0].ports[1].protocol"}},
		{"two ports of a name", func(s *spec) { nic(s).Ports[1].Name = "http" }, []string{interfaces + "[0].ports[1].name"}},

		{"DHCP options", func(s *spec) {
			nic(s).DHCPOptions = &DHCPOptions{TFTPServerName: "tftp.example", BootFileName: "boot", NTPServers: []string{"10.0.0.1"}, PrivateOptions: []DHCPPrivateOptions{{240, "x"}}}
		}, nil},
		{"NTP server by name", func(s *spec) { nic(s).DHCPOptions = &DHCPOptions{NTPServers: []string{"10.0.0.1", "ntp.example"}} }, []string{interfaces + "[0].dhcpOptions.ntpServers[1]"}},
		{"public DHCP option", func(s *spec) { nic(s).DHCPOptions = &DHCPOptions{PrivateOptions: []DHCPPrivateOptions{{6, "x"}}} }, []string{interfaces + "[0].dhcpOptions.privateOptions[0].option"}},
		{"DHCP option twice", func(s *spec) {
			nic(s).DHCPOptions = &DHCPOptions{PrivateOptions: []DHCPPrivateOptions{{224, "x"}, {224, "y"}}}
		}, []string{interfaces + "[0].dhcpOptions.privateOptions[1].option"}},
		{"boot order shared by disk and interface", func(s *spec) { nic(s).BootOrder = ptr.To[uint32](2) }, []string{interfaces + "[0].bootOrder"}},
		{"interface down", func(s *spec) { nic(s).State = "down" }, []string{interfaces + "[0].state"}},

		{"SCSI disk and CD-ROM", func(s *spec) { devices(s).Disks[0].Disk.Bus, devices(s).Disks[1].CDRom.Bus = "scsi", "scsi" }, nil},
		{"open tray", func(s *spec) { devices(s).Disks[1].CDRom.Tray = "open" }, []string{disks + "[1].cdrom.tray"}},
		{"empty disk", func(s *spec) { empty(s).Capacity = resource.MustParse("1Gi") }, nil},
		{"empty disk of no size", func(s *spec) { empty(s).Capacity = resource.MustParse("0") }, []string{"spec.volumes[2].emptyDisk.capacity"}},
		{"empty CD-ROM", func(s *spec) {
			empty(s).Capacity = resource.MustParse("1Gi")
			devices(s).Disks[2] = Disk{Name: "seed", CDRom: &CDRomTarget{Bus: DiskBusSATA, Tray: "closed"}}
		}, []string{disks + "[2]"}},
		{"user data in a Secret", func(s *spec) {
			*seed(s) = CloudInitNoCloudSource{UserDataSecretRef: &corev1.LocalObjectReference{Name: "user"}, NetworkData: "version: 2"}
		}, nil},
		{"user data also in a Secret", func(s *spec) { seed(s).UserDataSecretRef = &corev1.LocalObjectReference{Name: "user"} }, []string{"spec.volumes[2].cloudInitNoCloud.userData"}},
		{"Secret without name", func(s *spec) { seed(s).NetworkDataSecretRef = &corev1.LocalObjectReference{} }, []string{"spec.volumes[2].cloudInitNoCloud.networkDataSecretRef.name"}},

		{"kernel", func(s *spec) { boot(s).KernelPath = "/boot/vmlinuz" }, nil},
		{"initrd without kernel", func(s *spec) { boot(s).InitrdPath = "/boot/initrd" }, []string{firmware + ".kernelBoot.container.kernelPath"}},
		{"relative kernel", func(s *spec) { boot(s).KernelPath = "boot/vmlinuz" }, []string{firmware + ".kernelBoot.container.kernelPath"}},
		{"comma in the initrd", func(s *spec) {
			c := boot(s)
			c.KernelPath, c.InitrdPath = "/boot/vmlinuz", "/boot/initrd,/run/kubeqemu/cloud-init-seed.iso"
		}, []string{firmware + ".kernelBoot.container.initrdPath"}},
		{"space in the initrd", func(s *spec) {
			c := boot(s)
			c.KernelPath, c.InitrdPath = "/boot/vmlinuz", "/boot/a module"
		}, []string{firmware + ".kernelBoot.container.initrdPath"}},
		{"comma in the kernel", func(s *spec) { boot(s).KernelPath = "/boot/vmlinuz,1" }, []string{firmware + ".kernelBoot.container.kernelPath"}},
		{"kernel arguments without kernel", func(s *spec) { s.Domain.Firmware.KernelBoot = &KernelBoot{KernelArgs: "quiet"} }, []string{firmware + ".kernelBoot.container"}},
		{"long kernel arguments", func(s *spec) {
			boot(s).KernelPath = "/vmlinuz"
			s.Domain.Firmware.KernelBoot.KernelArgs = long
		}, []string{firmware + ".kernelBoot.kernelArgs"}},
		{"NUL in kernel arguments", func(s *spec) {
			boot(s).KernelPath = "/vmlinuz"
			s.Domain.Firmware.KernelBoot.KernelArgs = "a\x00b"
		}, []string{firmware + ".kernelBoot.kernelArgs"}},

		{"timers", func(s *spec) {
			off := ptr.To(false)
			s.Domain.Clock = &Clock{UTC: &ClockOffsetUTC{}, Timer: &Timer{HPET: &HPETTimer{Present: off}, PIT: &PITTimer{TickPolicy: "delay"}, RTC: &RTCTimer{TickPolicy: "catchup"}, Hyperv: &PresentTimer{}}}
		}, nil},
		{"no RTC", func(s *spec) { s.Domain.Clock = &Clock{Timer: &Timer{RTC: &RTCTimer{Present: ptr.To(false)}}} }, []string{"spec.domain.clock.timer.rtc.present"}},
		{"PIT catches up", func(s *spec) { s.Domain.Clock = &Clock{Timer: &Timer{PIT: &PITTimer{TickPolicy: "catchup"}}} }, []string{"spec.domain.clock.timer.pit.tickPolicy"}},
		{"no APIC", func(s *spec) { s.Domain.Features = &Features{APIC: &FeatureAPIC{Enabled: ptr.To(false)}} }, []string{"spec.domain.features.apic.enabled"}},

		{"watchdog, inputs, video", func(s *spec) {
			devices(s).Watchdog = &Watchdog{Name: "dog", I6300ESB: &I6300ESBWatchdog{Action: "poweroff"}}
			devices(s).Inputs = []Input{{Name: "a", Type: "tablet", Bus: "usb"}, {Name: "b", Type: "tablet", Bus: "virtio"}}
			devices(s).Video = &VideoDevice{Type: "virtio"}
		}, nil},
		{"watchdog that pauses", func(s *spec) {
			devices(s).Watchdog = &Watchdog{Name: "dog", I6300ESB: &I6300ESBWatchdog{Action: "pause"}}
		}, []string{"spec.domain.devices.watchdog.i6300esb.action"}},
		{"keyboard", func(s *spec) { devices(s).Inputs = []Input{{Name: "a", Type: "keyboard", Bus: "usb"}} }, []string{"spec.domain.devices.inputs[0].type"}},
		{"two inputs of a name", func(s *spec) {
			devices(s).Inputs = []Input{{Name: "a", Type: "tablet", Bus: "usb"}, {Name: "a", Type: "tablet", Bus: "usb"}}
		}, []string{"spec.domain.devices.inputs[1].name"}},
		{"video of a headless guest", func(s *spec) {
			devices(s).Video, devices(s).AutoattachGraphicsDevice = &VideoDevice{Type: "vga"}, ptr.To(false)
		}, []string{"spec.domain.devices.video"}},

		{"hostname", func(s *spec) { s.Hostname, s.Subdomain = "web-0", "web" }, nil},
		{"hostname that is none", func(s *spec) { s.Hostname, s.Subdomain = "Web_0", "web.example" }, []string{"spec.hostname", "spec.subdomain"}},
		{"paused", func(s *spec) { s.StartStrategy = StartStrategyPaused }, nil},
		{"eviction by migration", func(s *spec) { s.EvictionStrategy = ptr.To[EvictionStrategy]("LiveMigrate") }, []string{"spec.evictionStrategy"}},
		{"no DNS at all", func(s *spec) { s.DNSPolicy = corev1.DNSNone }, []string{"spec.dnsConfig.nameservers"}},
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
