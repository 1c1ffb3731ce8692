package explain

// elsewhereFields are the fields that make no argument on any host, and who looks at them
// instead. A test holds them against the catalogue: none of them makes an argument, and each
// field of the catalogue that makes none is among them.
var elsewhereFields = []struct{ field, why string }{
	{"spec.affinity", scheduling},
	{"spec.nodeSelector", scheduling},
	{"spec.tolerations", scheduling},
	{"spec.topologySpreadConstraints", scheduling},
	{"spec.schedulerName", scheduling},
	{"spec.priorityClassName", scheduling},
	{"spec.evictionStrategy", "the cluster looks at it when a pod is evicted"},
	{"spec.startStrategy", "the launcher looks at it: QEMU always starts with stopped CPUs"},
	{"spec.terminationGracePeriodSeconds", "the launcher looks at it when the guest is shut down"},
	{"spec.hostname", guestNames},
	{"spec.subdomain", guestNames},
	{"spec.dnsPolicy", guestNames},
	{"spec.dnsConfig", guestNames},
	{"spec.livenessProbe", "the kubelet asks the guest"},
	{"spec.readinessProbe", "the kubelet asks the guest"},
	{"spec.accessCredentials", "cloud-init or the guest's agent brings them into the guest"},
	{"spec.networks[*].pod", "the network of the pod is set up by it, and QEMU gets a tap or a socket"},
	{"spec.networks[*].multus.networkName", "the network of the pod is set up by it, and QEMU gets a tap or a socket"},
	{"spec.domain.resources.overcommitGuestOverhead", "the pod's memory request follows it"},
	{"spec.domain.features.apic.enabled", "a q35 machine always has an APIC"},
	{"spec.domain.cpu.dedicatedCpuPlacement", "the launcher gives the guest's CPUs their places by it"},
	{"spec.domain.cpu.isolateEmulatorThread", "the launcher moves QEMU's threads by it"},
	{"spec.domain.cpu.realtime.mask", "virt-handler chooses the threads' scheduler by it"},
	{"spec.domain.memory.reservedOverhead", "the pod's memory request and QEMU's limits follow it"},
	{"spec.domain.clock.timer.hpet.tickPolicy", "delay is all that QEMU has"},
	{"spec.domain.clock.timer.rtc.present", "a q35 machine always has an RTC"},
	{"spec.domain.firmware.kernelBoot.container.imagePullPolicy", "the kubelet pulls the image by it"},
	{"spec.domain.firmware.kernelBoot.container.imagePullSecret", "the kubelet pulls the image by it"},
	{"spec.domain.devices.logSerialConsole", "the launcher writes the pod's log by it"},
	{"spec.domain.devices.blockMultiQueue", "virtio disks always have one queue for each virtual CPU"},
	{"spec.domain.devices.disableHotplug", "only free PCI slots are kept for hotplug"},
	{"spec.domain.devices.disks[*].cdrom.readonly", "a CD-ROM is always read-only"},
	{"spec.domain.devices.disks[*].cdrom.tray", "a tray is always closed"},
	{"spec.domain.devices.disks[*].lun.bus", "a LUN is always on bus scsi"},
	{"spec.domain.devices.disks[*].tag", configDrive},
	{"spec.domain.devices.interfaces[*].tag", configDrive},
	{"spec.domain.devices.sound.name", "it names the device in the VMI"},
	{"spec.domain.devices.watchdog.name", "it names the device in the VMI"},
	{"spec.domain.devices.interfaces[*].binding.name", "the cluster's configuration says what the plugin is"},
	{"spec.domain.devices.inputs[*].type", "an input is always a tablet"},
	{"spec.domain.devices.interfaces[*].ports", "the network of the pod is set up by it, and QEMU gets a tap or a socket"},
	{"spec.domain.devices.interfaces[*].dhcpOptions", "the guest is told it by DHCP"},
	{"spec.domain.devices.interfaces[*].state", "the launcher tells QEMU before the guest runs, by set_link"},
	{"spec.volumes[*].cloudInitNoCloud", seed},
	{"spec.volumes[*].cloudInitConfigDrive", seed},
	{"spec.volumes[*].configMap", packed},
	{"spec.volumes[*].secret", "the launcher makes a disk of the files, or copies an ACPI table, before QEMU starts"},
	{"spec.volumes[*].downwardAPI", packed},
	{"spec.volumes[*].serviceAccount", packed},
	{"spec.volumes[*].sysprep", packed},
	{"spec.volumes[*].persistentVolumeClaim.claimName", mounted},
	{"spec.volumes[*].ephemeral.persistentVolumeClaim", mounted},
	{"spec.volumes[*].dataVolume.name", mounted},
	{"spec.volumes[*].hostDisk.path", mounted},
	{"spec.volumes[*].containerDisk.imagePullPolicy", "the kubelet pulls the image by it"},
	{"spec.volumes[*].containerDisk.imagePullSecret", "the kubelet pulls the image by it"},
	{"spec.volumes[*].emptyDisk.capacity", "the launcher makes a disk of this size before QEMU starts"},
	{"spec.volumes[*].hostDisk.capacity", "the launcher makes a disk of this size before QEMU starts"},
	{"spec.volumes[*].hostDisk.type", "the launcher makes a missing file by it"},
	{"spec.volumes[*].hostDisk.shared", "the launcher looks at it"},
}

const (
	scheduling  = "the cluster chooses the node by it"
	seed        = "the launcher writes it into the seed before QEMU starts"
	configDrive = "the launcher writes it into the config drive, if there is one"
	packed      = "the launcher makes a disk of the files before QEMU starts"
	mounted     = "the pod has the volume, the launcher opens the disk, and QEMU gets a descriptor"
	guestNames  = "DHCP tells it to the guest, and the pod has it"
)

// elsewhere returns who looks at a field that makes no argument.
func elsewhere(path string) (why string, ok bool) {
	for _, e := range elsewhereFields {
		if names(path, e.field) {
			return e.why, true
		}
	}
	return "", false
}
