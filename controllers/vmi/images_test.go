package vmi

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/images"
)

// TestPodWithoutImagesAsksForNoWay: a VMI without an image gets its pod, whether or not the API server says how images
// come to pods. One with an image waits, and says for what.
func TestPodWithoutImagesAsksForNoWay(t *testing.T) {
	for _, with := range []bool{false, true} {
		c := newCluster(t, v1.Pending, interceptor.Funcs{})
		c.Images = func(context.Context) (images.Way, error) { return "", errors.New("no answer") }
		vmi := c.get()
		vmi.Spec.Volumes = []v1.Volume{{Name: "root"}}
		if with {
			vmi.Spec.Volumes[0].ContainerDisk = &v1.ContainerDiskSource{Image: "registry.example/root:v1"}
		}
		config := PodConfig{}
		if err := c.findWay(t.Context(), vmi, &config); (err != nil) != with {
			t.Errorf("with an image %v: %v", with, err)
		}
	}
}

// TestGuaranteedWithImageContainers: the containers with images change nothing of the pod's quality of service.
func TestGuaranteedWithImageContainers(t *testing.T) {
	for _, guaranteed := range []bool{false, true} {
		vmi := load(t, "testdata/debian")
		list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"),
			corev1.ResourceMemory: resource.MustParse("4Gi")}
		vmi.Spec.Domain.Resources = v1.ResourceRequirements{Requests: v1.ResourceList(list.DeepCopy())}
		if guaranteed {
			vmi.Spec.Domain.Resources.Limits = v1.ResourceList(list.DeepCopy())
		}
		config := testConfig
		config.Images = images.Containers
		pod := Pod(vmi, config)
		if len(pod.Spec.InitContainers) == 0 {
			t.Fatalf("the pod has the containers %v", pod.Spec.InitContainers)
		}
		for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
				request, limit := c.Resources.Requests[name], c.Resources.Limits[name]
				if guaranteed && (limit.IsZero() || request.Cmp(limit) != 0) {
					t.Errorf("container %s requests %s of %s, and has the limit %s", c.Name, &request, name, &limit)
				}
				if !guaranteed && request.Cmp(limit) == 0 {
					t.Errorf("container %s requests %s of %s, which is its limit", c.Name, &request, name)
				}
			}
		}
	}
}

// TestStrandedPodIsMadeAnew: a pod with image volumes on a node that has none is made anew, if new pods have
// containers. Nothing else is: the node may only be slow, and is looked at again.
func TestStrandedPodIsMadeAnew(t *testing.T) {
	const old, today = "v1.34.2", "v1.36.0"
	connected := func(s *corev1.PodStatus) {
		s.Conditions = append(s.Conditions, podCondition(corev1.PodReadyToStartContainers, corev1.ConditionTrue))
		s.ContainerStatuses[0].State.Waiting.Reason = "CreateContainerError"
	}
	for name, c := range map[string]struct {
		way     images.Way
		kubelet string
		change  func(*corev1.PodStatus)
		anew    bool
		again   time.Duration // 0: somebody else may have the VMI looked at again
	}{
		"the kubelet is too old":          {way: images.Containers, kubelet: old, anew: true},
		"the container cannot be made":    {way: images.Containers, kubelet: old, change: connected, anew: true},
		"the node is slow":                {way: images.Containers, kubelet: today, change: connected, again: mountPatience},
		"the way is not found yet":        {way: images.Volumes, kubelet: old, change: connected, again: mountPatience},
		"the node is gone":                {way: images.Containers},
		"what can be had cannot be found": {kubelet: old},
		"the node has had little time": {way: images.Containers, kubelet: old,
			change: func(s *corev1.PodStatus) { s.Conditions[0].LastTransitionTime = metav1.Unix(990, 0) }},
		"the images come by containers": {way: images.Containers, kubelet: old,
			change: func(s *corev1.PodStatus) {
				s.InitContainerStatuses = []corev1.ContainerStatus{{Name: "disk-root"}}
			}},
		"the launcher runs": {way: images.Containers, kubelet: old,
			change: func(s *corev1.PodStatus) { s.ContainerStatuses[0].State = running() }},
		"the kubelet has not seen it": {way: images.Containers, kubelet: old,
			change: func(s *corev1.PodStatus) { s.ContainerStatuses = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			pod := Pod(load(t, "testdata/minimal"), testConfig)
			pod.UID, pod.CreationTimestamp, pod.Spec.NodeName = "stranded", metav1.Unix(900, 0), "node1"
			pod.Finalizers = []string{"kubelet/ends"}
			scheduled := podCondition(corev1.PodScheduled, corev1.ConditionTrue)
			scheduled.LastTransitionTime = metav1.Unix(901, 0)
			waits := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
			pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{scheduled},
				ContainerStatuses: []corev1.ContainerStatus{{Name: ContainerName, State: waits}}}
			if c.change != nil {
				c.change(&pod.Status)
			}
			objects := []client.Object{pod}
			if c.kubelet != "" {
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
				node.Status.NodeInfo.KubeletVersion = c.kubelet
				node.Status.NodeInfo.ContainerRuntimeVersion = "containerd://2.1.0"
				objects = append(objects, node)
			}
			cluster := newCluster(t, v1.Scheduling, interceptor.Funcs{List: withoutEvents}, objects...)
			vmi := cluster.get()
			vmi.Status.ActivePods = map[types.UID]string{pod.UID: "node1"}
			if err := cluster.client.Status().Update(t.Context(), vmi); err != nil {
				t.Fatal(err)
			}
			cluster.Images = func(context.Context) (images.Way, error) {
				if c.way == "" {
					return "", errors.New("no answer")
				}
				return c.way, nil
			}
			cluster.later()
			if after := cluster.later(); c.again > 0 && after != c.again {
				t.Errorf("the next look is after %s, want %s", after, c.again)
			}
			told := strings.Contains(cluster.status(), v1.ReasonNoImageVolumes)
			if err := cluster.client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
				t.Fatal(err)
			}
			if (pod.DeletionTimestamp != nil) != c.anew || told != c.anew {
				t.Fatalf("deleted at %s, status %s", pod.DeletionTimestamp, cluster.status())
			}
			if !c.anew {
				return
			}
			// The kubelet ends the pod.
			pod.Status.Phase = corev1.PodFailed
			pod.Status.ContainerStatuses[0].State = corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "ContainerStatusUnknown"}}
			if err := cluster.client.Status().Update(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			cluster.later()
			if got := cluster.status(); !strings.HasPrefix(got, "Scheduling") {
				t.Errorf("when the pod has failed: %s", got)
			}
			cluster.takeDown(t.Context(), pod)
			pod.Finalizers = nil
			if err := cluster.client.Update(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
			cluster.later()
			if got := cluster.status(); cluster.pods() != 1 || strings.Contains(got, v1.ReasonNoImageVolumes) {
				t.Errorf("%d pods, status %s", cluster.pods(), got)
			}
			if last := cluster.ends.of(cluster.get()); last != nil {
				t.Errorf("the guest is said to have ended: %+v", last)
			}
		})
	}
}

// withoutEvents lists no events, of which the fake client has no index.
func withoutEvents(ctx context.Context, c client.WithWatch, list client.ObjectList,
	options ...client.ListOption) error {
	if _, ok := list.(*corev1.EventList); ok {
		return nil
	}
	return c.List(ctx, list, options...)
}

// TestTargetPodHasTheImagesOfTheGuestsPod: a tag may name another image by now, so the target pod names the digests
// that the guest's pod has, whichever way its images come.
func TestTargetPodHasTheImagesOfTheGuestsPod(t *testing.T) {
	for _, way := range []images.Way{images.Volumes, images.Containers} {
		digest := "@sha256:" + strings.Repeat("0a", 32)
		c := newCluster(t, v1.Running, interceptor.Funcs{})
		vmi := c.get()
		vmi.Spec.Volumes = []v1.Volume{{Name: "root"}, {Name: "media"}}
		vmi.Spec.Volumes[0].ContainerDisk = &v1.ContainerDiskSource{Image: "registry.example/root:latest"}
		vmi.Spec.Volumes[1].ContainerDisk = &v1.ContainerDiskSource{Image: "registry.example/media:latest"}
		vmi.Spec.Domain.Firmware = &v1.Firmware{KernelBoot: &v1.KernelBoot{Container: &v1.KernelBootContainer{
			Image: "registry.example/kernel:latest", KernelPath: "/kernel"}}}
		present := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: vmi.Namespace, Name: vmi.LauncherPod()}}
		present.Status.InitContainerStatuses = []corev1.ContainerStatus{
			{Name: "disk-root", ImageID: "registry.example/root" + digest},
			{Name: "disk-media", ImageID: strings.TrimPrefix(digest, "@")},
			{Name: "kernel", ImageID: "registry.example/kernel" + digest}}
		if err := c.client.Create(t.Context(), present); err != nil {
			t.Fatal(err)
		}
		c.Images = func(context.Context) (images.Way, error) { return way, nil }
		pod, _, err := c.TargetPod(t.Context(), vmi, testMigration())
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, c := range pod.Spec.InitContainers {
			got[c.Name] = c.Image
		}
		for _, v := range pod.Spec.Volumes {
			if v.Image != nil {
				got[v.Name] = v.Image.Reference
			}
		}
		for name, want := range map[string]string{"disk-root": "registry.example/root" + digest,
			"disk-media": "registry.example/media:latest", "kernel": "registry.example/kernel" + digest} {
			if got[name] != want {
				t.Errorf("%s, %s: %s, want %s", way, name, got[name], want)
			}
		}
	}
}
