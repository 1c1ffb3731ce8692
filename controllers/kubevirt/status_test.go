package kubevirt

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// deployment and daemonSet are wanted, updated and available so often.
func deployment(wanted, updated, available int32) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: v1.VirtController, Namespace: v1.KubeVirtNamespace}}
	d.Spec.Replicas = ptr.To(wanted)
	d.Spec.Template.Spec.Containers = []corev1.Container{{Image: "registry:5000/kubeqemu/virt-controller:v1.2"}}
	d.Status.UpdatedReplicas, d.Status.AvailableReplicas = updated, available
	return d
}

func daemonSet(wanted, updated, available int32) *appsv1.DaemonSet {
	d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: v1.VirtHandler, Namespace: v1.KubeVirtNamespace}}
	d.Status.DesiredNumberScheduled, d.Status.UpdatedNumberScheduled, d.Status.NumberAvailable = wanted, updated, available
	return d
}

// conditions in short: "A" is Available=True, and so on.
func conditions(s *v1.KubeVirtStatus) string {
	letters := ""
	for _, c := range s.Conditions {
		if c.Status == corev1.ConditionTrue && c.Type != v1.KubeVirtConditionCreated {
			letters += string(c.Type[0])
		}
	}
	return letters
}

// reported is what is there, and what is said of it.
type reported struct {
	name       string
	deployment *appsv1.Deployment
	daemonSet  *appsv1.DaemonSet
	phase      v1.KubeVirtPhase
	want       string // conditions
	words      string
}

// TestReportWithoutAPI: guests of users cannot be started without virt-api.
func TestReportWithoutAPI(t *testing.T) {
	for words, api := range map[string]*appsv1.Deployment{
		"virt-api: 0 of 1 available": deployment(1, 1, 0), "there is no Deployment virt-api": nil,
	} {
		kv := &v1.KubeVirt{}
		report(kv, deployment(1, 1, 1), api, daemonSet(1, 1, 1), metav1.Unix(1000, 0))
		if got := conditions(&kv.Status); strings.Contains(got, "A") || !strings.Contains(kv.Status.Conditions[1].Message, words) {
			t.Errorf("conditions %q: %s, want %q", got, kv.Status.Conditions[0].Message, words)
		}
	}
}

func TestReportOfTheComponents(t *testing.T) {
	old := func(d *appsv1.Deployment) *appsv1.Deployment { d.Generation = 2; return d }
	tests := []reported{
		{"up", deployment(1, 1, 1), daemonSet(3, 3, 3), "Deployed", "A", "All components are ready."},
		{"two controllers", deployment(2, 2, 2), daemonSet(1, 1, 1), "Deployed", "A", "All components are ready."},
		{"one of two controllers", deployment(2, 2, 1), daemonSet(1, 1, 1), "Deploying", "AD", "virt-controller: 1 of 2 available"},
		{"no controller", deployment(1, 1, 0), daemonSet(3, 3, 3), "Deploying", "D", "virt-controller: 0 of 1 available"},
		{"one node without handler", deployment(1, 1, 1), daemonSet(3, 3, 2), "Deploying", "AD", "virt-handler: 2 of 3 available"},
		{"no handler", deployment(1, 1, 1), daemonSet(3, 3, 0), "Deploying", "D", "virt-handler: 0 of 3 available"},
		{"no node", deployment(1, 1, 1), daemonSet(0, 0, 0), "Deploying", "PD", noHandlerWanted},
		{"rollout", deployment(1, 1, 1), daemonSet(3, 1, 3), "Deploying", "AP", "1 updated"},
		{"rollout not begun", old(deployment(1, 1, 1)), daemonSet(1, 1, 1), "Deploying", "AP", "virt-controller"},
		{"no Deployment", nil, daemonSet(1, 1, 1), "Deploying", "PD", "no Deployment virt-controller"},
		{"no DaemonSet", deployment(1, 1, 1), nil, "Deploying", "PD", "no DaemonSet virt-handler"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Generation: 5}}
			report(kv, tt.deployment, deployment(1, 1, 1), tt.daemonSet, metav1.Unix(1000, 0))
			if got := conditions(&kv.Status); got != tt.want || kv.Status.Phase != tt.phase {
				t.Errorf("conditions %q, phase %s; want %q, %s", got, kv.Status.Phase, tt.want, tt.phase)
			}
			for _, c := range kv.Status.Conditions {
				if c.Type != v1.KubeVirtConditionFieldsWithoutEffect && !strings.Contains(c.Message, tt.words) {
					t.Errorf("%s says %q, want %q in it", c.Type, c.Message, tt.words)
				}
			}
			if kv.Status.ObservedGeneration != 5 || (kv.Status.ObservedKubeVirtVersion == "v1.2") != (tt.phase == "Deployed") {
				t.Errorf("%+v", kv.Status)
			}
			if created := kv.Status.Conditions[0]; created.Type != v1.KubeVirtConditionCreated || (created.Status == corev1.ConditionTrue) != (tt.deployment != nil && tt.daemonSet != nil) {
				t.Errorf("%+v", created)
			}
			before := kv.DeepCopy()
			report(kv, tt.deployment, deployment(1, 1, 1), tt.daemonSet, metav1.Unix(2000, 0))
			if conditions(&before.Status) != conditions(&kv.Status) || !before.Status.Conditions[0].LastTransitionTime.Equal(&kv.Status.Conditions[0].LastTransitionTime) {
				t.Error("the same report a second time changes the status")
			}
		})
	}
}

// TestDeployedBecomesDegradedNotDeploying: what was once deployed is degraded, not deploying.
func TestDeployedBecomesDegradedNotDeploying(t *testing.T) {
	kv := &v1.KubeVirt{}
	report(kv, deployment(1, 1, 1), deployment(1, 1, 1), daemonSet(1, 1, 1), metav1.Unix(1000, 0))
	report(kv, deployment(1, 1, 1), deployment(1, 1, 1), daemonSet(1, 1, 0), metav1.Unix(2000, 0))
	if kv.Status.Phase != v1.KubeVirtPhaseDeployed || conditions(&kv.Status) != "D" {
		t.Errorf("%+v", kv.Status)
	}
}

func TestRegistryAndTagOfAnImage(t *testing.T) {
	for name, want := range map[string][2]string{"a:v1": {"", "v1"}, "host:5000/a": {"host:5000", "latest"}, "host:5000/x/a:v2": {"host:5000/x", "v2"},
		"a@sha256:12": {"", "sha256:12"}, "a:v3@sha256:12": {"", "v3"}} {
		if registry, tag := image([]corev1.Container{{Image: name}}); registry != want[0] || tag != want[1] {
			t.Errorf("%s: %q, %q, want %q", name, registry, tag, want)
		}
	}
}

func newClient(t *testing.T, objects ...client.Object) client.WithWatch {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(appsv1.AddToScheme(s), v1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(s).WithObjects(objects...).WithStatusSubresource(&v1.KubeVirt{}).Build()
}

func kubeVirt(namespace, name string, created int64, emulation bool) *v1.KubeVirt {
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name), CreationTimestamp: metav1.Unix(created, 0)}}
	kv.Spec.Configuration.DeveloperConfiguration = &v1.DeveloperConfiguration{UseEmulation: emulation}
	return kv
}

func TestWhichKubeVirtConfigures(t *testing.T) {
	tests := []struct {
		name    string
		objects []client.Object
		want    bool
	}{
		{"none", nil, false},
		{"one", []client.Object{kubeVirt(v1.KubeVirtNamespace, "kv", 1, true)}, true},
		{"in another namespace", []client.Object{kubeVirt("default", "kv", 1, true)}, true},
		{"the components' namespace counts, even if it is the younger", []client.Object{kubeVirt("a", "kv", 1, true), kubeVirt(v1.KubeVirtNamespace, "kv", 2, false)}, false},
		{"the oldest", []client.Object{kubeVirt(v1.KubeVirtNamespace, "a", 2, false), kubeVirt(v1.KubeVirtNamespace, "b", 1, true)}, true},
		{"of the same age, the first", []client.Object{kubeVirt(v1.KubeVirtNamespace, "b", 1, false), kubeVirt(v1.KubeVirtNamespace, "a", 1, true)}, true},
	}
	for _, tt := range tests {
		config, err := Configuration(context.Background(), newClient(t, tt.objects...))
		if err != nil || config.EmulationPermitted() != tt.want {
			t.Errorf("%s: %+v (%v), want emulation %v", tt.name, config, err, tt.want)
		}
	}
}

func TestReconcile(t *testing.T) {
	ctx := context.Background()
	first, second := kubeVirt(v1.KubeVirtNamespace, "first", 1, true), kubeVirt(v1.KubeVirtNamespace, "second", 2, false)
	api := deployment(1, 1, 1)
	api.Name = v1.VirtAPI
	c := newClient(t, first, second, deployment(1, 1, 1), api, daemonSet(1, 1, 1))
	r := &Reconciler{Client: c, Clock: clocktesting.NewFakePassiveClock(time.Unix(1000, 0))}
	reconcile := func(kv *v1.KubeVirt) *v1.KubeVirtStatus {
		t.Helper()
		if _, err := r.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(kv)}); err != nil {
			t.Fatal(err)
		}
		got := &v1.KubeVirt{}
		if err := c.Get(ctx, client.ObjectKeyFromObject(kv), got); err != nil {
			t.Fatal(err)
		}
		return &got.Status
	}
	if s := reconcile(first); conditions(s) != "A" || s.Phase != v1.KubeVirtPhaseDeployed {
		t.Errorf("the first: %+v", s)
	}
	if s := reconcile(second); conditions(s) != "" || len(s.Conditions) != 1 || s.Conditions[0].Reason != v1.ReasonExistingDeployment || s.Phase != "" {
		t.Errorf("the second: %+v", s)
	}
	if err := c.Delete(ctx, first); err != nil {
		t.Fatal(err)
	}
	if s := reconcile(second); conditions(s) != "A" {
		t.Errorf("the second, alone: %+v", s)
	}
	if _, err := r.Reconcile(ctx, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(first)}); err != nil {
		t.Errorf("one that is gone: %v", err)
	}
}
