package e2e

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// manifest is a VMI with places to put something wrong into.
type manifest struct {
	memory, cpu, disk, nic, volume, more string
}

func (m manifest) yaml(name string) string {
	or := func(s, otherwise string) string {
		if s == "" {
			return otherwise
		}
		return s
	}
	return fmt.Sprintf(`
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 0
  domain:
    memory: {%s}
    cpu: {%s}
    devices:
      disks:
      - {name: root, disk: {bus: virtio}}
%s
      interfaces:
      - {name: default, %s}
  networks:
  - {name: default, pod: {}}
  volumes:
  - {name: root, containerDisk: {image: "%s"}}
%s
`, name, or(m.memory, "guest: 128Mi"), m.cpu, m.disk, or(m.nic, "masquerade: {}"), or(m.volume, tinyImage), m.more)
}

// TestInvalid: what is wrong with a VMI is said, with its path, by kubectl
// where schema or virt-api can know, else in the VMI's status.
func TestInvalid(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	restarts := componentRestarts(t)
	// The API server refuses these, the second when it has asked virt-api. What else is refused: test/admission.
	for name, c := range map[string]struct {
		manifest manifest
		path     string
	}{
		"unknown-field":       {manifest{nic: "masquerade: {}, colour: red"}, "spec.domain.devices.interfaces[0].colour"},
		"disk-without-volume": {manifest{disk: "      - {name: data, disk: {bus: virtio}}"}, "spec.domain.devices.disks[1].name"},
	} {
		_, err := output(c.manifest.yaml(name), "kubectl", "-n", ns, "apply", "-f", "-")
		if err == nil || !strings.Contains(err.Error(), c.path) {
			t.Errorf("%s: %v, want an error that names %s", name, err, c.path)
		}
	}
	// These become Failed.
	failing := map[string]struct {
		manifest       manifest
		reason, detail string
	}{
		"image-without-disk": {manifest{volume: noDiskImage}, "StartFailed", "/disk"},
		"corrupt-qcow2":      {manifest{volume: corruptImage}, "StartFailed", "disk.qcow2"},
		"backing-file":       {manifest{volume: backingImage}, "StartFailed", "backing file"},
		"no-such-path":       {manifest{more: "  - {name: other, containerDisk: {image: \"" + tinyImage + "\", path: /disk/none}}", disk: "      - {name: other, disk: {bus: virtio}}"}, "StartFailed", "/disk/none"},
	}
	for name, c := range failing {
		apply(t, ns, c.manifest.yaml(name))
	}
	apply(t, ns, manifest{volume: missingImage}.yaml("missing-image"))
	for name, c := range failing {
		v := vmi{t: t, namespace: ns, name: name}
		status := v.await(v1.Failed).Status
		if ready := status.Condition(v1.ConditionReady); status.Reason != c.reason || ready == nil || !strings.Contains(ready.Message, c.detail) {
			t.Errorf("%s: reason %q, Ready %+v; want %s and %q", name, status.Reason, ready, c.reason, c.detail)
		}
		deletesSoon(t, v)
	}
	// An image may still come.
	v := vmi{t: t, namespace: ns, name: "missing-image"}
	v.awaitCondition(v1.ConditionSynchronized, "Pull", missingImage)
	if phase := v.get().Status.Phase; phase != v1.Scheduling {
		t.Errorf("the VMI without image is %s, want Scheduling", phase)
	}
	deletesSoon(t, v)

	if now := componentRestarts(t); !maps.Equal(now, restarts) {
		t.Errorf("restarts were %v, are %v", restarts, now)
	}
}

// deletesSoon deletes a VMI that does not run, or whose guest has no grace.
func deletesSoon(t *testing.T, v vmi) {
	t.Helper()
	if took := v.delete(); took > 30*time.Second {
		t.Errorf("deletion of VMI %s took %s, want 30 s at most", v.name, took)
	}
}

// componentRestarts counts by pod how often a component was started again.
func componentRestarts(t *testing.T) map[string]int32 {
	t.Helper()
	counts := map[string]int32{}
	for _, pod := range get[corev1.PodList](t, "-n", "kubevirt", "pods").Items {
		for _, c := range pod.Status.ContainerStatuses {
			counts[pod.Name] += c.RestartCount
		}
	}
	return counts
}
