package wellknown

import "fmt"

// guest is a kind of guest, for which there is a preference.
type guest struct {
	name, title string
	// system is linux, windows or legacy.
	system string
	// arch is the only architecture of the guest; empty for all.
	arch string
	// cpus and memory are the least that the guest needs; 0 and "" if the preference does not say.
	cpus   int
	memory string
	// parts make the preference's spec, each as YAML.
	parts []string
}

const (
	// virtio is for guests with drivers of virtio devices.
	virtio = "devices: {preferredDiskBus: virtio, preferredInterfaceModel: virtio}"
	random = "devices: {preferredRng: {}}"
	// tablet is a pointer for guests with a desktop.
	tablet = "devices: {preferredAutoattachInputDevice: true, preferredInputBus: virtio, preferredInputType: tablet}"
	// diskThread is a thread for each disk.
	diskThread   = "devices: {preferredDiskDedicatedIoThread: true}"
	queues       = "devices: {preferredNetworkInterfaceMultiQueue: true}"
	transitional = "devices: {preferredUseVirtioTransitional: true}"
	headless     = "devices: {preferredAutoattachGraphicsDevice: false, preferredAutoattachMemBalloon: false, preferredAutoattachSerialConsole: true}"

	// spread lays CPUs out as sockets, cores and two threads for each core.
	spread     = "cpu: {preferredCPUTopology: spread, spreadOptions: {across: SocketsCoresThreads}}"
	spreadBy4  = "cpu: {preferredCPUTopology: spread, spreadOptions: {across: SocketsCoresThreads, ratio: 4}}"
	uefi       = "firmware: {preferredEfi: {secureBoot: false}}"
	secureBoot = "{firmware: {preferredEfi: {secureBoot: true}}, features: {preferredSmm: {}}}"
	// lasting keeps UEFI's variables and the TPM's contents.
	lasting = "{firmware: {preferredEfi: {secureBoot: true, persistent: true}}, features: {preferredSmm: {}}, devices: {preferredTPM: {persistent: true}}}"

	// windows is for every Windows: its clock, its timers and Hyper-V's interfaces.
	windows = "clock: {preferredClockOffset: {utc: {}}, preferredTimer: {hpet: {present: false}, hyperv: {}, pit: {tickPolicy: delay}, rtc: {tickPolicy: catchup}}}\n" +
		"cpu: {preferredCPUTopology: sockets}\n" +
		"devices: {preferredAutoattachInputDevice: true}\n" +
		"features: {preferredAcpi: {}, preferredApic: {}, preferredHyperv: {frequencies: {}, ipi: {}, reenlightenment: {}, relaxed: {}, reset: {}, runtime: {}, " +
		"spinlocks: {spinlocks: 8191}, synic: {}, synictimer: {direct: {}}, tlbflush: {}, vapic: {}, vpindex: {}}}\n" +
		"preferredTerminationGracePeriodSeconds: 3600\n"
	// windowsVirtio is for a Windows in which virtio's drivers are installed.
	windowsVirtio = "devices: {preferredVideoType: virtio}"
	sata          = "devices: {preferredDiskBus: sata}"
	e1000         = "devices: {preferredInterfaceModel: e1000}"
	e1000e        = "devices: {preferredInterfaceModel: e1000e}"
	rtl8139       = "devices: {preferredInterfaceModel: rtl8139}"
	// below4G has no PCI window above 4 GiB, which some 32-bit systems cannot take.
	below4G = `annotations: {kubevirt.io/disablePCIHole64: "true"}`
)

const (
	linux, win, legacy  = "linux", "windows", "legacy"
	amd64, arm64, s390x = "amd64", "arm64", "s390x"
)

// guests are in the order of their names.
var guests = []guest{
	{"alpine", "Alpine", linux, "", 1, "512Mi", []string{virtio, random}},
	{"centos.stream10", "CentOS Stream 10", linux, "", 1, "1.5Gi", []string{virtio, random, diskThread}},
	{"centos.stream10.desktop", "CentOS Stream 10", linux, "", 1, "1.5Gi", []string{virtio, random, diskThread, tablet}},
	{"centos.stream9", "CentOS Stream 9", linux, "", 1, "1.5Gi", []string{virtio, random, diskThread}},
	{"centos.stream9.desktop", "CentOS Stream 9", linux, "", 1, "1.5Gi", []string{virtio, random, diskThread, tablet}},
	{"centos.stream9.dpdk", "CentOS Stream 9", linux, "", 8, "1.5Gi", []string{virtio, random, diskThread, spreadBy4, queues}},
	{"cirros", "Cirros", linux, "", 1, "256Mi", []string{virtio, random}},
	{"debian", "Debian", linux, "", 1, "512Mi", []string{virtio, random, uefi}},
	{"fedora", "Fedora (amd64)", linux, amd64, 1, "2Gi", []string{virtio, random, secureBoot}},
	{"fedora.arm64", "Fedora (arm64)", linux, arm64, 1, "2Gi", []string{virtio, random}},
	{"fedora.s390x", "Fedora (s390x)", linux, s390x, 1, "2Gi", []string{virtio, random}},
	{"legacy", "Legacy Guest", legacy, "", 0, "", []string{sata, e1000}},
	{"linux", "Linux Guest", linux, "", 0, "", []string{virtio, random}},
	{"linux.efi", "Linux EFI Guest", linux, "", 0, "", []string{virtio, random, uefi}},
	{"linux.virtiotransitional", "Linux Virtio Transitional Guest", linux, "", 0, "", []string{virtio, random, transitional}},
	{"opensuse.leap", "OpenSUSE Leap", linux, "", 1, "2Gi", []string{virtio, random}},
	{"opensuse.tumbleweed", "OpenSUSE Tumbleweed", linux, "", 1, "2Gi", []string{virtio, random}},
	{"oraclelinux", "Oracle Linux", linux, "", 2, "4Gi", []string{virtio, random, uefi}},
	{"rhel.10", "Red Hat Enterprise Linux 10 (amd64)", linux, amd64, 1, "1.5Gi", []string{virtio, random, diskThread, secureBoot}},
	{"rhel.10.arm64", "Red Hat Enterprise Linux 10 (arm64)", linux, arm64, 1, "1.5Gi", []string{virtio, random, diskThread}},
	{"rhel.10.s390x", "Red Hat Enterprise Linux 10 (s390x)", linux, s390x, 1, "1.5Gi", []string{virtio, random, diskThread}},
	{"rhel.7", "Red Hat Enterprise Linux 7", linux, "", 1, "1Gi", []string{virtio, random}},
	{"rhel.7.desktop", "Red Hat Enterprise Linux 7", linux, "", 1, "1Gi", []string{virtio, random, tablet}},
	{"rhel.8", "Red Hat Enterprise Linux 8", linux, "", 1, "1.5Gi", []string{virtio, random}},
	{"rhel.8.desktop", "Red Hat Enterprise Linux 8", linux, "", 1, "1.5Gi", []string{virtio, random, tablet}},
	{"rhel.8.dpdk", "Red Hat Enterprise Linux 8", linux, "", 8, "1.5Gi", []string{virtio, random, spreadBy4, queues}},
	{"rhel.9", "Red Hat Enterprise Linux 9 (amd64)", linux, amd64, 1, "1.5Gi", []string{virtio, random, diskThread, secureBoot}},
	{"rhel.9.arm64", "Red Hat Enterprise Linux 9 (arm64)", linux, arm64, 1, "1.5Gi", []string{virtio, random, diskThread}},
	{"rhel.9.desktop", "Red Hat Enterprise Linux 9 Desktop (amd64)", linux, amd64, 1, "1.5Gi", []string{virtio, random, diskThread, secureBoot, tablet}},
	{"rhel.9.dpdk", "Red Hat Enterprise Linux 9 DPDK (amd64)", linux, amd64, 8, "1.5Gi", []string{virtio, random, diskThread, secureBoot, spreadBy4, queues}},
	{"rhel.9.realtime", "Red Hat Enterprise Linux 9 Realtime (amd64)", linux, amd64, 4, "4Gi",
		[]string{virtio, random, diskThread, secureBoot, spread, queues, headless}},
	{"rhel.9.s390x", "Red Hat Enterprise Linux 9 (s390x)", linux, s390x, 1, "1.5Gi", []string{virtio, random, diskThread}},
	{"sles", "SUSE Linux Enterprise Server", linux, "", 1, "2Gi", []string{virtio, random}},
	{"ubuntu", "Ubuntu", linux, "", 1, "2Gi", []string{virtio, random}},
	{"windows.10", "Microsoft Windows 10", win, "", 1, "2Gi", []string{windows, sata, e1000e, secureBoot}},
	{"windows.10.virtio", "Microsoft Windows 10 (virtio)", win, "", 1, "2Gi", []string{windows, virtio, tablet, windowsVirtio, secureBoot}},
	{"windows.11", "Microsoft Windows 11", win, "", 2, "4Gi", []string{windows, sata, e1000e, lasting}},
	{"windows.11.virtio", "Microsoft Windows 11 (virtio)", win, "", 2, "4Gi", []string{windows, virtio, tablet, windowsVirtio, lasting}},
	{"windows.2k12", "Microsoft Windows Server 2012/2012 R2", win, "", 1, "512Mi", []string{windows, sata, e1000e}},
	{"windows.2k12.virtio", "Microsoft Windows Server 2012/2012 R2 (virtio)", win, "", 1, "512Mi", []string{windows, virtio, tablet, windowsVirtio}},
	{"windows.2k16", "Microsoft Windows Server 2016", win, "", 1, "2Gi", []string{windows, sata, e1000e, secureBoot}},
	{"windows.2k16.virtio", "Microsoft Windows Server 2016 (virtio)", win, "", 1, "2Gi", []string{windows, virtio, tablet, windowsVirtio, secureBoot}},
	{"windows.2k19", "Microsoft Windows Server 2019", win, "", 1, "2Gi", []string{windows, sata, e1000e, secureBoot}},
	{"windows.2k19.virtio", "Microsoft Windows Server 2019 (virtio)", win, "", 1, "2Gi", []string{windows, virtio, tablet, windowsVirtio, secureBoot}},
	{"windows.2k22", "Microsoft Windows Server 2022", win, "", 1, "2Gi", []string{windows, sata, e1000e, lasting}},
	{"windows.2k22.virtio", "Microsoft Windows Server 2022 (virtio)", win, "", 1, "2Gi", []string{windows, virtio, tablet, windowsVirtio, lasting}},
	{"windows.2k25", "Microsoft Windows Server 2025", win, "", 1, "2Gi", []string{windows, sata, e1000e, lasting}},
	{"windows.2k25.virtio", "Microsoft Windows Server 2025 (virtio)", win, "", 1, "2Gi", []string{windows, virtio, tablet, windowsVirtio, lasting}},
	{"windows.2k3", "Microsoft Windows Server 2003", win, "", 1, "256Mi", []string{windows, sata, rtl8139, below4G}},
	{"windows.2k8", "Microsoft Windows Server 2008/2008 R2", win, "", 1, "512Mi", []string{windows, sata, e1000}},
	{"windows.2k8.virtio", "Microsoft Windows Server 2008/2008 R2 (virtio)", win, "", 1, "512Mi", []string{windows, virtio, tablet, windowsVirtio}},
	{"windows.7", "Microsoft Windows 7", win, "", 1, "2Gi", []string{windows, sata, e1000e}},
	{"windows.7.virtio", "Microsoft Windows 7 (virtio)", win, "", 1, "2Gi", []string{windows, virtio, tablet, windowsVirtio}},
	{"windows.xp", "Microsoft Windows XP", win, "", 1, "128Mi", []string{windows, sata, e1000e, below4G}},
}

func (g guest) preference() (Object, error) {
	labels := fields{"os-type": g.system}
	parts := append([]string{fmt.Sprintf("annotations: {vm.kubevirt.io/os: %s}", g.system)}, g.parts...)
	if g.cpus > 0 {
		parts = append(parts, fmt.Sprintf("requirements: {cpu: {guest: %d}, memory: {guest: %s}}", g.cpus, g.memory))
		labels["required-cpu"], labels["required-memory"] = fmt.Sprint(g.cpus), g.memory
	}
	if g.arch != "" {
		parts = append(parts, fmt.Sprintf("{preferredArchitecture: %[1]s, requirements: {architecture: %[1]s}}", g.arch))
		labels["arch"], labels["preferred-architecture"], labels["required-architecture"] = g.arch, g.arch, g.arch
	}
	spec, err := assemble(parts...)
	if err != nil {
		return Object{}, fmt.Errorf("read the guest %s: %w", g.name, err)
	}
	return newObject(Preference, g.name, fields{"openshift.io/display-name": g.title}, labels, spec)
}
