package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// full makes a pod that requests all CPU of a node that is free, and returns what deletes it. Until then the node takes
// no pod that requests CPU, though it could take one later: a migration there waits, where a cordon would end it.
func full(t *testing.T, namespace, node string) (release func()) {
	t.Helper()
	release = func() {
		t.Helper()
		kubectl(t, "-n", namespace, "delete", "pod", "fills-"+node, "--ignore-not-found", "--timeout=600s")
	}
	t.Cleanup(release)
	if err := poll(func() error { return nobodyLeaves(node) }); err != nil {
		t.Fatal(err)
	}
	free := get[corev1.Node](t, "node", node).Status.Allocatable.Cpu().DeepCopy()
	for _, pod := range get[corev1.PodList](t, "-A", "pods", "--field-selector", "spec.nodeName="+node).Items {
		if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			free.Sub(requestsCPU(&pod))
		}
	}
	apply(t, namespace, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: fills-%[1]s}
spec:
  terminationGracePeriodSeconds: 0
  nodeSelector: {%[2]s: %[1]s}
  tolerations: [{operator: Exists}]
  containers:
  - {name: fills, image: %[3]s, imagePullPolicy: Never, command: [busybox, sleep, "3600"],
     resources: {requests: {cpu: %[4]s}}}
`, node, corev1.LabelHostname, clientImage, &free))
	kubectl(t, "-n", namespace, "wait", "--for=condition=Ready", "pod/fills-"+node, "--timeout=600s")
	return release
}

// nobodyLeaves returns an error while a pod of the node is going away: its CPU would become free.
func nobodyLeaves(node string) error {
	pods, err := getObject[corev1.PodList]("-A", "pods", "--field-selector", "spec.nodeName="+node)
	if err != nil {
		return err
	}
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp != nil {
			return fmt.Errorf("pod %s/%s is still on its way out of %s", pod.Namespace, pod.Name, node)
		}
	}
	return nil
}

// requestsCPU returns how much CPU the scheduler keeps for a pod: that of its containers together, or of one that runs
// before them, if that is more. No pod of the tests' clusters has an overhead, or resources of its own.
func requestsCPU(pod *corev1.Pod) resource.Quantity {
	var sum, before resource.Quantity
	for _, c := range pod.Spec.Containers {
		sum.Add(*c.Resources.Requests.Cpu())
	}
	for _, c := range pod.Spec.InitContainers {
		switch cpu := c.Resources.Requests.Cpu(); {
		case c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways:
			sum.Add(*cpu)
		case cpu.Cmp(before) > 0:
			before = *cpu
		}
	}
	if before.Cmp(sum) > 0 {
		return before
	}
	return sum
}
