package resolve

import (
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// panicBy is what decides on panic devices.
const panicBy = "spec.domain.devices.panicDevices[*].model"

// panicDevices adds those that are devices of QEMU: model hyperv is a flag of the CPU.
func panicDevices(devices *v1.Devices, m *qemuargs.Machine, why *Decisions) {
	if devices.HasPanic(v1.PanicISA) {
		m.PanicPort = &qemuargs.PanicPort{}
		why.add("panicPort", panicBy, "")
	}
	if devices.HasPanic(v1.PanicPVPanic) {
		m.PanicCard = &qemuargs.PanicCard{PCI: integrated(panicSlot)}
		why.add("panicCard", panicBy, "")
		why.add("panicCard.pci", "", ownSlot)
	}
}

func sound(s *v1.SoundDevice, m *qemuargs.Machine, why *Decisions) {
	if s == nil {
		return
	}
	const field = "spec.domain.devices.sound"
	m.Sound = &qemuargs.Sound{Model: qemuargs.ICH9, PCI: integrated(soundSlot)}
	if s.Model == v1.SoundAC97 {
		m.Sound.Model = qemuargs.AC97
	}
	why.add("sound", field, "")
	why.add("sound.model", field+".model", "")
	why.add("sound.pci", "", ownSlot)
}

// endOnReboot says whether a reboot of the guest ends it.
func endOnReboot(policy *v1.RebootPolicy, why *Decisions) bool {
	why.add("endOnReboot", "spec.domain.rebootPolicy", "a reboot starts the guest anew unless the policy is Terminate")
	return ptr.Deref(policy, v1.RebootPolicyReboot) == v1.RebootPolicyTerminate
}
