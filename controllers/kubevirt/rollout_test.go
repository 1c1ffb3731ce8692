package kubevirt

import (
	"errors"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestBrokenHandlerHoldsUpLauncherUpdates: an update of the launchers waits until all virt-handlers are of one version and work.
func TestBrokenHandlerHoldsUpLauncherUpdates(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(appsv1.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		change    func(*appsv1.DaemonSet, *appsv1.Deployment)
		rolledOut bool
	}{
		"all of one version":                {func(*appsv1.DaemonSet, *appsv1.Deployment) {}, true},
		"a virt-handler does not work":      {func(d *appsv1.DaemonSet, _ *appsv1.Deployment) { d.Status.NumberAvailable = 1 }, false},
		"a virt-handler is earlier":         {func(d *appsv1.DaemonSet, _ *appsv1.Deployment) { d.Status.UpdatedNumberScheduled = 1 }, false},
		"nobody has looked at the new spec": {func(d *appsv1.DaemonSet, _ *appsv1.Deployment) { d.Status.ObservedGeneration = 0 }, false},
		"a virt-controller is earlier":      {func(_ *appsv1.DaemonSet, d *appsv1.Deployment) { d.Status.Replicas = 2 }, false},
	} {
		object := metav1.ObjectMeta{Namespace: v1.KubeVirtNamespace, Generation: 1}
		set, deployment := &appsv1.DaemonSet{ObjectMeta: object}, &appsv1.Deployment{ObjectMeta: object}
		set.Name, deployment.Name = v1.VirtHandler, v1.VirtController
		set.Status = appsv1.DaemonSetStatus{DesiredNumberScheduled: 2, UpdatedNumberScheduled: 2, NumberAvailable: 2, ObservedGeneration: 1}
		deployment.Spec.Replicas = ptr.To[int32](1)
		deployment.Status = appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1, ReadyReplicas: 1, ObservedGeneration: 1}
		tt.change(set, deployment)
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(set, deployment).Build()
		if rolledOut, err := RolledOut(t.Context(), c); err != nil || rolledOut != tt.rolledOut {
			t.Errorf("%s: rolled out %t, %v", name, rolledOut, err)
		}
	}
	if rolledOut, err := RolledOut(t.Context(), fake.NewClientBuilder().WithScheme(scheme).Build()); rolledOut || err != nil {
		t.Errorf("without virt-handlers: %t, %v", rolledOut, err)
	}
}
