package handover

import (
	"fmt"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// configVolumes are the volumes of which the launcher makes disks.
func configVolumes(vmi *v1.VirtualMachineInstance) []control.ConfigVolume {
	var out []control.ConfigVolume
	for _, v := range vmi.Spec.Volumes {
		if vmi.Spec.IsConfigDisk(&v) {
			out = append(out, control.ConfigVolume{Volume: v.Name, Label: v.ConfigLabel(), AnswerFile: v.Sysprep != nil})
		}
	}
	return out
}

// takeConfig puts into host what the launcher says of the disks that it has made.
func takeConfig(host *resolve.Host, asked control.InspectRequest, reply control.InspectReply) error {
	if len(reply.ConfigVolumes) != len(asked.ConfigVolumes) {
		return fmt.Errorf("inspect config volumes: %w: asked about %d, got %d", control.ErrProtocol, len(asked.ConfigVolumes), len(reply.ConfigVolumes))
	}
	host.ConfigVolumes = map[string]qemuargs.ConfigFacts{}
	for i, facts := range reply.ConfigVolumes {
		host.ConfigVolumes[asked.ConfigVolumes[i].Volume] = facts
	}
	return nil
}
