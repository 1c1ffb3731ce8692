package filler

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeqemu/kubeqemu/controllers/datavolume"
)

// Bounds of the pause before a pod that failed as a whole is made anew.
const (
	firstBackoff   = 5 * time.Second
	longestBackoff = 5 * time.Minute
)

// backoff is the pause after a number of failures.
func backoff(restarts int32) time.Duration {
	if restarts > 6 {
		return longestBackoff
	}
	return min(firstBackoff<<max(restarts, 0), longestBackoff)
}

// endOf is when a pod's container ended, or else when the pod was made: a pod that a node rejected
// has no container, and a node's clock may be wrong.
func endOf(pod *corev1.Pod, now time.Time) time.Time {
	made := pod.CreationTimestamp.Time
	if c := containerOf(pod); c != nil && c.State.Terminated != nil {
		if end := c.State.Terminated.FinishedAt.Time; end.After(made) && !end.After(now) {
			return end
		}
	}
	return made
}

// failure says why the importer of a pod does not run although it has run, or nothing. Between two
// runs a container waits, with the end of the last run beside it.
func failure(pod *corev1.Pod) (reason, message string) {
	c := containerOf(pod)
	if c == nil || c.State.Running != nil {
		return "", ""
	}
	ended := c.State.Terminated
	if ended == nil {
		ended = c.LastTerminationState.Terminated
	}
	if ended == nil || ended.ExitCode == 0 {
		return "", ""
	}
	message = strings.TrimSpace(ended.Message)
	switch {
	case ended.Reason != "" && ended.Reason != "Error": // such as OOMKilled
		message = strings.TrimSuffix(ended.Reason+": "+message, ": ")
	case message == "":
		message = fmt.Sprintf("the importer ended with the status %d", ended.ExitCode)
	}
	return reasonError, datavolume.Short(message)
}

// waitingContainer returns the container that keeps a pod from starting, or nil. The importer waits without a word for
// the containers with the image of a registry.
func waitingContainer(pod *corev1.Pod) *corev1.ContainerStatus {
	c := containerOf(pod)
	if c == nil || c.State.Waiting == nil {
		return nil
	}
	for i := range pod.Status.InitContainerStatuses {
		first := &pod.Status.InitContainerStatuses[i]
		if waiting := first.State.Waiting; waiting != nil && waiting.Message != "" {
			return first
		}
	}
	return c
}

// obstacle says what a pod that has not started waits for.
func obstacle(pod *corev1.Pod) (reason, message string) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return reasonUnschedulable, datavolume.Short("Importer pod cannot be scheduled: " + c.Message)
		}
	}
	c := waitingContainer(pod)
	if c == nil {
		return reasonPending, ""
	}
	switch waiting := c.State.Waiting; waiting.Reason {
	case "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull":
		return reasonImagePullFailed, datavolume.Short(fmt.Sprintf("pull of image %s failed: %s", c.Image, waiting.Message))
	case "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
		return reasonStartingPod, datavolume.Short(waiting.Reason + ": " + waiting.Message)
	case "":
		return reasonPending, datavolume.Short(waiting.Message)
	default:
		const most = 63 // a node says it, and the API server bounds a reason
		return waiting.Reason[:min(len(waiting.Reason), most)], datavolume.Short(waiting.Message)
	}
}
