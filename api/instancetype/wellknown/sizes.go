package wellknown

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// series is a family of instancetypes.
type series struct {
	name, class, title, about, icon string
	sizes                           []size
	// pages are the sizes of the huge pages. There is an instancetype for each; the names of all
	// but the first end with the pages' size.
	pages []string
	// noMoreSockets: no CPU can be added to the running guest.
	noMoreSockets bool
	// spec is the part of the instancetype's spec that all sizes share, as YAML.
	spec string
}

// size is a number of CPUs and an amount of memory.
type size struct {
	name   string
	cpus   int
	memory string
}

const (
	ownCPUs   = "cpu: {dedicatedCPUPlacement: true, isolateEmulatorThread: true}\n"
	ioThreads = "ioThreadsPolicy: auto\n"
	crio      = "annotations: {cpu-load-balancing.crio.io: disable, cpu-quota.crio.io: disable, irq-load-balancing.crio.io: disable}\n"
)

// allSeries are in the order of the page.
func allSeries() []series {
	return []series{
		{name: "u1", class: "general.purpose", title: "General Purpose", icon: "pficon-server-group",
			about: "For guests of every kind. The guests of a node share the node's CPUs.", sizes: general},
		{name: "o1", class: "overcommitted", title: "Overcommitted", icon: "pficon-virtual-machine",
			about: "As u1, but a guest's pod requests only half of the guest's memory. So more guests fit on a node.",
			sizes: without(general, "2xmedium"), spec: "memory: {overcommitPercent: 50}\n"},
		{name: "d1", class: "dedicated.vcpu", title: "Dedicated vCPU", icon: "pficon-server-group",
			about: "As u1, but no other guest runs on the guest's CPUs.", sizes: general, spec: ownCPUs + ioThreads},
		{name: "cx1", class: "compute.exclusive", title: "Compute Exclusive", icon: "pficon-registry",
			about: "For computation. No other guest runs on the guest's CPUs, the guest sees the node's NUMA topology, and its memory is huge pages.",
			sizes: []size{{"medium", 1, "2Gi"}, {"large", 2, "4Gi"}, {"xlarge", 4, "8Gi"}, {"2xlarge", 8, "16Gi"}, {"4xlarge", 16, "32Gi"}, {"8xlarge", 32, "64Gi"}},
			pages: []string{"2Mi", "1Gi"}, noMoreSockets: true,
			spec: "cpu: {dedicatedCPUPlacement: true, isolateEmulatorThread: true, numa: {guestMappingPassthrough: {}}}\n" + ioThreads},
		{name: "m1", class: "memory.intensive", title: "Memory Intensive", icon: "fa-memory",
			about: "For guests that need much memory: 8 GiB for each CPU, of huge pages.",
			sizes: []size{{"large", 2, "16Gi"}, {"xlarge", 4, "32Gi"}, {"2xlarge", 8, "64Gi"}, {"4xlarge", 16, "128Gi"}, {"8xlarge", 32, "256Gi"}},
			pages: []string{"2Mi", "1Gi"}},
		{name: "n1", class: "network", title: "Network", icon: "pficon-network",
			about: "For guests that process packets, as with DPDK. No other guest runs on the guest's CPUs, and its memory is huge pages.",
			sizes: []size{{"medium", 4, "4Gi"}, {"large", 4, "8Gi"}, {"xlarge", 8, "16Gi"}, {"2xlarge", 16, "32Gi"}, {"4xlarge", 32, "64Gi"}, {"8xlarge", 64, "128Gi"}},
			pages: []string{"1Gi"}, spec: ownCPUs + crio},
		{name: "rt1", class: "realtime", title: "Realtime", icon: "pficon-server-group",
			about: "For guests that must answer in time. The threads of the guest's CPUs have the node's real-time scheduler, no other guest runs on these CPUs, and the memory is huge pages.",
			sizes: without(general, "nano", "2xmedium"), pages: []string{"1Gi"},
			spec: "cpu: {dedicatedCPUPlacement: true, isolateEmulatorThread: true, numa: {guestMappingPassthrough: {}}, realtime: {}}\n" + crio},
	}
}

var general = []size{{"nano", 1, "512Mi"}, {"micro", 1, "1Gi"}, {"small", 1, "2Gi"}, {"medium", 1, "4Gi"}, {"2xmedium", 2, "4Gi"}, {"large", 2, "8Gi"},
	{"xlarge", 4, "16Gi"}, {"2xlarge", 8, "32Gi"}, {"4xlarge", 16, "64Gi"}, {"8xlarge", 32, "128Gi"}}

// without returns the sizes except those with the given names.
func without(sizes []size, names ...string) []size {
	var kept []size
	for _, s := range sizes {
		if !slices.Contains(names, s.name) {
			kept = append(kept, s)
		}
	}
	return kept
}

// instancetypes are those of the series.
func (s series) instancetypes() ([]Object, error) {
	pages := s.pages
	if len(pages) == 0 {
		pages = []string{""}
	}
	var all []Object
	for _, size := range s.sizes {
		for i, page := range pages {
			suffix := ""
			if i > 0 {
				suffix = strings.ToLower(page)
			}
			o, err := s.instancetype(size, size.name+suffix, page)
			if err != nil {
				return nil, err
			}
			all = append(all, o)
		}
	}
	return all, nil
}

func (s series) instancetype(size size, name, page string) (Object, error) {
	spec, err := assemble(s.spec, fmt.Sprintf("{cpu: {guest: %d}, memory: {guest: %s}}", size.cpus, size.memory))
	if err != nil {
		return Object{}, fmt.Errorf("read the series %s: %w", s.name, err)
	}
	cpu, memory := spec["cpu"].(fields), spec["memory"].(fields)
	labels := fields{"class": s.class, "cpu": strconv.Itoa(size.cpus), "memory": size.memory, "size": name, "icon-pf": s.icon, "version": "1"}
	for _, feature := range []string{"dedicatedCPUPlacement", "isolateEmulatorThread", "numa", "realtime"} {
		if cpu[feature] != nil {
			labels[feature] = "true"
		}
	}
	if page != "" {
		memory["hugepages"], labels["hugepages"] = fields{"pageSize": page}, page
	}
	if s.noMoreSockets {
		cpu["maxSockets"] = size.cpus
	}
	annotations := fields{prefix + "displayName": s.title, prefix + "description": s.about}
	return newObject(Instancetype, s.name+"."+name, annotations, labels, spec)
}
