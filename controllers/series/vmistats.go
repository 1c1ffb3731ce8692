package series

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// vmiMetrics are the metrics of one running guest.
type vmiMetrics struct {
	cpu, cpuUser, cpuSystem                                         metric
	vcpu, vcpuWait, vcpuDelay                                       metric
	ownQEMU, ownLauncher, booked                                    metric
	resident, domain, balloon                                       metric
	available, unused, usable, cached, swapIn, swapOut              metric
	majorFaults, minorFaults                                        metric
	readOps, readBytes, readTime                                    metric
	writeOps, writeBytes, writeTime                                 metric
	flushOps, flushTime                                             metric
	receiveBytes, receivePackets, receiveErrors, receiveDropped     metric
	transmitBytes, transmitPackets, transmitErrors, transmitDropped metric
	traffic                                                         metric
}

func newVMIMetrics() vmiMetrics {
	const p = "kubevirt_vmi_"
	return vmiMetrics{
		cpu:       counter(p+"cpu_usage_seconds_total", "CPU time of QEMU: of the virtual CPUs, and of everything else it does."),
		cpuUser:   counter(p+"cpu_user_usage_seconds_total", "CPU time of QEMU in user mode; under KVM, that is its own and the guest's."),
		cpuSystem: counter(p+"cpu_system_usage_seconds_total", "CPU time of QEMU in the host's kernel."),
		vcpu:      counter(p+"vcpu_seconds_total", "CPU time that a virtual CPU has had; the state is always running."),
		vcpuWait:  counter(p+"vcpu_wait_seconds_total", "Time that a virtual CPU waited, where the node's kernel counts it (kernel.sched_schedstats)."),
		vcpuDelay: counter(p+"vcpu_delay_seconds_total", "Time that a virtual CPU could have run, and had no CPU of the host's."),

		resident:    gauge(p+"memory_resident_bytes", "Memory of QEMU's process that is in RAM."),
		ownQEMU:     gauge("kubeqemu_vmi_memory_qemu_own_bytes", "Memory of QEMU's process that is in RAM and no other's, without the guest's memory."),
		ownLauncher: gauge("kubeqemu_vmi_memory_launcher_own_bytes", "The same of virt-launcher and its helpers."),
		booked:      gauge(p+"launcher_memory_overhead_bytes", "Memory that the launcher pod books besides the guest's."),
		domain:      gauge(p+"memory_domain_bytes", "Memory of the guest, as its spec says."),
		balloon:     gauge(p+"memory_actual_balloon_bytes", "Memory that the balloon leaves to the guest."),
		available:   gauge(p+"memory_available_bytes", "Memory that the guest's kernel knows of: MemTotal."),
		unused:      gauge(p+"memory_unused_bytes", "Memory that the guest uses for nothing: MemFree."),
		usable:      gauge(p+"memory_usable_bytes", "Memory that the guest could use without swapping: MemAvailable."),
		cached:      gauge(p+"memory_cached_bytes", "Memory that the guest uses for caches."),
		swapIn:      gauge(p+"memory_swap_in_traffic_bytes", "What the guest has read from its swap space."),
		swapOut:     gauge(p+"memory_swap_out_traffic_bytes", "What the guest has written to its swap space."),
		majorFaults: counter(p+"memory_pgmajfault_total", "Page faults of the guest that needed a disk."),
		minorFaults: counter(p+"memory_pgminfault_total", "Page faults of the guest that needed none."),

		readOps:    counter(p+"storage_iops_read_total", "Reads by the guest."),
		readBytes:  counter(p+"storage_read_traffic_bytes_total", "What the guest has read."),
		readTime:   counter(p+"storage_read_times_seconds_total", "Time that the guest's reads took, together."),
		writeOps:   counter(p+"storage_iops_write_total", "Writes by the guest."),
		writeBytes: counter(p+"storage_write_traffic_bytes_total", "What the guest has written."),
		writeTime:  counter(p+"storage_write_times_seconds_total", "Time that the guest's writes took, together."),
		flushOps:   counter(p+"storage_flush_requests_total", "Flushes by the guest."),
		flushTime:  counter(p+"storage_flush_times_seconds_total", "Time that the guest's flushes took, together."),

		receiveBytes:    counter(p+"network_receive_bytes_total", "What the guest was sent."),
		receivePackets:  counter(p+"network_receive_packets_total", "Packets that the guest was sent."),
		receiveErrors:   counter(p+"network_receive_errors_total", "Packets to the guest with errors."),
		receiveDropped:  counter(p+"network_receive_packets_dropped_total", "Packets to the guest that it did not take in time."),
		transmitBytes:   counter(p+"network_transmit_bytes_total", "What the guest has sent."),
		transmitPackets: counter(p+"network_transmit_packets_total", "Packets that the guest has sent."),
		transmitErrors:  counter(p+"network_transmit_errors_total", "Packets by the guest with errors."),
		transmitDropped: counter(p+"network_transmit_packets_dropped_total", "Packets by the guest that were dropped."),
		traffic:         counter(p+"network_traffic_bytes_total", "Deprecated in KubeVirt: the bytes of both directions, by type."),
	}
}

// VMIStats makes series of launchers' statistics. It takes only the numbers from a launcher:
// the VMI's spec says which disks, network cards and CPUs there are.
type VMIStats struct{ metrics vmiMetrics }

// NewVMIStats makes a VMIStats.
func NewVMIStats() VMIStats { return VMIStats{newVMIMetrics()} }

// Send sends the series of one VMI.
func (s VMIStats) Send(to chan<- prometheus.Metric, vmi *v1.VirtualMachineInstance, stats *control.Stats) {
	m, of := s.metrics, vmiLabels(vmi)
	if c := stats.CPU; c != nil {
		m.cpu.send(to, seconds(c.User)+seconds(c.System), of)
		m.cpuUser.send(to, seconds(c.User), of)
		m.cpuSystem.send(to, seconds(c.System), of)
	}
	for i, c := range stats.VCPUs[:min(len(stats.VCPUs), vcpus(vmi))] {
		id := labels{"id", strconv.Itoa(i)}
		m.vcpu.send(to, seconds(c.Time), of, id, labels{"state", "running"})
		m.vcpuDelay.send(to, seconds(c.Delay), of, id)
		if c.Wait != nil {
			m.vcpuWait.send(to, seconds(*c.Wait), of, id)
		}
	}
	s.memory(to, vmi, stats, of)
	disks := map[string]bool{}
	for _, d := range vmi.Spec.Domain.Devices.Disks {
		disks[d.Name] = true
	}
	for _, d := range stats.Disks {
		if disks[d.Name] {
			disks[d.Name] = false // once
			s.disk(to, d, of, labels{"drive", d.Name})
		}
	}
	nics := map[string]bool{}
	for _, n := range vmi.Spec.Domain.Devices.Interfaces {
		nics[n.Name] = true
	}
	for _, n := range stats.NICs {
		if nics[n.Name] {
			nics[n.Name] = false
			s.nic(to, n, of, labels{"interface", n.Name})
		}
	}
}

func (s VMIStats) memory(to chan<- prometheus.Metric, vmi *v1.VirtualMachineInstance, stats *control.Stats, of labels) {
	m := s.metrics
	if g := vmi.Spec.Domain.Memory; g != nil && g.Guest != nil {
		m.domain.send(to, float64(g.Guest.Value()), of)
	}
	if stats.Resident > 0 {
		m.resident.send(to, float64(stats.Resident), of)
	}
	if o := stats.Own; o != nil {
		m.ownQEMU.send(to, float64(o.QEMU), of)
		m.ownLauncher.send(to, float64(o.Launcher), of)
	}
	if b := vmi.Status.Memory; b != nil && b.MemoryOverhead != nil {
		m.booked.send(to, float64(b.MemoryOverhead.Value()), of)
	}
	guest := stats.Guest
	if guest == nil {
		guest = &control.GuestMemory{}
	}
	for _, g := range []struct {
		metric metric
		value  *uint64
	}{{m.balloon, stats.Balloon}, {m.available, guest.Available}, {m.unused, guest.Unused}, {m.usable, guest.Usable}, {m.cached, guest.Cached},
		{m.swapIn, guest.SwapIn}, {m.swapOut, guest.SwapOut}, {m.majorFaults, guest.MajorFaults}, {m.minorFaults, guest.MinorFaults}} {
		if g.value != nil {
			g.metric.send(to, float64(*g.value), of)
		}
	}
}

func (s VMIStats) disk(to chan<- prometheus.Metric, d control.DiskStats, of ...labels) {
	m := s.metrics
	m.readOps.send(to, float64(d.Read.Operations), of...)
	m.readBytes.send(to, float64(d.Read.Bytes), of...)
	m.readTime.send(to, seconds(d.Read.Time), of...)
	m.writeOps.send(to, float64(d.Write.Operations), of...)
	m.writeBytes.send(to, float64(d.Write.Bytes), of...)
	m.writeTime.send(to, seconds(d.Write.Time), of...)
	m.flushOps.send(to, float64(d.Flush.Operations), of...)
	m.flushTime.send(to, seconds(d.Flush.Time), of...)
}

func (s VMIStats) nic(to chan<- prometheus.Metric, n control.NICStats, of ...labels) {
	m, r, t := s.metrics, n.Receive, n.Transmit
	m.receiveBytes.send(to, float64(r.Bytes), of...)
	m.receivePackets.send(to, float64(r.Packets), of...)
	m.receiveErrors.send(to, float64(r.Errors), of...)
	m.receiveDropped.send(to, float64(r.Dropped), of...)
	m.transmitBytes.send(to, float64(t.Bytes), of...)
	m.transmitPackets.send(to, float64(t.Packets), of...)
	m.transmitErrors.send(to, float64(t.Errors), of...)
	m.transmitDropped.send(to, float64(t.Dropped), of...)
	m.traffic.send(to, float64(r.Bytes), append(of, labels{"type", "rx"})...)
	m.traffic.send(to, float64(t.Bytes), append(of, labels{"type", "tx"})...)
}

func seconds(nanoseconds uint64) float64 { return float64(nanoseconds) / 1e9 }

// vcpus is the number of the guest's CPUs.
func vcpus(vmi *v1.VirtualMachineInstance) int {
	n := 1
	if c := vmi.Spec.Domain.CPU; c != nil {
		for _, factor := range []uint32{c.Sockets, c.Cores, c.Threads} {
			n *= int(max(1, factor))
		}
	}
	return n
}
