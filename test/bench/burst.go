package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const (
	// burstSize is how many guests or pods are started at once.
	burstSize = 18
	// burstPatience is how long one burst may take.
	burstPatience = 4 * time.Minute
)

// burstRows: guests that burn CPU from their first instruction on, started all at once, until
// the last is Running; beside as many plain pods that burn CPU too and request as much of it.
// A plain pod has the token that every pod gets, as in the row of kubectl apply. Pods without
// a token are measured as well, because virt-launcher's pods have none. No container of
// Kubeqemu may be restarted meanwhile.
func burstRows(ctx context.Context, b *bench) ([]row, error) {
	rows := []row{{ID: "burst", What: fmt.Sprintf("`kubectl apply` of %d VMIs, whose guests burn CPU → all Running", burstSize), Unit: seconds,
		Ours: series{Name: "VMIs"}, Beside: []series{{Name: "plain pods that burn CPU → all Ready"}, {Name: "such pods without any volume, not even a token → all Ready"}},
		Limit: 1.5, OfRatio: true,
		Parts: []series{{Name: "until all pods are there"}, {Name: "until the first pod is Ready"}, {Name: "until all pods are"},
			{Name: "until the first is Running"}, {Name: "until half of them are"}}}}
	kube, err := b.kube()
	if err != nil {
		return rows, err
	}
	seen, stop, err := b.watch(ctx)
	if err != nil {
		return rows, err
	}
	defer stop()
	before, err := restarts(ctx, kube)
	if err != nil {
		return rows, err
	}
	r := &rows[0]
	// The first round is not counted: it unpacks images, and in it the API server makes its
	// schemas of the kinds.
	for round := range 1 + b.rounds {
		vmis, steps, err := burst(ctx, seen, "vmi", func(name string) client.Object { return burningVMI(name) })
		if err != nil {
			return rows, fmt.Errorf("round %d: VMIs: %w", round, err)
		}
		var beside [2]float64
		for i, token := range []bool{true, false} {
			pods, _, err := burst(ctx, seen, "pod", func(name string) client.Object { return burningPod(name, token) })
			if err != nil {
				return rows, fmt.Errorf("round %d: pods: %w", round, err)
			}
			beside[i] = pods[burstSize-1]
		}
		b.say("burst, round %d: VMIs %.1f s, pods %.1f s, without a token %.1f s", round, vmis[burstSize-1], beside[0], beside[1])
		if round == 0 {
			continue
		}
		add(&r.Ours, vmis[burstSize-1])
		for i, seconds := range beside {
			add(&r.Beside[i], seconds)
		}
		for i, at := range []float64{steps.pods[burstSize-1], steps.ready[0], steps.ready[burstSize-1], vmis[0], vmis[burstSize/2-1]} {
			add(&r.Parts[i], at)
		}
	}
	after, err := restarts(ctx, kube)
	if err == nil && after != before {
		err = fmt.Errorf("%d containers of Kubeqemu were restarted", after-before)
	}
	return rows, err
}

// burstSteps are when each pod of a burst was there, and Ready, in seconds, in order.
type burstSteps struct{ pods, ready []float64 }

// burst applies all objects at once, and returns when each was up, in seconds, in order.
func burst(parent context.Context, seen client.Reader, kind string, object func(name string) client.Object) (up []float64, steps burstSteps, err error) {
	ctx, cancel := context.WithTimeout(parent, burstPatience)
	defer cancel()
	manifests := metav1.List{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}}
	for i := range burstSize {
		raw, err := json.Marshal(object(fmt.Sprintf("burst-%d", i)))
		if err != nil {
			return nil, steps, err
		}
		manifests.Items = append(manifests.Items, apiruntime.RawExtension{Raw: raw})
	}
	defer func() { err = errors.Join(err, remove(parent, kind)) }()
	// The kubelet and containerd still clean up after the previous burst.
	if err := settle(ctx); err != nil {
		return nil, steps, err
	}
	begin := time.Now()
	applied := make(chan error, 1)
	go func() { applied <- apply(ctx, manifests) }()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for len(up) < burstSize || applied != nil {
		select {
		case err := <-applied:
			if err != nil {
				return up, steps, err
			}
			applied = nil
		case <-ctx.Done():
			return up, steps, fmt.Errorf("wait until all are up: %d are, with %d pods, of which %d are Ready: %w", len(up), len(steps.pods), len(steps.ready), ctx.Err())
		case <-ticker.C:
		}
		pods, ready, err := countPods(ctx, seen)
		if err != nil {
			return up, steps, err
		}
		running := ready
		if kind == "vmi" {
			if running, err = countRunning(ctx, seen); err != nil {
				return up, steps, err
			}
		}
		now := time.Since(begin).Seconds()
		for _, counted := range []struct {
			at    *[]float64
			count int
		}{{&steps.pods, pods}, {&steps.ready, ready}, {&up, running}} {
			for len(*counted.at) < counted.count {
				*counted.at = append(*counted.at, now)
			}
		}
	}
	return up, steps, nil
}

func countPods(ctx context.Context, seen client.Reader) (there, ready int, err error) {
	var pods corev1.PodList
	if err := seen.List(ctx, &pods, client.InNamespace(benchNamespace), client.UnsafeDisableDeepCopy); err != nil {
		return 0, 0, err
	}
	for _, pod := range pods.Items {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.ContainersReady && c.Status == corev1.ConditionTrue {
				ready++
			}
		}
		if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
			return 0, 0, fmt.Errorf("pod %s has ended: %s", pod.Name, pod.Status.Message)
		}
	}
	return len(pods.Items), ready, nil
}

func countRunning(ctx context.Context, seen client.Reader) (running int, err error) {
	var vmis v1.VirtualMachineInstanceList
	if err := seen.List(ctx, &vmis, client.InNamespace(benchNamespace), client.UnsafeDisableDeepCopy); err != nil {
		return 0, err
	}
	for _, vmi := range vmis.Items {
		if vmi.Status.Phase == v1.Running {
			running++
		}
		if vmi.IsFinal() {
			return 0, fmt.Errorf("VMI %s has ended: %s %+v", vmi.Name, vmi.Status.Phase, vmi.Status.Conditions)
		}
	}
	return running, nil
}

// burningVMI has a guest whose init loops without end.
func burningVMI(name string) *v1.VirtualMachineInstance {
	vmi := guestVMI(name, tinyImage)
	vmi.Namespace = benchNamespace
	vmi.Spec.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{
		KernelArgs: `quiet rdinit=/bin/sh -- -c "while :; do :; done"`,
		Container:  &v1.KernelBootContainer{Image: tinyImage, KernelPath: "/boot/vmlinuz", InitrdPath: "/boot/initrd"},
	}}
	return vmi
}

// burningPod requests as much CPU as a VMI with one vCPU. The image has no shell, so the pod
// runs a benchmark of a disk that is nowhere (null-co).
func burningPod(name string, token bool) *corev1.Pod {
	spec := plainPod()
	spec.Containers[0].Command = []string{"/usr/bin/qemu-img", "bench", "-c", "2000000000", "--image-opts", "driver=null-co,size=1G"}
	spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
	spec.AutomountServiceAccountToken = ptr.To(token)
	// With 0 the API server removes the pod at once, and its process would burn on into the
	// next measurement.
	spec.TerminationGracePeriodSeconds = ptr.To[int64](1)
	return &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: benchNamespace}, Spec: *spec}
}

// restarts is how often containers of Kubeqemu were started anew.
func restarts(ctx context.Context, kube client.Client) (count int32, err error) {
	var pods corev1.PodList
	if err := kube.List(ctx, &pods, client.InNamespace(installNamespace)); err != nil {
		return 0, err
	}
	for _, pod := range pods.Items {
		for _, c := range pod.Status.ContainerStatuses {
			count += c.RestartCount
		}
	}
	return count, nil
}

// settle waits until the machine's CPUs have been idle for most of a second.
func settle(ctx context.Context) error {
	const idle, period = 0.8, time.Second
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	before, err := idleTime()
	for err == nil {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until the machine is idle: %w", ctx.Err())
		case <-ticker.C:
		}
		var now time.Duration
		if now, err = idleTime(); float64(now-before) > idle*float64(period)*float64(runtime.NumCPU()) {
			return err
		}
		before = now
	}
	return err
}

// idleTime is how long the CPUs have been idle since the machine was started, added up.
func idleTime() (time.Duration, error) {
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return 0, err
	}
	var up, idle float64
	if _, err := fmt.Sscan(string(text), &up, &idle); err != nil {
		return 0, fmt.Errorf("read /proc/uptime: %w", err)
	}
	return time.Duration(idle * float64(time.Second)), nil
}
