// Package handover holds what virt-launcher is asked and told about a VMI: which facts package
// resolve needs of the place where QEMU runs, and the request by which a VM is started. It is
// pure. virt-handler and "qemuargs run" both take it from here, so that a guest gets the same
// machine from both.
package handover

import (
	"fmt"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// Inspection asks about a VMI's container disks and its kernel. The caller adds the claims.
func Inspection(vmi *v1.VirtualMachineInstance) control.InspectRequest {
	var request control.InspectRequest
	for _, v := range vmi.Spec.Volumes {
		if v.ContainerDisk != nil {
			request.ContainerDisks = append(request.ContainerDisks, control.ContainerDisk{Volume: v.Name, Path: v.ContainerDisk.Path})
		}
	}
	request.ConfigVolumes = configVolumes(vmi)
	request.CPUs = vmi.Spec.Domain.CPU.MapsNUMA()
	for _, nic := range vmi.Spec.Domain.Devices.Interfaces {
		if nic.SRIOV != nil {
			request.Devices = append(request.Devices, nic.Name)
		}
	}
	if k := vmi.KernelContainer(); k != nil {
		request.Kernel = &control.KernelFiles{Kernel: k.KernelPath, Initrd: k.InitrdPath}
	}
	return request
}

// Take puts the answer to an inspection into host. The facts about claims are as the answer has
// them.
func Take(host *resolve.Host, asked control.InspectRequest, reply control.InspectReply) error {
	if len(reply.ContainerDisks) != len(asked.ContainerDisks) {
		return fmt.Errorf("inspect disks: %w: asked about %d, got %d", control.ErrProtocol, len(asked.ContainerDisks), len(reply.ContainerDisks))
	}
	if len(reply.Claims) != len(asked.Claims) {
		return fmt.Errorf("inspect claims: %w: asked about %d, got %d", control.ErrProtocol, len(asked.Claims), len(reply.Claims))
	}
	if err := takeConfig(host, asked, reply); err != nil {
		return err
	}
	host.OverlayDirect, host.OverlayBlocks, host.AIO = reply.OverlayDirect, reply.OverlayBlocks, reply.AIO
	if err := takeNodes(host, asked, reply); err != nil {
		return err
	}
	if asked.Kernel != nil {
		host.Kernel = reply.Kernel
	}
	host.ContainerDisks, host.Claims = map[string]qemuargs.ImageFacts{}, map[string]qemuargs.VolumeFacts{}
	for i, facts := range reply.ContainerDisks {
		host.ContainerDisks[asked.ContainerDisks[i].Volume] = facts
	}
	for i, facts := range reply.Claims {
		host.Claims[asked.Claims[i].Volume] = facts
	}
	return nil
}

// Configure puts into host what the cluster's configuration says of every machine.
func Configure(host *resolve.Host, config *v1.KubeVirtConfiguration) {
	host.NoFreePageReporting = config.FreePageReportingDisabled()
	if s := config.SMBIOS; s != nil {
		host.SMBIOS = qemuargs.SMBIOS{Manufacturer: s.Manufacturer, Product: s.Product, Version: s.Version, SKU: s.SKU, Family: s.Family}
	}
}

// OnlyRead says whether no guest writes to the volume's disk, as with a CD-ROM. The launcher
// then needs no right to write either.
func OnlyRead(vmi *v1.VirtualMachineInstance, volume string) bool {
	for _, d := range vmi.Spec.Domain.Devices.Disks {
		if d.Name == volume {
			_, readOnly := d.Target()
			return readOnly
		}
	}
	return false
}
