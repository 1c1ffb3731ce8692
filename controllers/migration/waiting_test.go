package migration

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestMigrationNamesWhatTheTargetWaitsFor: while the kubelet cannot pull an image of the target pod, the migration
// names the container, the image and the kubelet's words, in bounds. It says so no more when the launcher runs. One
// that fails says why the target was not ready.
func TestMigrationNamesWhatTheTargetWaitsFor(t *testing.T) {
	for name, runs := range map[string]bool{"the image comes": true, "the image never comes": false} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.vm("a", "node1")
			m := c.migration("m", "a")
			c.comes(m, v1.MigrationScheduling)
			c.said()
			for _, reason := range []string{"ErrImagePull", "ImagePullBackOff"} {
				c.target(m, func(pod *corev1.Pod) {
					pod.Spec.NodeName = "node2"
					if !runs {
						pod.Finalizers = []string{"kubelet/ends"} // it is there for a while when it is deleted
					}
					pod.Status = waitsFor("disk-root", reason, "no such manifest\x1b[0m"+strings.Repeat("x", 10_000))
					if reason == "ImagePullBackOff" {
						pod.Status.InitContainerStatuses[0].Image += strings.Repeat("1", 10_000)
					}
				})
				now, _ := c.steps(m)
				got := now.Status.Condition(v1.MigrationTargetWaiting)
				const from = "container disk-root of the target pod, with the image registry.example/root:v1"
				if got == nil || got.Status != metav1.ConditionTrue || got.Reason != reason ||
					!strings.HasPrefix(got.Message, from) || len(got.Message) > 2*maxReason ||
					!strings.Contains(got.Message, ", waits: no such manifest[0mxxx") {
					t.Fatalf("%s: %+v", reason, got)
				}
			}
			if said := c.said(); said != "ErrImagePull ErrImagePull" {
				t.Errorf("events %s", said)
			}
			if runs {
				c.launches(m, "node2")
			} else {
				c.clock.SetTime(c.clock.Now().Add(prepareTimeout + time.Second))
			}
			now, _ := c.steps(m)
			if got := now.Status.Condition(v1.MigrationTargetWaiting); got != nil {
				t.Errorf("afterwards: %+v", got)
			}
			if !runs && !strings.HasPrefix(now.Status.MigrationState.FailureReason,
				"the target was not ready within 15m0s: container disk-root of the target pod, with the image registry.ex") {
				t.Errorf("%s: %+v", now.Status.Phase, now.Status.MigrationState)
			}
		})
	}
}

// waitsFor returns the status of a pod whose launcher waits for another container, of which the kubelet says why.
func waitsFor(container, reason, message string) corev1.PodStatus {
	waiting := func(name, image, reason, message string) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: name, Image: image,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}
	}
	return corev1.PodStatus{Phase: corev1.PodPending,
		InitContainerStatuses: []corev1.ContainerStatus{waiting(container, "registry.example/root:v1", reason, message)},
		ContainerStatuses:     []corev1.ContainerStatus{waiting("compute", "launcher:v1", "PodInitializing", "")}}
}

// TestMigrationNamesTheContainerThatFailed: where a container before the target's launcher fails, the migration names
// it.
func TestMigrationNamesTheContainerThatFailed(t *testing.T) {
	c := newCluster(t)
	c.vm("a", "node1")
	m := c.migration("m", "a")
	c.comes(m, v1.MigrationScheduling)
	c.target(m, func(pod *corev1.Pod) {
		kernel := corev1.ContainerStatus{Name: "kernel"}
		kernel.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: 1, Message: "no file /boot/kernel"}
		pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, InitContainerStatuses: []corev1.ContainerStatus{kernel}}
	})
	now, _ := c.steps(m)
	const want = "the target pod has ended: its container kernel failed: no file /boot/kernel"
	if got := now.Status.MigrationState.FailureReason; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestMigrationBlamesNoContainerThatEndsWithItsPod: a container that hands out an image ends with a status when the
// kubelet ends it. That is not why the target pod has ended.
func TestMigrationBlamesNoContainerThatEndsWithItsPod(t *testing.T) {
	c := newCluster(t)
	c.vm("a", "node1")
	m := c.migration("m", "a")
	c.comes(m, v1.MigrationScheduling)
	c.target(m, func(pod *corev1.Pod) {
		always := corev1.ContainerRestartPolicyAlways
		pod.Spec.InitContainers = []corev1.Container{{Name: "disk-root", RestartPolicy: &always}}
		disk, compute := corev1.ContainerStatus{Name: "disk-root"}, corev1.ContainerStatus{Name: "compute"}
		disk.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: 2, Reason: "Error"}
		compute.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "ContainerStatusUnknown"}
		pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "low on memory",
			InitContainerStatuses: []corev1.ContainerStatus{disk}, ContainerStatuses: []corev1.ContainerStatus{compute}}
	})
	now, _ := c.steps(m)
	const want = "the target pod has ended: Evicted low on memory"
	if got := now.Status.MigrationState.FailureReason; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
