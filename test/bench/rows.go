package main

import "fmt"

// group is some rows that are measured at once.
type group struct {
	name    string
	measure func(*run)
	cluster bool // the bench's cluster is up
	rows    []row
}

func one(name string) series { return series{Name: name} }

func named(names ...string) (all []series) {
	for _, name := range names {
		all = append(all, one(name))
	}
	return all
}

// groups returns all rows, in their order, and what measures them.
func groups() []group {
	const (
		image    = "the Debian guest's qcow2 over HTTP"
		withQEMU = "QEMU and virt-launcher"
		exec     = "`kubectl exec` into the pod, and the launcher's console there"
	)
	ofThousand := fmt.Sprintf("of %d on %d simulated nodes", thousand, fleet)
	besideVMI := []string{"plain pod of the same image → Ready", "pod without any volume, not even a token → Ready",
		"the VMI's pod without the VM and its image volume → Ready", "the VMI's pod without the VM → Ready"}
	return []group{
		{name: "start", measure: measureStart, rows: []row{{
			ID: "start", What: "told to start → guest CPUs running", Unit: milliseconds, Limit: 1.08, OfRatio: true,
			Ours:   one("virt-launcher"),
			Beside: named("bare QEMU, same arguments", "libvirt, warm", "libvirt, nothing cached"),
			Parts: named("virt-launcher: until it reports that it prepares", "making the overlay, alone",
				"bare QEMU: until its greeting", "bare QEMU: from there to running"),
		}}},
		{name: "memory", measure: measureMemory, rows: []row{{
			ID: "launcher", What: "virt-launcher beside an idle guest, RSS", Unit: mebibytes, Limit: 8,
			Ours:  one("RSS"),
			Parts: named("PSS", "private (USS)", "private and written", "RSS while it waits for a Machine"),
		}, {
			ID: "around-stopped", What: "not guest RAM, VM stopped at -S, private", Unit: mebibytes, Limit: 16,
			Ours: one(withQEMU),
			Parts: named("QEMU, private", "QEMU, RSS", "RSS of both: a VM alone on its node",
				"page tables of both, besides"),
			Notes: []string{fmt.Sprintf("%d VMs side by side, so that pages of programs and libraries count as shared.",
				companions)},
		}}},
		{name: "boot", measure: measureBoot, rows: []row{{
			ID: "boot", What: "QEMU's start → guest's user space", Unit: seconds, Limit: 1.1, OfRatio: true,
			Ours: one("QEMU with a Machine's arguments"), Beside: named("the plainest QEMU line, same kernel"),
		}}},
		{name: "network", measure: measureNetwork, rows: networkRows()},
		{name: "disk", measure: measureDisk, rows: []row{
			diskRow("disk-write", "guest's disk, %d MiB written and synced"),
			diskRow("disk-read", "guest's disk, the same %d MiB read"),
		}},
		{name: "migration", measure: measureMigration, rows: migrationRows()},
		{name: "images", measure: measureImages, rows: []row{{
			ID: "images", What: "all images, compressed", Unit: megabytes, Limit: 120, Ours: one("all"),
		}}},
		{name: "imports", measure: measureImports, rows: []row{{
			ID: "import-memory", What: "importer's peak memory, " + image, Unit: mebibytes, Limit: 64,
			Ours: one("importer pod"), Parts: named("virt-importer", "qemu-img"),
		}, {
			ID: "import-bytes", What: "bytes that the importer reads, " + image, Unit: megabytes, Limit: 1.05, OfRatio: true,
			Ours: one("importer"), Beside: named("the image"),
		}, {
			ID: "import-bytes-checksum", What: "the same, with a checksum", Unit: megabytes, Limit: 2.1, OfRatio: true,
			Ours: one("importer"), Beside: named("the image"),
		}, {
			ID: "import-time", What: "time of an import, " + image, Unit: seconds, Limit: 1.2, OfRatio: true,
			Ours: one("importer"), Beside: named("download, then qemu-img convert"),
		}}},
		{name: "control-plane", cluster: true, measure: measurePlane, rows: []row{
			planeRow("control-plane", "control plane, idle, PSS", 60),
		}},
		{name: "apply", cluster: true, measure: measureApply, rows: []row{{
			ID: "apply", What: "`kubectl apply` of a VMI → Running", Unit: seconds, Limit: 1.2, OfRatio: true,
			Ours: one("VMI"), Beside: named(besideVMI...),
		}, {
			ID: "apply-server", What: "the same, from when the API server has it", Unit: seconds,
			Ours: one("VMI"), Beside: named(besideVMI...),
			Parts: named("kubectl", "virt-controller makes the pod", "scheduler",
				"kubelet and containerd, until Ready is seen", "from there to Running"),
		}}},
		{name: "image-containers", cluster: true, measure: measureImageContainers, rows: []row{{
			ID: "apply-image-container", Unit: seconds, Limit: 1.2, OfRatio: true,
			What: "`kubectl apply` of a VMI whose disk a container hands out → Running",
			Ours: one("disk from a container"), Beside: named("disk from an image volume"),
		}, {
			ID: "image-container", What: "the container that hands out a disk, private", Unit: mebibytes, Limit: 2,
			Ours:  one("private (USS)"),
			Parts: named("RSS", "private and written", "PSS, beside another one on its node"),
		}}},
		{name: "idle-vms", cluster: true, measure: measureIdle, rows: []row{
			idleRow("around-one", "not guest RAM, one idle VM on the cluster, private"),
			idleRow("around-ten", fmt.Sprintf("the same, each of %d idle VMs", manyVMs)),
			planeRow("control-plane-ten", fmt.Sprintf("control plane with %d idle VMs, PSS", manyVMs), 0),
		}},
		{name: "burst", cluster: true, measure: measureBurst, rows: []row{{
			ID: "burst", Unit: seconds, Limit: 1.5, OfRatio: true,
			What: fmt.Sprintf("`kubectl apply` of %d VMIs, whose guests burn CPU → all Running", burstSize),
			Ours: one("VMIs"),
			Beside: named("plain pods that burn CPU → all Ready",
				"such pods without any volume, not even a token → all Ready"),
			Parts: named("until all pods are there", "until the first pod is Ready", "until all pods are",
				"until the first is Running", "until half of them are"),
		}}},
		{name: "crds", measure: measureCRDs, rows: []row{
			{ID: "crd-size", What: "the largest CRD, as compact JSON", Unit: thousandBytes, Limit: 100, Ours: one("largest")},
			{ID: "crd-heap", What: "kube-apiserver's heap, for all CRDs", Unit: mebibytes, Ours: one("CRDs")},
		}},
		{name: "streams", cluster: true, measure: measureStreams, rows: []row{{
			ID: "console", Unit: milliseconds, Ours: one("virt-api"), Beside: named(exec),
			What: fmt.Sprintf("console through virt-api, one key and its echo, median of %d", keystrokes),
		}, {
			ID: "console-p99", What: "the same, 99th percentile", Unit: milliseconds,
			Ours: one("virt-api"), Beside: named(exec),
		}, {
			ID: "portforward", Unit: seconds,
			What: fmt.Sprintf("port-forward through virt-api, %d MiB to the guest and back", forwarded>>20),
			Ours: one("virt-api"), Beside: named("`kubectl port-forward` of the pod, to the same guest"),
		}}},
		{name: "hundred", measure: measureHundred, rows: []row{
			planeRow("control-plane-hundred",
				fmt.Sprintf("control plane with %d VMIs of one node (launchers without QEMU), PSS", hundred), 75),
			writesRow("writes", fmt.Sprintf("writes to a VMI and its pod per start, of %d on one node", hundred)),
			idleWritesRow("writes-idle", hundred),
		}},
		{name: "thousand", measure: measureThousand, rows: []row{
			{
				ID: "controller-per-vmi", What: "virt-controller's memory per VMI, " + ofThousand + ", PSS", Unit: kibibytes,
				Ours: one("virt-controller"),
			},
			writesRow("writes-thousand", "writes to a VMI and its pod per start, "+ofThousand,
				"what virt-handler writes is written here by the simulated nodes, once per start as by virt-handler itself "+
					"in the rows of one node."),
			idleWritesRow("writes-idle-thousand", thousand),
			{
				ID: "pod", What: "VMI created → its pod created, median " + ofThousand, Unit: milliseconds,
				Ours: one("virt-controller"),
			},
			{ID: "pod-p99", What: "the same, 99th percentile", Unit: milliseconds, Ours: one("virt-controller")},
		}},
	}
}

// networkRows returns rows of what each path of a guest's network carries, and of how long a byte is on its way.
func networkRows() (rows []row) {
	ours, plain := paths()
	for _, p := range ours {
		what := "guest's network, " + p.id + ": "
		rows = append(rows, row{
			ID: "network-" + p.id, Unit: megabytesPerSecond, Limit: 0.9, OfRatio: true,
			What: what + fmt.Sprintf("%d MiB to the guest and back, each way", carried>>20),
			Ours: one(p.what), Beside: named(plain.what),
		}, row{
			ID: "latency-" + p.id, Unit: milliseconds, Limit: 1.11, OfRatio: true,
			What: what + "a byte to the guest and back",
			Ours: one(p.what), Beside: named(plain.what),
		})
	}
	return rows
}

// diskRow returns a row of what a guest's disk carries.
func diskRow(id, what string) row {
	return row{
		ID: id, What: fmt.Sprintf(what, written>>20), Unit: megabytesPerSecond,
		Ours: one("overlay"), Beside: named("the plainest QEMU line with a raw virtio disk"),
	}
}

// migrationRows returns rows of how long each guest's migration takes, and of its downtime.
func migrationRows() (rows []row) {
	for _, g := range travellers() {
		bare := "migrate between two bare QEMUs, same arguments"
		if g.bandwidth != 0 {
			bare += ", channel of the same width"
		}
		of := func(id, what string) row {
			return row{
				ID: id + g.id(), What: what, Unit: milliseconds, Limit: 1.2, OfRatio: true,
				Ours:   one("two launchers, two virt-handlers"),
				Beside: named(bare, "two bare QEMUs, two relays without TLS, return path"),
			}
		}
		rows = append(rows,
			of("migration-time-", "migration, told to migrate → guest runs on the target, "+g.String()),
			of("migration-downtime-", "its downtime by query-migrate"))
	}
	return rows
}

// planeRow returns a row of the PSS of all components together, virt-api included.
func planeRow(id, what string, limit float64) row {
	return row{ID: id, What: what, Unit: mebibytes, Limit: limit, Ours: one("all")}
}

// idleRow returns a row of what is not guest RAM, beside what is booked, which is its budget.
func idleRow(id, what string) row {
	return row{
		ID: id, What: what, Unit: mebibytes,
		Ours: one("QEMU and virt-launcher"), Beside: []series{{Name: "booked", Reference: true}},
		Parts: named("QEMU, private", "of that, code translated by TCG", "virt-launcher, private", "RSS of both",
			"virt-launcher, RSS", "page tables of both, besides", "guest RAM in use, besides",
			"Kubernetes' shim and pause, private, besides"),
	}
}

const components = "virt-api, virt-controller, virt-handler"

// writesRow returns a row of what a start writes to the VMI and its pod.
func writesRow(id, what string, notes ...string) row {
	return row{ID: id, What: what, Unit: writes, Limit: 4, Ours: one(components), Notes: notes}
}

// idleWritesRow returns a row of what is written when nothing is asked for.
func idleWritesRow(id string, count int) row {
	what := fmt.Sprintf("the same, of all %d in a minute in which nothing is asked of them", count)
	return row{ID: id, What: what, Unit: writes, None: true, Ours: one(components)}
}
