package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// replicas is a ReplicaSet on the cluster.
type replicas struct {
	t               *testing.T
	namespace, name string
}

// createReplicas makes a ReplicaSet of so many tiny guests.
func createReplicas(t *testing.T, namespace string, n int32) replicas {
	t.Helper()
	r := replicas{t, namespace, "web"}
	template := tiny("", bootsKernel)
	labels := map[string]string{"app": r.name}
	object := &v1.VirtualMachineInstanceReplicaSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstanceReplicaSet"},
		ObjectMeta: metav1.ObjectMeta{Name: r.name},
		Spec: v1.VirtualMachineInstanceReplicaSetSpec{Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1.VirtualMachineInstanceTemplateSpec{ObjectMeta: v1.TemplateMeta{Labels: labels}, Spec: template.Spec}},
	}
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	apply(t, namespace, string(text))
	// Before the namespace's own end, which deletes the guests: they would be replaced.
	t.Cleanup(func() {
		if _, err := output("", "kubectl", "-n", namespace, "delete", "vmirs", "--all"); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r replicas) scale(n int) {
	r.t.Helper()
	kubectl(r.t, "-n", r.namespace, "scale", "vmirs", r.name, fmt.Sprintf("--replicas=%d", n))
}

// shows waits until kubectl shows DESIRED, CURRENT and READY.
func (r replicas) shows(want string) {
	r.t.Helper()
	err := poll(func() error {
		columns := strings.Fields(strings.Split(kubectl(r.t, "-n", r.namespace, "get", "vmirs", r.name), "\n")[1])
		if have := strings.Join(columns[1:len(columns)-1], " "); have != want {
			return fmt.Errorf("kubectl get vmirs shows %q, want %q", have, want)
		}
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r replicas) vmis() []v1.VirtualMachineInstance {
	r.t.Helper()
	return get[v1.VirtualMachineInstanceList](r.t, "-n", r.namespace, "vmi", "-l", "app="+r.name).Items
}

// TestReplicaSet scales guests up and down, and kills one of them.
func TestReplicaSet(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	r := createReplicas(t, ns, 0)
	watch := startTranscript(t, "watch of ReplicaSets", "kubectl", "-n", ns, "get", "vmirs", "--watch")
	r.shows("0 0 0")
	r.scale(5)
	r.shows("5 5 5")

	killed := r.vmis()[0]
	// One that ends sooner than 10 s after it was made waits so long for its successor.
	signal(t, "KILL", vmi{t, ns, killed.Name}.qemu())
	if err := poll(func() error {
		if slices.ContainsFunc(r.vmis(), func(v v1.VirtualMachineInstance) bool { return v.UID == killed.UID }) {
			return fmt.Errorf("the VMI that was killed, %s, is still there", killed.Name)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	r.shows("5 5 5")

	r.scale(2)
	r.shows("2 2 2")
	r.scale(0)
	r.shows("0 0 0")
	r.none()
	showsInOrder(watch, `NAME\s+DESIRED\s+CURRENT\s+READY\s+AGE`, `web\s+5\s+5\s+5\s`, `web\s+2\s+2\s+2\s`, `web\s+0\s+0\s+0\s`)
	r.deletion()
}

// none waits until no VMI is left.
func (r replicas) none() {
	r.t.Helper()
	if err := poll(func() error {
		if left := len(r.vmis()); left > 0 {
			return fmt.Errorf("%d VMIs are left", left)
		}
		return nil
	}); err != nil {
		r.t.Error(err)
	}
}

// TestAutoscaler: Kubernetes' autoscaler scales guests up and down through the
// scale subresource, and who scales to none takes it out of its hands.
func TestAutoscaler(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	r := createReplicas(t, ns, 1)
	r.shows("1 1 1")
	// It knows no load here, but holds to its bounds.
	within := func(least, most int) {
		apply(t, ns, fmt.Sprintf(`
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec:
  minReplicas: %d
  maxReplicas: %d
  scaleTargetRef: {apiVersion: kubevirt.io/v1, kind: VirtualMachineInstanceReplicaSet, name: web}
`, least, most))
	}
	within(5, 6)
	r.shows("5 5 5")
	within(1, 2)
	r.shows("2 2 2")
	for _, want := range []string{"New size: 5", "New size: 2"} {
		events := kubectl(t, "-n", ns, "get", "events", "--field-selector=involvedObject.kind=HorizontalPodAutoscaler,reason=SuccessfulRescale")
		if !strings.Contains(events, want) {
			t.Errorf("the autoscaler's events lack %q:\n%s", want, events)
		}
	}
	r.scale(0)
	kubectl(t, "-n", ns, "wait", "hpa/web", "--timeout=600s", `--for=jsonpath={.status.conditions[?(@.type=="ScalingActive")].reason}=ScalingDisabled`)
	r.shows("0 0 0")
	r.none()
}

// deletion: the guests stay when their ReplicaSet is deleted without them,
// are adopted by the next one, and go with it.
func (r replicas) deletion() {
	r.t.Helper()
	r.scale(1)
	r.shows("1 1 1")
	before := r.vmis()[0]
	kubectl(r.t, "-n", r.namespace, "delete", "vmirs", r.name, "--cascade=orphan")
	createReplicas(r.t, r.namespace, 1)
	r.shows("1 1 1")
	if after := r.vmis(); len(after) != 1 || after[0].UID != before.UID {
		r.t.Errorf("%d VMIs, want the one that was there: %s", len(after), before.Name)
	}
	start := time.Now()
	kubectl(r.t, "-n", r.namespace, "delete", "vmirs", r.name, "--cascade=foreground", "--timeout=600s")
	if left := r.vmis(); len(left) > 0 {
		r.t.Errorf("%d VMIs are left %v after the deletion in the foreground began", len(left), time.Since(start))
	}
}
