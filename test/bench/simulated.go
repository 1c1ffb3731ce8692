package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/test/simulation"
)

const (
	hundred  = 100
	thousand = 1000
	// fleet is how many nodes have the thousand.
	fleet = 10
)

// measureHundred measures a hundred VMIs on one node, with the real components. The node's kubelet is
// made up, and its launchers start no QEMU.
func measureHundred(r *run) {
	s := simulate(r)
	s.add(s.StartNode(r))
	r.pause(30 * time.Second)
	before := 0.0
	for _, c := range s.components {
		before += mib(memoryOf(c.PID, 0).PSS)
	}
	r.addPart("control-plane-hundred", "before the first VMI", before)
	s.starts(r, hundred, "writes")
	s.rests(r, "writes-idle")
	for range 3 {
		r.addPSS("control-plane-hundred", s.components)
		r.pause(2 * time.Second)
	}
}

// measureThousand measures a thousand VMIs, with the real virt-controller and virt-api. The nodes are
// nothing but what kubelets and virt-handlers write.
func measureThousand(r *run) {
	s := simulate(r)
	check(s.StartFleet(r, fleet))
	r.pause(30 * time.Second)
	before := s.memory(r)
	times := s.starts(r, thousand, "writes-thousand")
	r.add("pod", quantile(times, 0.5))
	r.add("pod-p99", quantile(times, 0.99))
	s.rests(r, "writes-idle-thousand")
	after := s.memory(r)
	const id = "controller-per-vmi"
	perVMI := func(name string) float64 { return (after[name] - before[name]) / 1024 / thousand }
	r.add(id, perVMI("virt-controller"))
	r.addPart(id, "virt-controller with none", before["virt-controller"]/1024)
	r.addPart(id, fmt.Sprintf("virt-controller with %d", thousand), after["virt-controller"]/1024)
	for _, name := range []string{"virt-api", kubeAPIServerHeap, "etcd"} {
		r.addPart(id, name+" per VMI, besides", perVMI(name))
	}
}

// simulated is a cluster whose nodes are made up.
type simulated struct {
	*simulation.Cluster
	components []process
}

// simulate starts a cluster, virt-api and virt-controller.
func simulate(r *run) *simulated {
	folder := r.folder("")
	programs := filepath.Join(folder, "bin")
	check(errors.Join(os.Mkdir(programs, 0o755),
		os.Symlink(r.output("bin", "virt-components"), filepath.Join(programs, "virt-components")),
		simulation.LinkPrograms(programs)))
	options := simulation.Options{Repository: r.repository, Programs: programs, Folder: folder}
	s := &simulated{Cluster: must(simulation.Start(r, options))}
	r.after(s.Close)
	s.add(s.StartAPI(r))
	s.add(s.StartController())
	return s
}

func (s *simulated) add(c *simulation.Component, err error) {
	check(err)
	s.components = append(s.components, process{PID: c.PID(), Name: c.Name})
}

const kubeAPIServerHeap = "kube-apiserver's heap"

// memory is what is held, in bytes, by name.
func (s *simulated) memory(r *run) map[string]float64 {
	held := map[string]float64{}
	for _, c := range append(slices.Clip(s.components), process{PID: s.Server.PID("etcd"), Name: "etcd"}) {
		held[c.Name] = float64(memoryOf(c.PID, 0).PSS)
	}
	// Its process has room for what it had to do, and gives little back.
	held[kubeAPIServerHeap] = liveHeap(r, s.Server)
	return held
}

// starts creates VMIs, one after the other, without pauses, and waits until all run. It
// counts what is written, and returns the times from a VMI's being created to its pod's, in
// ms, sorted: both as the API server notes them.
func (s *simulated) starts(r *run, count int, id string) []float64 {
	must(s.Audit.Next())
	begin := time.Now()
	for i := range count {
		name := metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("guest-%d", i)}
		check(s.Client.Create(r, &v1.VirtualMachineInstance{ObjectMeta: name, Spec: simulation.Guest()}), "create VMI")
	}
	created := time.Since(begin)
	// Often enough, and a list of a thousand is dear.
	r.await(fmt.Sprintf("%d VMIs run", count), time.Second, burstPatience, func() bool {
		_, running := r.vmis(s.Client, metav1.NamespaceDefault)
		return running == count
	})
	r.say("%d VMIs were created in %.1f s, and run after %.1f s", count, created.Seconds(), time.Since(begin).Seconds())
	// Gates open when a guest has run for two seconds, and events are written later too.
	r.pause(15 * time.Second)
	written := must(s.Audit.Next())
	r.addWrites(id, written, count)
	return must(podTimes(written, count))
}

// rests leaves all alone for a minute, and counts what is written.
func (s *simulated) rests(r *run, id string) {
	must(s.Audit.Next())
	r.pause(time.Minute)
	r.addWrites(id, must(s.Audit.Next()), 1)
}

// addWrites adds what the components wrote to VMIs and pods, per VMI. All else that they
// wrote is listed besides.
func (r *run) addWrites(id string, written []simulation.Write, vmis int) {
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
	r.add(id, float64(total)/float64(vmis))
	for _, counts := range []map[string]int{ours, besides} {
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			r.addPart(id, name, float64(counts[name])/float64(vmis))
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
