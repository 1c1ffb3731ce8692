package vmi

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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
		if len(pod.Spec.InitContainers) < 2 {
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
