package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// timeline is when the API server showed each step of one start, counted from
// the start of kubectl.
type timeline struct {
	Accepted  time.Duration // the object is there
	Pod       time.Duration // its pod is there; for a pod the same as Accepted
	Scheduled time.Duration
	Started   time.Duration // the pod is Ready: all containers run
	Done      time.Duration // Running, or Ready
}

// applyRows: kubectl apply → Running, beside a plain pod of the same image → Ready, and beside
// a copy of the VMI's pod without the VM.
func applyRows(ctx context.Context, b *bench) ([]row, error) {
	r := row{ID: "apply", What: "`kubectl apply` of a VMI → Running", Unit: seconds,
		Ours: series{Name: "VMI"}, Beside: besidePods(), Limit: 1.2, OfRatio: true}
	server := row{ID: "apply-server", What: "the same, from when the API server has it", Unit: seconds, Ours: series{Name: "VMI"}, Beside: besidePods()}
	kube, err := b.kube()
	if err != nil {
		return []row{r}, err
	}
	a := &applier{kube: kube}
	var vmis []timeline
	for round := range b.rounds + 1 {
		times, err := a.round(ctx)
		if err != nil {
			return []row{r}, fmt.Errorf("round %d: %w", round, err)
		}
		var said []string
		for _, t := range times {
			said = append(said, fmt.Sprintf("%.2f s", t.Done.Seconds()))
		}
		b.say("apply, round %d: VMI %s, pods %s", round, said[0], strings.Join(said[1:], ", "))
		// The first round unpacks image volumes, and is not counted.
		if round == 0 {
			continue
		}
		vmis = append(vmis, times[0])
		for _, r := range []*row{&r, &server} {
			from := func(t timeline) float64 {
				if r.ID == "apply" {
					return t.Done.Seconds()
				}
				return (t.Done - t.Accepted).Seconds()
			}
			add(&r.Ours, from(times[0]))
			for i := range r.Beside {
				add(&r.Beside[i], from(times[i+1]))
			}
		}
	}
	server.Parts = parts(vmis)
	return []row{r, server}, nil
}

// besidePods are the pods of a round, in their order.
func besidePods() []series {
	return []series{{Name: "plain pod of the same image → Ready"}, {Name: "pod without any volume, not even a token → Ready"},
		{Name: "the VMI's pod without the VM and its image volume → Ready"}, {Name: "the VMI's pod without the VM → Ready"}}
}

// parts are the steps of a VMI's start.
func parts(vmis []timeline) []series {
	steps := []series{{Name: "kubectl"}, {Name: "virt-controller makes the pod"}, {Name: "scheduler"}, {Name: "kubelet and containerd, until Ready is seen"}, {Name: "from there to Running"}}
	for _, t := range vmis {
		for i, d := range []time.Duration{t.Accepted, t.Pod - t.Accepted, t.Scheduled - t.Pod, t.Started - t.Scheduled, t.Done - t.Started} {
			steps[i].Samples = append(steps[i].Samples, d.Seconds())
		}
	}
	return steps
}

type applier struct {
	kube  client.WithWatch
	twin  *corev1.PodSpec // the VMI's pod, without a slot
	count int
}

func (a *applier) round(ctx context.Context) ([]timeline, error) {
	vmi, err := a.vmi(ctx)
	if err != nil {
		return nil, fmt.Errorf("VMI: %w", err)
	}
	times := []timeline{vmi}
	bare, imageless := plainPod(), a.twin.DeepCopy()
	bare.AutomountServiceAccountToken = ptr.To(false)
	isImage := func(v corev1.Volume) bool { return v.Image != nil }
	mounts := &imageless.Containers[0].VolumeMounts
	*mounts = slices.DeleteFunc(*mounts, func(m corev1.VolumeMount) bool {
		i := slices.IndexFunc(imageless.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		return i >= 0 && isImage(imageless.Volumes[i])
	})
	imageless.Volumes = slices.DeleteFunc(imageless.Volumes, isImage)
	for _, spec := range []*corev1.PodSpec{plainPod(), bare, imageless, a.twin} {
		t, err := a.pod(ctx, spec)
		if err != nil {
			return nil, fmt.Errorf("pod: %w", err)
		}
		times = append(times, t)
	}
	return times, nil
}

func (a *applier) name() string {
	a.count++
	return fmt.Sprintf("bench-%d", a.count)
}

func (a *applier) vmi(parent context.Context) (timeline, error) {
	ctx, cancel := context.WithTimeout(parent, 2*patience)
	defer cancel()
	vmi := guestVMI(a.name(), tinyImage)
	vmi.Namespace = benchNamespace
	vmis, err := a.kube.Watch(ctx, &v1.VirtualMachineInstanceList{}, client.InNamespace(benchNamespace))
	if err != nil {
		return timeline{}, err
	}
	defer vmis.Stop()
	pods, err := a.kube.Watch(ctx, &corev1.PodList{}, client.InNamespace(benchNamespace))
	if err != nil {
		return timeline{}, err
	}
	defer pods.Stop()
	t, err := follow(ctx, vmi, pods, vmis)
	if err == nil {
		err = a.remember(ctx)
	} else if said, _ := command(parent, nil, "kubectl", "-n", benchNamespace, "describe", "vmi"); said != "" {
		err = fmt.Errorf("%w\n%s", err, said)
	}
	return t, errors.Join(err, remove(parent, "vmi"))
}

// remember keeps the spec of the VMI's pod, so that another pod can have the same.
func (a *applier) remember(ctx context.Context) error {
	if a.twin != nil {
		return nil
	}
	var pods corev1.PodList
	if err := a.kube.List(ctx, &pods, client.InNamespace(benchNamespace)); err != nil {
		return err
	}
	if len(pods.Items) != 1 {
		return fmt.Errorf("find the VMI's pod: there are %d pods", len(pods.Items))
	}
	a.twin = &pods.Items[0].Spec
	a.twin.NodeName = ""
	a.twin.ReadinessGates = nil // virt-controller sets them, on VMIs' pods only
	for i := range a.twin.Containers {
		r := &a.twin.Containers[i].Resources
		delete(r.Requests, "devices.kubevirt.io/vm")
		delete(r.Limits, "devices.kubevirt.io/vm")
	}
	return nil
}

// plainPod is a pod that stays: its virt-launcher waits for a virt-handler that it cannot
// reach.
func plainPod() *corev1.PodSpec {
	return &corev1.PodSpec{
		TerminationGracePeriodSeconds: ptr.To[int64](0),
		Containers: []corev1.Container{{Name: "compute", Image: launcherImage, ImagePullPolicy: corev1.PullIfNotPresent,
			Command: []string{"/usr/bin/virt-launcher", "run"}}},
	}
}

func (a *applier) pod(parent context.Context, spec *corev1.PodSpec) (timeline, error) {
	ctx, cancel := context.WithTimeout(parent, 2*patience)
	defer cancel()
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: a.name(), Namespace: benchNamespace}, Spec: *spec}
	pods, err := a.kube.Watch(ctx, &corev1.PodList{}, client.InNamespace(benchNamespace))
	if err != nil {
		return timeline{}, err
	}
	defer pods.Stop()
	t, err := follow(ctx, pod, pods, nil)
	return t, errors.Join(err, remove(parent, "pod"))
}

// follow applies an object and watches until it is up. Without a watch of VMIs
// the pod is the object.
func follow(ctx context.Context, object client.Object, pods, vmis watch.Interface) (timeline, error) {
	var t timeline
	var states <-chan watch.Event
	if vmis != nil {
		states = vmis.ResultChan()
	}
	begin := time.Now()
	applied := make(chan error, 1)
	go func() { applied <- apply(ctx, object) }()
	for t.Done == 0 || applied != nil {
		select {
		case err := <-applied:
			if err != nil {
				return t, err
			}
			applied = nil
		case e := <-states:
			t.vmi(e, time.Since(begin))
		case e := <-pods.ResultChan():
			t.pod(e, time.Since(begin))
			if vmis == nil {
				t.Accepted, t.Done = t.Pod, t.Started
			}
		case <-ctx.Done():
			return t, fmt.Errorf("wait until it is up: %w", ctx.Err())
		}
	}
	// Two watches are not in order with each other.
	t.Pod, t.Scheduled = min(t.Pod, t.Done), min(t.Scheduled, t.Done)
	if t.Started == 0 {
		t.Started = t.Done
	}
	return t, nil
}

func (t *timeline) vmi(e watch.Event, at time.Duration) {
	vmi, ok := e.Object.(*v1.VirtualMachineInstance)
	if !ok || e.Type == watch.Deleted {
		return
	}
	once(&t.Accepted, at)
	if vmi.Status.Phase == v1.Running {
		once(&t.Done, at)
	}
}

func (t *timeline) pod(e watch.Event, at time.Duration) {
	pod, ok := e.Object.(*corev1.Pod)
	if !ok || e.Type == watch.Deleted {
		return
	}
	once(&t.Pod, at)
	if pod.Spec.NodeName != "" {
		once(&t.Scheduled, at)
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			once(&t.Started, at)
		}
	}
}

func once(d *time.Duration, at time.Duration) {
	if *d == 0 {
		*d = at
	}
}
