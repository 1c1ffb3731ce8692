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

// TestBrokenHandlerHoldsUpLauncherUpdates: a virt-handler that does not work holds up an update of the launchers. It does not hold up what needs one version everywhere.
func TestBrokenHandlerHoldsUpLauncherUpdates(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(appsv1.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		change             func(*appsv1.DaemonSet, *appsv1.Deployment)
		updated, rolledOut bool
	}{
		"all of one version":                {func(*appsv1.DaemonSet, *appsv1.Deployment) {}, true, true},
		"a virt-handler does not work":      {func(d *appsv1.DaemonSet, _ *appsv1.Deployment) { d.Status.NumberAvailable = 1 }, true, false},
		"a virt-handler is earlier":         {func(d *appsv1.DaemonSet, _ *appsv1.Deployment) { d.Status.UpdatedNumberScheduled = 1 }, false, false},
		"nobody has looked at the new spec": {func(d *appsv1.DaemonSet, _ *appsv1.Deployment) { d.Status.ObservedGeneration = 0 }, false, false},
		"a virt-controller is earlier":      {func(_ *appsv1.DaemonSet, d *appsv1.Deployment) { d.Status.Replicas = 2 }, false, false},
	} {
		object := metav1.ObjectMeta{Namespace: v1.KubeVirtNamespace, Generation: 1}
		set, deployment := &appsv1.DaemonSet{ObjectMeta: object}, &appsv1.Deployment{ObjectMeta: object}
		set.Name, deployment.Name = v1.VirtHandler, v1.VirtController
		set.Status = appsv1.DaemonSetStatus{DesiredNumberScheduled: 2, UpdatedNumberScheduled: 2, NumberAvailable: 2, ObservedGeneration: 1}
		deployment.Spec.Replicas = ptr.To[int32](1)
		deployment.Status = appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1, ReadyReplicas: 1, ObservedGeneration: 1}
		tt.change(set, deployment)
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(set, deployment).Build()
		updated, err := Updated(t.Context(), c)
		rolledOut, otherErr := RolledOut(t.Context(), c)
		if err := errors.Join(err, otherErr); err != nil || updated != tt.updated || rolledOut != tt.rolledOut {
			t.Errorf("%s: updated %t, rolled out %t, %v", name, updated, rolledOut, err)
		}
	}
	if updated, err := Updated(t.Context(), fake.NewClientBuilder().WithScheme(scheme).Build()); updated || err != nil {
		t.Errorf("without virt-handlers: %t, %v", updated, err)
	}
}
