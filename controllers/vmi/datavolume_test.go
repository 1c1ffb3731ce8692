package vmi

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func dataVolume(phase, percent string) *unstructured.Unstructured {
	status := map[string]any{}
	for name, value := range map[string]string{"phase": phase, "progress": percent} {
		if value != "" {
			status[name] = value
		}
	}
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
		"metadata": map[string]any{"namespace": "default", "name": "data", "uid": "volume"}, "status": status}}
}

// TestVMIWaitsForItsClaimAndItsFilling: a VMI waits for its claim, and then for what fills it; a claim
// of that name that nothing fills is taken as it is.
func TestVMIWaitsForItsClaimAndItsFilling(t *testing.T) {
	ctx := context.Background()
	fresh := func() *cluster {
		c := newCluster(t, v1.Pending, interceptor.Funcs{})
		vmi := c.get()
		vmi.Spec.Volumes = []v1.Volume{{Name: "root", DataVolume: &v1.DataVolumeSource{Name: "data"}}}
		if err := c.client.Update(ctx, vmi); err != nil {
			t.Fatal(err)
		}
		return c
	}
	filled := func(phase, percent string) client.Object { return dataVolume(phase, percent) }

	c := fresh()
	is := func(pods int, words ...string) {
		t.Helper()
		after := c.later()
		status := c.status()
		for _, word := range words {
			if !strings.Contains(status, word) {
				t.Errorf("status %s, want %q in it", status, word)
			}
		}
		if waits := strings.Contains(status, v1.ReasonDataVolumeNotReady) ||
			strings.Contains(status, v1.ReasonDataVolumeFailed); c.pods() != pods || waits != (after == 5*time.Second) {
			t.Errorf("%d pods, want %d; looked at again after %s: %s", c.pods(), pods, after, status)
		}
	}
	is(0, v1.ReasonPvcNotFound)
	claim := claimOf("data", nil)
	claim.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "cdi.kubevirt.io/v1beta1", Kind: "DataVolume", Name: "data", UID: "volume", Controller: ptr.To(true)}}
	trimmed, err := TrimClaim(claim)
	if err != nil || filler(trimmed.(*corev1.PersistentVolumeClaim)) == nil {
		t.Errorf("the cache does not know what fills a claim: %+v (%v)", trimmed, err)
	}
	if err := c.client.Create(ctx, claim); err != nil {
		t.Fatal(err)
	}
	is(0, "Provisioning=True/DataVolumeNotReady")
	if status := c.status(); strings.Contains(status, v1.ReasonPvcNotFound) {
		t.Errorf("the claim is there: %s", status)
	}
	volume := filled("ImportInProgress", "50%")
	if err := c.client.Create(ctx, volume); err != nil {
		t.Fatal(err)
	}
	is(0, "Provisioning=True/DataVolumeNotReady")
	for _, step := range []struct {
		phase string
		pods  int
		word  string
	}{{"Failed", 0, "Synchronized=False/FailedDataVolumeImport"}, {"ImportInProgress", 0, "Provisioning=True"},
		{"Succeeded", 1, "Scheduling"}} {
		next := dataVolume(step.phase, "")
		next.SetResourceVersion(volume.GetResourceVersion())
		if err := c.client.Update(ctx, next); err != nil {
			t.Fatal(err)
		}
		volume = next
		is(step.pods, step.word)
	}
	if status := c.status(); strings.Contains(status, "Provisioning") ||
		strings.Contains(status, "FailedDataVolumeImport") {
		t.Errorf("once it is filled: %s", status)
	}

	c = fresh()
	if err := c.client.Create(ctx, claimOf("data", nil)); err != nil {
		t.Fatal(err)
	}
	is(1, "Scheduling")
}

// TestUnreportedPodEndsTheWaitForADisk: the first look at a new pod is not reported. The next look ends the
// wait for the disk all the same.
func TestUnreportedPodEndsTheWaitForADisk(t *testing.T) {
	c := filling(t, interceptor.Funcs{Create: func(ctx context.Context, w client.WithWatch, o client.Object,
		opts ...client.CreateOption) error {
		o.SetCreationTimestamp(metav1.Unix(1000, 0)) // now
		return w.Create(ctx, o, opts...)
	}})
	c.later()
	next := dataVolume("Succeeded", "")
	if err := errors.Join(c.client.Delete(t.Context(), dataVolume("", "")), c.client.Create(t.Context(), next)); err != nil {
		t.Fatal(err)
	}
	if after := c.later(); after != earlyDelay {
		t.Errorf("looked at again after %s", after)
	}
	pod := c.pod(v1.LauncherPodName(c.vmi.Name, c.vmi.UID, v1.FirstPod))
	pod.Spec.NodeName = "node1"
	if err := c.client.Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	c.later()
	if got := c.provisioning(); got != "" {
		t.Errorf("Provisioning says %q", got)
	}
}
