package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// planeLimit is the budget of all components together, virt-api included, in
// MiB of PSS.
const planeLimit = 60

// planeRows: PSS of Kubeqemu's own pods, before the first VM.
func planeRows(ctx context.Context, b *bench) ([]row, error) {
	r, err := plane(ctx, b, "control-plane", "control plane, idle, PSS")
	r.Limit = planeLimit
	return []row{r}, err
}

// plane measures the components after half a minute of rest.
func plane(ctx context.Context, b *bench, id, what string) (row, error) {
	r := row{ID: id, What: what, Unit: mebibytes, Ours: series{Name: "all"}}
	kube, err := b.kube()
	if err != nil {
		return r, err
	}
	if err := pause(ctx, 30*time.Second); err != nil {
		return r, err
	}
	for range 3 {
		if err := pause(ctx, 2*time.Second); err != nil {
			return r, err
		}
		if err := planeSample(ctx, kube, &r); err != nil {
			return r, err
		}
	}
	for _, name := range []string{"virt-api", "virt-controller", "virt-handler"} {
		if !slices.ContainsFunc(r.Parts, func(s series) bool { return strings.HasPrefix(s.Name, name) }) {
			return r, fmt.Errorf("measure the control plane: there is no process of %s", name)
		}
	}
	return r, nil
}

func planeSample(ctx context.Context, kube client.Client, r *row) error {
	var pods corev1.PodList
	if err := kube.List(ctx, &pods, client.InNamespace(installNamespace)); err != nil {
		return fmt.Errorf("list Kubeqemu's pods: %w", err)
	}
	total := 0.0
	for _, pod := range pods.Items {
		found, err := processesOf(&pod)
		if err != nil {
			return err
		}
		for _, p := range found {
			m, err := memoryOf(p.PID, 0)
			if err != nil {
				return err
			}
			total += mib(m.PSS)
			part(r, p.Name, mib(m.PSS))
			part(r, p.Name+", written (heap, stacks, data)", mib(m.PrivateDirty))
		}
	}
	add(&r.Ours, total)
	return nil
}

func part(r *row, name string, sample float64) {
	i := slices.IndexFunc(r.Parts, func(s series) bool { return s.Name == name })
	if i < 0 {
		i = len(r.Parts)
		r.Parts = append(r.Parts, series{Name: name})
	}
	add(&r.Parts[i], sample)
}

// processesOf finds a pod's processes by the pod's cgroup, whose name holds the pod's UID. It
// leaves out the sandbox's process, "pause", which is Kubernetes'.
func processesOf(pod *corev1.Pod) ([]process, error) {
	all, err := processes()
	if err != nil {
		return nil, err
	}
	// The systemd driver writes underscores.
	underscored := strings.ReplaceAll(string(pod.UID), "-", "_")
	found := slices.DeleteFunc(all, func(p process) bool {
		ours := strings.Contains(p.Cgroups, string(pod.UID)) || strings.Contains(p.Cgroups, underscored)
		return !ours || p.Name == "pause"
	})
	if len(found) == 0 {
		return nil, fmt.Errorf("find the processes of pod %s: there are none", pod.Name)
	}
	return found, nil
}
