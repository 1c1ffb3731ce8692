package rights

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// components are the pods that Kubeqemu is made of.
func components(t *testing.T) map[string]*corev1.PodSpec {
	t.Helper()
	pods := map[string]*corev1.PodSpec{}
	for _, d := range shipped(t).Deployments {
		pods[d.Name] = &d.Spec.Template.Spec
	}
	for _, d := range shipped(t).DaemonSets {
		pods[d.Name] = &d.Spec.Template.Spec
	}
	if len(pods) != 3 {
		t.Fatalf("%d components, want 3", len(pods))
	}
	return pods
}

// TestMemoryIsLimited: what somebody sends a component without end ends that
// component at most, and its collector works before that.
func TestMemoryIsLimited(t *testing.T) {
	for name, pod := range components(t) {
		for _, c := range pod.Containers {
			limit := c.Resources.Limits.Memory()
			if limit.IsZero() {
				t.Errorf("%s: container %s has no memory limit", name, c.Name)
				continue
			}
			soft := int64(0)
			for _, e := range c.Env {
				if e.Name == "GOMEMLIMIT" {
					q, err := resource.ParseQuantity(strings.TrimSuffix(e.Value, "B")) // Go has MiB where Kubernetes has Mi
					if err != nil {
						t.Fatalf("%s: GOMEMLIMIT=%q: %v", name, e.Value, err)
					}
					soft = q.Value()
				}
			}
			if soft < c.Resources.Requests.Memory().Value() || soft > limit.Value()*9/10 {
				t.Errorf("%s: GOMEMLIMIT is %d, want at least what is requested and at most nine tenths of %d", name, soft, limit.Value())
			}
		}
	}
}

// TestSmallNodeHasRoomForGuests: a node of two cores has room for guests beside all components.
func TestSmallNodeHasRoomForGuests(t *testing.T) {
	total := resource.Quantity{}
	for name, pod := range components(t) {
		for _, c := range pod.Containers {
			total.Add(*c.Resources.Requests.Cpu())
			if !c.Resources.Limits.Cpu().IsZero() {
				t.Errorf("%s: container %s has a limit of CPU time: it would be stopped in the middle of what others wait for", name, c.Name)
			}
		}
		if !strings.HasPrefix(pod.PriorityClassName, "system-") {
			t.Errorf("%s has priority class %q: a pod of anybody's could push it from its node", name, pod.PriorityClassName)
		}
	}
	if most := resource.MustParse("100m"); total.Cmp(most) > 0 {
		t.Errorf("all components book %s of CPU, want at most %s", total.String(), most.String())
	}
}

// TestLateAnswerKillsNoComponent: a component that answers late is not killed for it, and
// its address is not taken from it at the first late answer.
func TestLateAnswerKillsNoComponent(t *testing.T) {
	const alive, ready = 5 * time.Minute, 10 * time.Second
	for name, pod := range components(t) {
		for _, c := range pod.Containers {
			for what, want := range map[string]struct {
				probe *corev1.Probe
				late  time.Duration
			}{"liveness": {c.LivenessProbe, alive}, "readiness": {c.ReadinessProbe, ready}} {
				if want.probe == nil {
					t.Errorf("%s has no %s probe", name, what)
					continue
				}
				p := want.probe
				if late := time.Duration(p.TimeoutSeconds) * time.Second * time.Duration(p.FailureThreshold); late < want.late || p.TimeoutSeconds < 10 {
					t.Errorf("%s: %s fails after %v without an answer, want at least %v, and 10 s for each", name, what, late, want.late)
				}
			}
		}
	}
}
