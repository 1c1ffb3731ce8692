package main

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// milestones are when watches showed each step of VMIs' and pods' starts, in seconds from the start of kubectl, in
// order.
type milestones struct {
	accepted, running                       []float64 // VMIs
	pods, scheduled, containersReady, ready []float64
	pod                                     *corev1.Pod // that was seen last
	begin                                   time.Time
	seen                                    map[milestone]bool
}

// milestone is a step of an object's start.
type milestone struct {
	step   *[]float64
	object types.UID
}

// follow applies VMIs ("vmi") or pods ("pod"), and deletes them when so many are Running or Ready. It returns when
// each came to what.
func follow(r *run, kube client.WithWatch, kind string, objects any, count int, patience time.Duration) *milestones {
	m := &milestones{seen: map[milestone]bool{}}
	doing("start a "+kind, func() {
		r.turn(func(r *run) {
			r.removeAfter(kind)
			if err := caught(func() { m.watch(r, kube, kind, objects, count, patience) }); err != nil {
				said, _ := kubectl(r, "describe", kind)
				fail("%w\n%s", err, said)
			}
		})
	})
	return m
}

// watch applies objects, and notes what it sees of them until all are up.
func (m *milestones) watch(r *run, kube client.WithWatch, kind string, objects any, count int, patience time.Duration) {
	ctx, cancel := context.WithTimeout(r, patience)
	defer cancel()
	watched := func(list client.ObjectList) <-chan watch.Event {
		w := must(kube.Watch(ctx, list, client.InNamespace(benchNamespace)))
		r.after(func() error { w.Stop(); return nil }) // else its goroutine stays
		return w.ResultChan()
	}
	pods, vmis, up := watched(&corev1.PodList{}), (<-chan watch.Event)(nil), &m.ready
	if kind == "vmi" {
		vmis, up = watched(&v1.VirtualMachineInstanceList{}), &m.running
	}
	m.begin = time.Now()
	applied := make(chan error, 1)
	go func() { applied <- apply(ctx, objects) }()
	// Two watches are not in order with each other.
	for len(*up) < count || len(m.containersReady) < count || applied != nil {
		select {
		case err := <-applied:
			check(err)
			applied = nil
		case e, goesOn := <-vmis:
			m.see(e, goesOn)
		case e, goesOn := <-pods:
			m.see(e, goesOn)
		case <-ctx.Done():
			fail("wait until all are up: %d are, with %d pods, of which %d are Ready: %w",
				len(*up), len(m.pods), len(m.containersReady), ctx.Err())
		}
	}
}

// see notes what an event of a watch shows. A watch that does not go on fails the turn.
func (m *milestones) see(e watch.Event, goesOn bool) {
	switch {
	case !goesOn:
		fail("the watch has ended")
	case e.Type == watch.Error:
		check(apierrors.FromObject(e.Object), "watch")
	case e.Type == watch.Deleted:
		return
	}
	switch o := e.Object.(type) {
	case *v1.VirtualMachineInstance:
		m.note(&m.accepted, o, true)
		m.note(&m.running, o, o.Status.Phase == v1.Running)
		if o.IsFinal() {
			fail("VMI %s has ended: %s %+v", o.Name, o.Status.Phase, o.Status.Conditions)
		}
	case *corev1.Pod:
		m.pod = o
		m.note(&m.pods, o, true)
		m.note(&m.scheduled, o, o.Spec.NodeName != "")
		m.note(&m.containersReady, o, isTrue(o, corev1.ContainersReady))
		m.note(&m.ready, o, isTrue(o, corev1.PodReady))
		if o.Status.Phase == corev1.PodFailed || o.Status.Phase == corev1.PodSucceeded {
			fail("pod %s has ended: %s", o.Name, o.Status.Message)
		}
	}
}

// note notes the time when an object has first come to a step.
func (m *milestones) note(step *[]float64, object client.Object, is bool) {
	if at := (milestone{step, object.GetUID()}); is && !m.seen[at] {
		m.seen[at] = true
		*step = append(*step, time.Since(m.begin).Seconds())
	}
}

// isTrue reports whether a pod has a condition.
func isTrue(pod *corev1.Pod, condition corev1.PodConditionType) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == condition && c.Status == corev1.ConditionTrue
	})
}
