package main

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	corev1 "k8s.io/api/core/v1"
)

// measurePlane measures the PSS of Kubeqemu's own pods, before the first VM.
func measurePlane(r *run) { r.addPlane("control-plane") }

// addPlane measures the components after half a minute of rest.
func (r *run) addPlane(id string) {
	kube := r.kube()
	r.pause(30 * time.Second)
	for range 3 {
		r.pause(2 * time.Second)
		var found []process
		for _, pod := range r.pods(kube, installNamespace) {
			found = append(found, processesOf(&pod)...)
		}
		r.addPSS(id, found)
	}
	for _, name := range []string{"virt-api", "virt-controller", "virt-handler"} {
		if !slices.ContainsFunc(r.row(id).Parts, func(s series) bool { return s.Name == name }) {
			fail("measure the control plane: there is no process of %s", name)
		}
	}
}

// addPSS adds a sample of the memory of components.
func (r *run) addPSS(id string, components []process) {
	total := 0.0
	for _, p := range components {
		m := memoryOf(p.PID, 0)
		total += mib(m.PSS)
		r.addPart(id, p.Name, mib(m.PSS))
		r.addPart(id, p.Name+", written (heap, stacks, data)", mib(m.PrivateDirty))
	}
	r.add(id, total)
}

// processesOf finds a pod's processes by the pod's cgroup, whose name holds the pod's UID. It
// leaves out the sandbox's process, "pause", which is Kubernetes'.
func processesOf(pod *corev1.Pod) []process {
	// The systemd driver writes underscores.
	uid, underscored := string(pod.UID), strings.ReplaceAll(string(pod.UID), "-", "_")
	found := slices.DeleteFunc(processes(), func(p process) bool {
		ours := slices.ContainsFunc(p.Cgroups, func(c procfs.Cgroup) bool {
			return strings.Contains(c.Path, uid) || strings.Contains(c.Path, underscored)
		})
		return !ours || p.Name == "pause"
	})
	if len(found) == 0 {
		fail("find the processes of pod %s: there are none", pod.Name)
	}
	return found
}
