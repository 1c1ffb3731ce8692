package replicaset

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/test/apiserver"
)

// later is a clock that is an hour ahead: VMIs that end are never too young to
// be replaced.
type later struct{ clock.RealClock }

func (later) Now() time.Time                  { return time.Now().Add(time.Hour) }
func (later) Since(t time.Time) time.Duration { return later{}.Now().Sub(t) }

var shared = apiserver.Shared{Install: apiserver.Installs("virtualmachineinstancereplicasets", "virtualmachineinstances")}

func TestMain(m *testing.M) { os.Exit(shared.Tests(m).Run()) }

// plane is a namespace of an API server, and virt-controllers that run the reconciler there.
type plane struct {
	*apiserver.Plane
	t *testing.T
}

func newPlane(t *testing.T) *plane {
	t.Helper()
	t.Parallel() // they wait for the same API server, and have a namespace each
	return &plane{apiserver.NewPlane(shared.Server(t).Space(t), []string{"vmirs", "vmi"}, v1.AddToScheme), t}
}

// control starts a virt-controller, and ends it with the test.
func (p *plane) control() {
	p.t.Helper()
	p.Control(func(mgr ctrl.Manager) error {
		return (&Reconciler{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: later{}, Events: mgr.GetEventRecorder("virt-controller")}).Setup(mgr)
	}, p.Namespace)
}

func (p *plane) vmis() []v1.VirtualMachineInstance {
	p.t.Helper()
	var list v1.VirtualMachineInstanceList
	if err := p.Client.List(context.Background(), &list, client.InNamespace(p.Namespace)); err != nil {
		p.t.Fatal(err)
	}
	return list.Items
}

func (p *plane) names() []string {
	var all []string
	for _, vmi := range p.vmis() {
		all = append(all, vmi.Name)
	}
	return all
}

// become writes a VMI's phase, as virt-controller and virt-handler would.
func (p *plane) become(vmi v1.VirtualMachineInstance, phase v1.VirtualMachineInstancePhase) {
	p.t.Helper()
	before := vmi.DeepCopy()
	vmi.Status.SetPhase(phase, metav1.Now())
	ready := v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: metav1.ConditionFalse, Reason: "GuestNotRunning"}
	if phase == v1.Running {
		ready.Status = metav1.ConditionTrue
	}
	vmi.Status.SetCondition(ready, metav1.Now())
	if err := p.Client.Status().Patch(context.Background(), &vmi, client.MergeFrom(before)); err != nil {
		p.t.Fatal(err)
	}
}

// grows has every guest run until there are so many: a ReplicaSet makes few VMIs at a time.
func (p *plane) grows(want int) {
	p.t.Helper()
	p.Until(func() string {
		there := 0
		for _, vmi := range p.vmis() {
			if there++; vmi.Status.Phase == "" && vmi.DeletionTimestamp == nil {
				p.become(vmi, v1.Running)
			}
		}
		return fmt.Sprint(there)
	}, func(got string) bool { return got == fmt.Sprint(want) })
}

func (p *plane) patch(patch string) {
	p.t.Helper()
	p.Patch(&v1.VirtualMachineInstanceReplicaSet{}, "tiny", patch)
}

func (p *plane) scale(replicas int) {
	p.t.Helper()
	p.patch(fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
}

func (p *plane) shows(want string) {
	p.t.Helper()
	p.Shows(&v1.VirtualMachineInstanceReplicaSet{}, "tiny", want)
}

func (p *plane) get() *v1.VirtualMachineInstanceReplicaSet {
	p.t.Helper()
	rs := &v1.VirtualMachineInstanceReplicaSet{}
	if err := p.Client.Get(context.Background(), client.ObjectKey{Namespace: p.Namespace, Name: "tiny"}, rs); err != nil {
		p.t.Fatal(err)
	}
	return rs
}

// awaitCondition waits until a condition of the ReplicaSet is true, and returns its message.
func (p *plane) awaitCondition(kind v1.ReplicaConditionType) (message string) {
	p.t.Helper()
	testkit.Eventually(p.t, string(kind), func() error {
		status := p.get().Status
		c := status.Condition(kind)
		if c == nil || c.Status != metav1.ConditionTrue {
			return fmt.Errorf("it is %+v", c)
		}
		message = c.Message
		return nil
	})
	return message
}

const sample = "../../config/samples/vmirs-tiny.yaml"

// TestOnAPIServer follows the sample through kubectl, with virt-controller's rights.
func TestOnAPIServer(t *testing.T) {
	p := newPlane(t)
	p.control()
	p.Kubectl("apply", "--server-side", "-f", sample)
	p.shows("3 3 0")
	if out, err := p.Try("", "diff", "--server-side", "-f", sample); err != nil || out != "" {
		t.Errorf("kubectl diff of what was applied: %v\n%s", err, out)
	}
	for _, vmi := range p.vmis() {
		if vmi.Labels["app"] != "tiny" || !strings.HasPrefix(vmi.Name, "tiny-") {
			t.Errorf("VMI %s has the labels %v", vmi.Name, vmi.Labels)
		}
		p.become(vmi, v1.Running)
	}
	p.shows("3 3 3")
	p.Kubectl("wait", "vmirs/tiny", "--for=jsonpath={.status.readyReplicas}=3", "--timeout=60s")

	// Of too many, those go that are not ready.
	running := p.names()
	p.Kubectl("scale", "vmirs", "tiny", "--replicas=5")
	p.shows("5 5 3")
	p.scale(3)
	p.shows("3 3 3")
	if got := p.names(); !slices.Equal(got, running) {
		t.Errorf("VMIs are %v, want those that ran: %v", got, running)
	}

	// One that ends is replaced.
	p.become(p.vmis()[0], v1.Failed)
	p.shows("3 3 2")
	if slices.Contains(p.names(), running[0]) && len(p.names()) == 3 {
		t.Errorf("VMIs are %v: the one that failed is among them", p.names())
	}

	// Paused, nothing happens, and it says so.
	p.patch(`{"spec":{"paused":true}}`)
	p.awaitCondition(v1.ReplicaPaused)
	p.scale(1)
	p.shows("1 3 2")
	p.patch(`{"spec":{"paused":false}}`)
	p.shows("1 1 1")
	p.Said("SuccessfulCreate", "SuccessfulDelete", "SuccessfulPaused", "SuccessfulResumed")
	p.scaleSubresource()
	p.scale(0)
	p.shows("0 0 0")
	p.Until(func() string { return fmt.Sprint(len(p.names())) }, func(n string) bool { return n == "0" }) // a VMI that is deleted counts no longer, and is there for a while

	// A template that fits no VMI makes none.
	p.patch(`{"spec":{"replicas":2,"template":{"spec":{"domain":{"memory":{"guest":"1k"}}}}}}`)
	message := p.awaitCondition(v1.ReplicaFailure)
	if !strings.Contains(message, "spec.template.spec.domain.memory.guest") || len(p.names()) != 0 {
		t.Errorf("%d VMIs; the condition says %q", len(p.names()), message)
	}
	p.adoption()
}

// scaleSubresource is what a HorizontalPodAutoscaler reads and writes.
func (p *plane) scaleSubresource() {
	p.t.Helper()
	rs, got := &v1.VirtualMachineInstanceReplicaSet{}, &autoscalingv1.Scale{}
	rs.Namespace, rs.Name = p.Namespace, "tiny"
	if err := p.Client.SubResource("scale").Get(context.Background(), rs, got); err != nil {
		p.t.Fatal(err)
	}
	if got.Spec.Replicas != 1 || got.Status.Replicas != 1 || got.Status.Selector != "app=tiny" {
		p.t.Errorf("scale is %+v %+v", got.Spec, got.Status)
	}
	p.Scale(rs, 2)
	p.shows("2 2 1")
}

// adoption: a ReplicaSet takes over a VMI that nobody controls.
func (p *plane) adoption() {
	p.t.Helper()
	text, err := os.ReadFile(sample)
	if err != nil {
		p.t.Fatal(err)
	}
	rs := &v1.VirtualMachineInstanceReplicaSet{}
	if err := yaml.UnmarshalStrict(text, rs); err != nil {
		p.t.Fatal(err)
	}
	vmi := instance(rs, "foundling")
	vmi.Namespace, vmi.OwnerReferences = p.Namespace, nil
	if err := p.Client.Create(context.Background(), vmi); err != nil {
		p.t.Fatal(err)
	}
	p.scale(1)
	p.MustApply(string(text), client.ForceOwnership)
	p.shows("3 3 0")
	if got := p.names(); len(got) != 3 || !slices.Contains(got, "foundling") {
		p.t.Errorf("VMIs are %v, want 3 with the foundling among them", got)
	}
}

// TestNeverTooMany: two virt-controllers at once, whose caches are behind as
// caches are, make each VMI once.
func TestNeverTooMany(t *testing.T) {
	p := newPlane(t)
	made := p.Made(&v1.VirtualMachineInstanceList{})
	p.control()
	p.control()
	text, err := os.ReadFile(sample)
	if err != nil {
		t.Fatal(err)
	}
	p.MustApply(string(text))
	for _, n := range []int{20, 5, 15} {
		p.scale(n)
		p.grows(n)
		p.shows(fmt.Sprintf("%d %d %d", n, n, n))
	}
	p.Until(func() string { return fmt.Sprint(made()) }, func(string) bool { return made() >= 30 })
	if made := made(); made != 30 {
		t.Errorf("%d VMIs were made, want 30", made)
	}
}

// TestSchema: what is wrong at first sight is refused by the API server, by path.
func TestSchema(t *testing.T) {
	p := newPlane(t)
	text, err := os.ReadFile(sample)
	if err != nil {
		t.Fatal(err)
	}
	for old, c := range map[string]struct{ new, want string }{
		"replicas: 3": {"replicas: -1", "spec.replicas"},
		"  selector:\n    matchLabels:\n      app: tiny\n": {"", "spec.selector"},
		"          autoattachGraphicsDevice: false\n":      {"          sound: {}\n", "spec.template.spec.domain.devices.sound"},
		"terminationGracePeriodSeconds: 20":                {"terminationGraceSeconds: 20", "spec.template.spec.terminationGraceSeconds"},
	} {
		changed := strings.Replace(string(text), old, c.new, 1)
		if changed == string(text) {
			t.Errorf("the sample has no %q", old)
		}
		if err := p.Apply(changed, client.DryRunAll); err == nil || !strings.Contains(err.Error(), strings.TrimPrefix(c.want, "spec")) {
			t.Errorf("%q instead of %q: %v, want an error that names %s", c.new, old, err, c.want)
		}
	}
	// What Go clients write into templates, and KubeVirt ignores, is kept, even where it is nonsense.
	noise := strings.Replace(string(text), "      labels:\n        app: tiny\n", "      creationTimestamp: never\n      generateName: box-\n      labels:\n        app: tiny\n", 1)
	if err := p.Apply(noise); err != nil {
		t.Error(err)
	}
	if err := p.Client.List(context.Background(), &v1.VirtualMachineInstanceReplicaSetList{}); err != nil {
		t.Errorf("one ReplicaSet keeps all from being listed: %v", err)
	}
	kept := &unstructured.Unstructured{}
	kept.SetGroupVersionKind(v1.GroupVersion.WithKind("VirtualMachineInstanceReplicaSet"))
	if err := p.Client.Get(context.Background(), client.ObjectKey{Namespace: p.Namespace, Name: "tiny"}, kept); err != nil {
		t.Fatal(err)
	}
	if got, _, _ := unstructured.NestedString(kept.Object, "spec", "template", "metadata", "generateName"); got != "box-" {
		t.Errorf("the template's generateName is %q", got)
	}
	// The API server publishes the schema a moment after the kind.
	p.Until(func() string {
		out, err := p.Try("", "explain", "vmirs.spec.replicas")
		return fmt.Sprintf("%s (%v)", out, err)
	}, func(said string) bool { return strings.Contains(said, "Default: 1") })
}
