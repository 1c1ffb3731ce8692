package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/test/simulation"
)

const (
	// hundredLimit is the budget of all components with a hundred VMIs on one node, in MiB of PSS.
	hundredLimit = 75
	// writesLimit is the budget of what a start writes to the VMI and its pod.
	writesLimit = 4
	hundred     = 100
	thousand    = 1000
	// fleet is how many nodes have the thousand.
	fleet = 10
)

// hundredRows: a hundred VMIs on one node, with the real components. The node's kubelet is
// made up, and its launchers start no QEMU.
func hundredRows(ctx context.Context, b *bench) (rows []row, err error) {
	rows = []row{
		{ID: "control-plane-hundred", What: fmt.Sprintf("control plane with %d VMIs of one node (launchers without QEMU), PSS", hundred), Unit: mebibytes, Ours: series{Name: "all"}, Limit: hundredLimit},
		writesRow("writes", fmt.Sprintf("writes to a VMI and its pod per start, of %d on one node", hundred)),
		idleWritesRow("writes-idle", hundred),
	}
	s, err := b.simulate(ctx)
	if err != nil {
		return rows, err
	}
	defer func() { err = errors.Join(err, s.end()) }()
	for _, start := range []func() (*simulation.Component, error){
		func() (*simulation.Component, error) { return s.StartAPI(ctx) }, s.StartController,
		func() (*simulation.Component, error) { return s.StartNode(ctx) },
	} {
		if err := s.run(start); err != nil {
			return rows, err
		}
	}
	if err := pause(ctx, 30*time.Second); err != nil {
		return rows, err
	}
	before := row{}
	if err := s.pss(&before); err != nil {
		return rows, err
	}
	part(&rows[0], "before the first VMI", before.Ours.Samples[0])
	if _, err := s.starts(ctx, hundred, &rows[1]); err != nil {
		return rows, err
	}
	if err := s.rests(ctx, &rows[2]); err != nil {
		return rows, err
	}
	for range 3 {
		if err := errors.Join(s.pss(&rows[0]), pause(ctx, 2*time.Second)); err != nil {
			return rows, err
		}
	}
	return rows, nil
}

// thousandRows: a thousand VMIs, with the real virt-controller and virt-api. The nodes are
// nothing but what kubelets and virt-handlers write.
func thousandRows(ctx context.Context, b *bench) (rows []row, err error) {
	of := fmt.Sprintf("of %d on %d simulated nodes", thousand, fleet)
	rows = []row{
		{ID: "controller-per-vmi", What: "virt-controller's memory per VMI, " + of + ", PSS", Unit: kibibytes, Ours: series{Name: "virt-controller"}},
		writesRow("writes-thousand", "writes to a VMI and its pod per start, "+of),
		idleWritesRow("writes-idle-thousand", thousand),
		{ID: "pod", What: "VMI created → its pod created, median " + of, Unit: milliseconds, Ours: series{Name: "virt-controller"}},
		{ID: "pod-p99", What: "the same, 99th percentile", Unit: milliseconds, Ours: series{Name: "virt-controller"}},
	}
	rows[1].Notes = []string{"what virt-handler writes is written here by the simulated nodes, once per start as by virt-handler itself in the rows of one node."}
	s, err := b.simulate(ctx)
	if err != nil {
		return rows, err
	}
	defer func() { err = errors.Join(err, s.end()) }()
	for _, start := range []func() (*simulation.Component, error){func() (*simulation.Component, error) { return s.StartAPI(ctx) }, s.StartController} {
		if err := s.run(start); err != nil {
			return rows, err
		}
	}
	if err := s.StartFleet(ctx, fleet); err != nil {
		return rows, err
	}
	if err := pause(ctx, 30*time.Second); err != nil {
		return rows, err
	}
	before, err := s.memory(ctx)
	if err != nil {
		return rows, err
	}
	times, err := s.starts(ctx, thousand, &rows[1])
	if err != nil {
		return rows, err
	}
	add(&rows[3].Ours, quantile(times, 0.5))
	add(&rows[4].Ours, quantile(times, 0.99))
	if err := s.rests(ctx, &rows[2]); err != nil {
		return rows, err
	}
	after, err := s.memory(ctx)
	if err != nil {
		return rows, err
	}
	perVMI := func(name string) float64 { return float64(after[name]-before[name]) / 1024 / thousand }
	add(&rows[0].Ours, perVMI("virt-controller"))
	part(&rows[0], "virt-controller with none", float64(before["virt-controller"])/1024)
	part(&rows[0], fmt.Sprintf("virt-controller with %d", thousand), float64(after["virt-controller"])/1024)
	for _, name := range []string{"virt-api", kubeAPIServerHeap, "etcd"} {
		part(&rows[0], name+" per VMI, besides", perVMI(name))
	}
	return rows, nil
}

func writesRow(id, what string) row {
	return row{ID: id, What: what, Unit: writes, Ours: series{Name: "virt-api, virt-controller, virt-handler"}, Limit: writesLimit}
}

func idleWritesRow(id string, count int) row {
	return row{ID: id, What: fmt.Sprintf("the same, of all %d in a minute in which nothing is asked of them", count), Unit: writes,
		Ours: series{Name: "virt-api, virt-controller, virt-handler"}, None: true}
}

// simulated is a cluster whose nodes are made up.
type simulated struct {
	*simulation.Cluster
	b          *bench
	folder     string
	components []*simulation.Component
}

func (b *bench) simulate(ctx context.Context) (*simulated, error) {
	// A short name: paths of sockets may have 107 bytes.
	folder, err := os.MkdirTemp("", "kubeqemu-")
	if err != nil {
		return nil, err
	}
	programs := filepath.Join(folder, "bin")
	err = errors.Join(os.Mkdir(programs, 0o755), os.Symlink(b.output("bin", "virt-components"), filepath.Join(programs, "virt-components")), simulation.LinkPrograms(programs))
	s := &simulated{b: b, folder: folder}
	if err == nil {
		s.Cluster, err = simulation.Start(ctx, simulation.Options{Repository: b.repository, Programs: programs, Folder: folder})
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(folder))
	}
	return s, nil
}

// end ends all, and removes the files.
func (s *simulated) end() error { return errors.Join(s.Close(), os.RemoveAll(s.folder)) }

func (s *simulated) run(start func() (*simulation.Component, error)) error {
	c, err := start()
	if err == nil {
		s.components = append(s.components, c)
	}
	return err
}

// pss adds a sample of the components' memory.
func (s *simulated) pss(r *row) error {
	total := 0.0
	for _, c := range s.components {
		m, err := memoryOf(c.PID(), 0)
		if err != nil {
			return err
		}
		total += mib(m.PSS)
		part(r, c.Name, mib(m.PSS))
		part(r, c.Name+", written (heap, stacks, data)", mib(m.PrivateDirty))
	}
	add(&r.Ours, total)
	return nil
}

const kubeAPIServerHeap = "kube-apiserver's heap"

// memory is what is held, in bytes, by name.
func (s *simulated) memory(ctx context.Context) (map[string]int64, error) {
	held := map[string]int64{}
	pids := map[string]int{"etcd": s.Server.PID("etcd")}
	for _, c := range s.components {
		pids[c.Name] = c.PID()
	}
	for name, pid := range pids {
		m, err := memoryOf(pid, 0)
		if err != nil {
			return nil, err
		}
		held[name] = m.PSS
	}
	// Its process has room for what it had to do, and gives little back.
	heap, err := liveHeap(ctx, func() (string, error) { return s.Server.Try("", "get", "--raw", "/metrics") })
	held[kubeAPIServerHeap] = int64(heap * (1 << 20))
	return held, err
}

// starts creates VMIs, one after the other, without pauses, and waits until all run. It
// counts what is written, and returns the times from a VMI's being created to its pod's, in
// ms, sorted: both as the API server notes them.
func (s *simulated) starts(ctx context.Context, count int, r *row) ([]float64, error) {
	if _, err := s.Audit.Next(); err != nil {
		return nil, err
	}
	begin := time.Now()
	for i := range count {
		vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("guest-%d", i)}, Spec: simulation.Guest()}
		if err := s.Client.Create(ctx, vmi); err != nil {
			return nil, fmt.Errorf("create VMI: %w", err)
		}
	}
	created := time.Since(begin)
	if err := s.allRun(ctx, count); err != nil {
		return nil, err
	}
	s.b.say("%d VMIs were created in %.1f s, and run after %.1f s", count, created.Seconds(), time.Since(begin).Seconds())
	// Gates open when a guest has run for two seconds, and events are written later too.
	if err := pause(ctx, 15*time.Second); err != nil {
		return nil, err
	}
	written, err := s.Audit.Next()
	if err != nil {
		return nil, err
	}
	countWrites(r, written, count)
	return podTimes(written, count)
}

// allRun waits until so many VMIs run.
func (s *simulated) allRun(ctx context.Context, count int) error {
	for deadline := time.Now().Add(burstPatience); ; {
		var vmis v1.VirtualMachineInstanceList
		if err := s.Client.List(ctx, &vmis, client.InNamespace(metav1.NamespaceDefault)); err != nil {
			return fmt.Errorf("list VMIs: %w", err)
		}
		running := 0
		for _, vmi := range vmis.Items {
			if vmi.Status.Phase == v1.Running {
				running++
			}
		}
		if running == count {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("wait until %d VMIs run: %d do", count, running)
		}
		// Often enough, and a list of a thousand is dear.
		if err := pause(ctx, time.Second); err != nil {
			return err
		}
	}
}

// rests leaves all alone for a minute, and counts what is written.
func (s *simulated) rests(ctx context.Context, r *row) error {
	if _, err := s.Audit.Next(); err != nil {
		return err
	}
	if err := pause(ctx, time.Minute); err != nil {
		return err
	}
	written, err := s.Audit.Next()
	countWrites(r, written, 1)
	return err
}

// countWrites adds what the components wrote to VMIs and pods, per VMI. All else that they
// wrote is listed besides.
func countWrites(r *row, written []simulation.Write, vmis int) {
	ours, besides := map[string]int{}, map[string]int{}
	total := 0
	for _, w := range written {
		switch {
		case !w.Component():
		case w.OfInstance():
			total++
			ours[w.User+": "+w.What]++
		default:
			besides[w.User+": "+w.What+", besides"]++
		}
	}
	add(&r.Ours, float64(total)/float64(vmis))
	for _, counts := range []map[string]int{ours, besides} {
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			part(r, name, float64(counts[name])/float64(vmis))
		}
	}
}

// podTimes are from the API server's answer that a VMI is created to its answer that the
// VMI's pod is.
func podTimes(written []simulation.Write, count int) ([]float64, error) {
	vmis, pods := map[string]time.Time{}, map[string]time.Time{}
	for _, w := range written {
		switch w.What {
		case "create virtualmachineinstances":
			vmis[w.Name] = w.At
		case "create pods":
			// virt-launcher-VMI-HASH
			name := strings.TrimPrefix(w.Name, "virt-launcher-")
			pods[name[:max(strings.LastIndex(name, "-"), 0)]] = w.At
		}
	}
	var times []float64
	for name, created := range vmis {
		if at, ok := pods[name]; ok {
			times = append(times, inMilliseconds(at.Sub(created)))
		}
	}
	if len(times) != count {
		return nil, fmt.Errorf("find when VMIs got their pods: %d of %d did", len(times), count)
	}
	slices.Sort(times)
	return times, nil
}
