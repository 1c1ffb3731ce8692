package migration

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// evictor is a Mover whose evictions the test counts and refuses.
type evictor struct {
	*Mover
	*cluster
	// evicted are the pods, and refused is the API server's answer, by pod.
	evicted []string
	refused map[string]error
}

func newEvictor(t *testing.T, strategy v1.WorkloadUpdateStrategy) *evictor {
	t.Helper()
	c := newCluster(t)
	m, spec := c.mover()
	*spec.WorkloadUpdateStrategy = strategy
	e := &evictor{Mover: m, cluster: c, refused: map[string]error{}}
	m.Client = interceptor.NewClient(c.client, interceptor.Funcs{SubResourceCreate: func(ctx context.Context, _ client.Client, sub string, o, body client.Object, _ ...client.SubResourceCreateOption) error {
		eviction, is := body.(*policyv1.Eviction)
		if sub != "eviction" || !is || eviction.Name != o.GetName() || eviction.DeleteOptions == nil || *eviction.DeleteOptions.Preconditions.UID != "source" {
			t.Errorf("the request is %s of %+v", sub, body)
		}
		if err := e.refused[o.GetName()]; err != nil {
			return err
		}
		e.evicted = append(e.evicted, o.GetName())
		return nil
	}})
	return e
}

// look reconciles VMIs, one after the other, and returns when the last one is looked at again.
func (e *evictor) look(vmis ...*v1.VirtualMachineInstance) (after time.Duration) {
	e.t.Helper()
	for _, vmi := range vmis {
		result, err := e.Mover.Reconcile(e.t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(vmi)})
		if err != nil {
			e.t.Fatal(err)
		}
		after = result.RequeueAfter
	}
	return after
}

func (e *evictor) expect(what string, vmis ...*v1.VirtualMachineInstance) {
	e.t.Helper()
	var want []string
	for _, vmi := range vmis {
		want = append(want, vmi.LauncherPod())
	}
	if !slices.Equal(e.evicted, want) {
		e.t.Errorf("%s: evicted are %v, want %v", what, e.evicted, want)
	}
}

func stays(vmi *v1.VirtualMachineInstance) {
	vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Bridge: &v1.InterfaceBridge{}}}
	vmi.Status.Conditions = append(vmi.Status.Conditions, v1.VirtualMachineInstanceCondition{Type: v1.ConditionLiveMigratable, Status: metav1.ConditionFalse})
}

// TestOutdatedGuestThatStaysIsEvicted: with the method Evict, a guest of an older launcher that no migration brings to a new one is evicted, once.
func TestOutdatedGuestThatStaysIsEvicted(t *testing.T) {
	evict, both := []v1.WorkloadUpdateMethod{v1.WorkloadUpdateEvict}, []v1.WorkloadUpdateMethod{v1.WorkloadUpdateLiveMigrate, v1.WorkloadUpdateEvict}
	moves := func(*v1.VirtualMachineInstance) {}
	for name, c := range map[string]struct {
		methods []v1.WorkloadUpdateMethod
		edit    func(*v1.VirtualMachineInstance)
		other   func(*evictor)
		refused error
		evicted bool
	}{
		"it cannot move": {methods: both, edit: stays, evicted: true},
		"it cannot move since a moment": {methods: both, edit: func(vmi *v1.VirtualMachineInstance) {
			stays(vmi)
			vmi.Status.Condition(v1.ConditionLiveMigratable).LastTransitionTime = metav1.NewTime(time.Now().AddDate(100, 0, 0))
		}},
		"two budgets select its pod":        {methods: both, edit: stays, refused: apierrors.NewInternalError(errors.New("more than one PodDisruptionBudget"))},
		"it can move":                       {methods: both, edit: moves},
		"it could move, and Evict is alone": {methods: evict, edit: moves, evicted: true},
		"LiveMigrate alone":                 {methods: both[:1], edit: stays},
		"no method":                         {edit: stays},
		"the present image":                 {methods: both, edit: func(vmi *v1.VirtualMachineInstance) { stays(vmi); vmi.Status.LauncherContainerImageVersion = newImage }},
		"its pod is being deleted already": {methods: both, edit: func(vmi *v1.VirtualMachineInstance) {
			stays(vmi)
			vmi.Status.SetCondition(v1.Terminating(nil), metav1.Unix(1000, 0))
		}},
		"it does not run yet":                {methods: both, edit: func(vmi *v1.VirtualMachineInstance) { stays(vmi); vmi.Status.Phase = v1.Scheduled }},
		"a user's migration of it waits":     {methods: evict, edit: moves, other: func(e *evictor) { e.migration("users", "a") }},
		"batches of none":                    {methods: both, edit: stays, other: func(e *evictor) { e.strategy().BatchEvictionSize = ptr.To(0) }},
		"virt-handlers are being rolled out": {methods: both, edit: stays, other: func(e *evictor) { e.RolledOut = func(context.Context) (bool, error) { return false, nil } }},
	} {
		e := newEvictor(t, v1.WorkloadUpdateStrategy{WorkloadUpdateMethods: c.methods})
		vmi := e.cluster.outdated("a", c.edit)
		if c.other != nil {
			c.other(e)
		}
		if c.refused != nil {
			e.refused[vmi.LauncherPod()] = c.refused
		}
		e.look(vmi, vmi)
		var want []*v1.VirtualMachineInstance
		if c.evicted {
			want = append(want, vmi)
		}
		e.expect(name, want...)
		if said := e.said(); strings.Contains(said, "SuccessfulEvict") != c.evicted {
			t.Errorf("%s: the events are %s", name, said)
		}
	}
}

func (e *evictor) strategy() *v1.WorkloadUpdateStrategy {
	spec, err := e.KubeVirt(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	return spec.WorkloadUpdateStrategy
}

// TestEvictionsComeInBatches: no more guests are evicted in an interval than the KubeVirt object says. A guest that does not end is not evicted
// again at once.
func TestEvictionsComeInBatches(t *testing.T) {
	e := newEvictor(t, v1.WorkloadUpdateStrategy{WorkloadUpdateMethods: []v1.WorkloadUpdateMethod{v1.WorkloadUpdateEvict}, BatchEvictionSize: ptr.To(2), BatchEvictionInterval: "90s"})
	var vmis []*v1.VirtualMachineInstance
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		vmis = append(vmis, e.cluster.outdated(name, stays))
	}
	if after := e.look(vmis...); after != turnDelay {
		t.Errorf("the last one is looked at again after %s", after)
	}
	e.expect("the first batch", vmis[:2]...)
	e.clock.SetTime(e.clock.Now().Add(89 * time.Second))
	e.look(vmis...)
	e.expect("within the interval", vmis[:2]...)
	e.clock.SetTime(e.clock.Now().Add(time.Second))
	e.look(vmis...)
	e.expect("the second batch", vmis[:4]...)
	e.clock.SetTime(e.clock.Now().Add(90 * time.Second))
	e.look(vmis...)
	e.expect("the third batch", vmis...)
	e.clock.SetTime(e.clock.Now().Add(againDelay))
	e.look(vmis[0])
	e.expect("one that is still there", append(vmis, vmis[0])...)
}

// TestRefusedEvictionTakesNobodysPlace: a guest whose eviction is refused takes no place of a batch, its VMI has an event, and it is asked again
// after a pause that grows.
func TestRefusedEvictionTakesNobodysPlace(t *testing.T) {
	e := newEvictor(t, v1.WorkloadUpdateStrategy{WorkloadUpdateMethods: []v1.WorkloadUpdateMethod{v1.WorkloadUpdateEvict}, BatchEvictionSize: ptr.To(1)})
	refused, other := e.cluster.outdated("refused", stays), e.cluster.outdated("other", stays)
	e.refused[refused.LauncherPod()] = apierrors.NewTooManyRequests("a PodDisruptionBudget forbids it", 0)
	for _, pause := range []time.Duration{1, 2, 4} {
		if after := e.look(refused); after != pause*againDelay {
			t.Errorf("it is asked again after %s, want %s", after, pause*againDelay)
		}
		if said := e.said(); said != v1.ReasonFailedEvict {
			t.Errorf("the events are %q", said)
		}
		e.clock.SetTime(e.clock.Now().Add(pause * againDelay))
	}
	e.look(refused, other)
	e.expect("beside a refused one", other)
	e.refused[other.LauncherPod()] = apierrors.NewNotFound(corev1.Resource("pods"), other.LauncherPod())
	e.clock.SetTime(e.clock.Now().Add(againDelay))
	e.said()
	if e.look(other); e.said() != "" {
		t.Error("a pod that has just gone makes an event")
	}
}

// TestNamespacesTakeTurnsInEvictions: of a batch, a namespace with many guests leaves places to one with few.
func TestNamespacesTakeTurnsInEvictions(t *testing.T) {
	vmi := func(namespace, name string) *v1.VirtualMachineInstance {
		return &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	batches, now := &evictions{}, time.Unix(1000, 0)
	strategy := &v1.WorkloadUpdateStrategy{BatchEvictionSize: ptr.To(2)}
	turn := func(namespace, name string) bool {
		has := batches.hasTurn(vmi(namespace, name), strategy, now)
		if has {
			batches.note(vmi(namespace, name), now)
		}
		return has
	}
	if !turn("many", "a") || !turn("many", "b") || turn("many", "c") || turn("few", "a") {
		t.Error("the first batch is not of the two who came first")
	}
	now = now.Add(time.Minute)
	if !turn("many", "c") || turn("many", "d") || !turn("few", "a") || turn("many", "d") {
		t.Error("the second batch is not of both namespaces")
	}
	batches.forget(client.ObjectKeyFromObject(vmi("many", "d")))
	if now = now.Add(time.Hour); len(batches.turns) != 0 || !turn("many", "e") {
		t.Errorf("guests that are gone wait: %v", batches.turns)
	}
}
