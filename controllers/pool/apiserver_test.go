package pool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kubeqemu/kubeqemu/api/pool/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	vmcontroller "github.com/kubeqemu/kubeqemu/controllers/vm"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/test/apiserver"
)

var shared = apiserver.Shared{
	Install: apiserver.Installs("virtualmachinepools", "virtualmachines", "virtualmachineinstances", "kubevirts")}

func TestMain(m *testing.M) { os.Exit(shared.Tests(m).Run()) }

// plane is a namespace of an API server, and virt-controllers that follow its pools and VirtualMachines.
type plane struct {
	*apiserver.Plane
	t *testing.T
}

func newPlane(t *testing.T) *plane {
	t.Helper()
	t.Parallel() // they wait for the same API server, and have a namespace each
	kinds := []string{"vmpool", "vm", "vmi"}
	return &plane{apiserver.NewPlane(shared.Server(t).Space(t), kinds, v1.AddToScheme, v1beta1.AddToScheme), t}
}

// control starts a virt-controller, and ends it with the test.
func (p *plane) control() {
	p.t.Helper()
	p.Control(func(mgr ctrl.Manager) error {
		events := mgr.GetEventRecorder("virt-controller")
		return errors.Join(letGo(mgr), (&Reconciler{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: clock.RealClock{}, Events: events}).Setup(mgr),
			(&vmcontroller.Reconciler{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: clock.RealClock{}, Events: events, Jitter: func() float64 { return 0 },
				Cluster: func(context.Context) (*v1.KubeVirtConfiguration, error) { return &v1.KubeVirtConfiguration{}, nil }}).Setup(mgr))
	}, p.Namespace)
}

// letGo plays the part of the VMI controller that a VMI's deletion waits for: it lets go of a
// VMI that has no pod any more.
func letGo(mgr ctrl.Manager) error {
	c := mgr.GetClient()
	return ctrl.NewControllerManagedBy(mgr).Named("let-go").For(&v1.VirtualMachineInstance{}).Complete(
		reconcile.Func(func(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
			vmi := &v1.VirtualMachineInstance{}
			err := c.Get(ctx, request.NamespacedName, vmi)
			if err == nil && vmi.DeletionTimestamp != nil && controllerutil.RemoveFinalizer(vmi, v1.VMIFinalizer) {
				err = c.Update(ctx, vmi)
			}
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}))
}

func (p *plane) vms() []v1.VirtualMachine {
	p.t.Helper()
	var list v1.VirtualMachineList
	if err := p.Client.List(context.Background(), &list, client.InNamespace(p.Namespace)); err != nil {
		p.t.Fatal(err)
	}
	return list.Items
}

func (p *plane) names() string {
	var all []string
	for _, vm := range p.vms() {
		all = append(all, vm.Name)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// run has a guest run, as virt-handler would say. It returns the guest's UID.
func (p *plane) run(name string) string {
	p.t.Helper()
	vmi := &v1.VirtualMachineInstance{}
	p.Until(func() string {
		if err := p.Client.Get(context.Background(), client.ObjectKey{Namespace: p.Namespace, Name: name}, vmi); err != nil {
			return err.Error()
		}
		if vmi.DeletionTimestamp != nil {
			return "it is being deleted"
		}
		return ""
	}, func(s string) bool { return s == "" })
	before := vmi.DeepCopy()
	vmi.Status.SetPhase(v1.Running, metav1.Now())
	vmi.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: metav1.ConditionTrue}, metav1.Now())
	if err := p.Client.Status().Patch(context.Background(), vmi, client.MergeFrom(before)); err != nil {
		p.t.Fatal(err)
	}
	return string(vmi.UID)
}

func (p *plane) patch(patch string) {
	p.t.Helper()
	p.Patch(&v1beta1.VirtualMachinePool{}, "tiny", patch)
}

func (p *plane) scale(replicas int) {
	p.t.Helper()
	p.patch(fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
}

func (p *plane) shows(want string) {
	p.t.Helper()
	p.Shows(&v1beta1.VirtualMachinePool{}, "tiny", want)
}

// get reads an object of the namespace.
func get[T client.Object](p *plane, name string, into T) T {
	p.t.Helper()
	if err := p.Client.Get(context.Background(), client.ObjectKey{Namespace: p.Namespace, Name: name}, into); err != nil {
		p.t.Fatal(err)
	}
	return into
}

// awaitCondition waits until a condition of the pool is true, and returns its message.
func (p *plane) awaitCondition(kind v1.ReplicaConditionType) (message string) {
	p.t.Helper()
	testkit.Eventually(p.t, string(kind), func() error {
		status := get(p, "tiny", &v1beta1.VirtualMachinePool{}).Status
		c := status.Condition(kind)
		if c == nil || c.Status != metav1.ConditionTrue {
			return fmt.Errorf("it is %+v", c)
		}
		message = c.Message
		return nil
	})
	return message
}

const sample = "../../config/samples/vmpool-tiny.yaml"

// TestOnAPIServer follows the sample through kubectl, with virt-controller's rights.
func TestOnAPIServer(t *testing.T) {
	p := newPlane(t)
	// A name that is taken is nobody's to touch.
	vm, err := os.ReadFile("../../config/samples/vm-tiny.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p.MustApply(string(vm))
	p.MustApply(strings.Replace(string(vm), "  name: tiny\n", "  name: tiny-1\n", 1))
	p.control()
	p.Kubectl("apply", "--server-side", "-f", sample)
	p.shows("2 2 0")
	if out, err := p.Try("", "diff", "--server-side", "-f", sample); err != nil || out != "" {
		t.Errorf("kubectl diff of what was applied: %v\n%s", err, out)
	}
	if got := p.names(); got != "tiny tiny-0 tiny-1 tiny-2" {
		t.Errorf("VMs are %s", got)
	}
	if taken := get(p, "tiny-1", &v1.VirtualMachine{}); len(taken.OwnerReferences) > 0 || len(taken.Labels) > 0 {
		t.Errorf("the VM whose name was taken has %+v", taken.ObjectMeta)
	}
	p.run("tiny-0")
	p.run("tiny-2")
	p.shows("2 2 2")
	p.updates()

	// Holes are filled.
	p.DeleteLater(&v1.VirtualMachine{}, "tiny-1", "tiny-0")
	p.Until(p.names, func(s string) bool { return s == "tiny tiny-0 tiny-2" })
	p.Kubectl("scale", "vmpool", "tiny", "--replicas=3")
	p.Until(p.names, func(s string) bool { return s == "tiny tiny-0 tiny-1 tiny-2" })
	p.patch(`{"spec":{"scaleInStrategy":{"proactive":{"selectionPolicy":{"sortPolicy":"DescendingOrder"}}}}}`)
	p.scaleSubresource()
	p.Until(p.names, func(s string) bool { return s == "tiny tiny-0" })

	// A VM leaves the pool with its owner reference, and keeps its name.
	p.Patch(&v1.VirtualMachine{}, "tiny-0", `{"metadata":{"ownerReferences":null}}`)
	p.Until(p.names, func(s string) bool { return s == "tiny tiny-0 tiny-1" })
	p.shows("1 1 0")
	p.Delete(&v1.VirtualMachine{}, "tiny-0")

	// Paused, nothing happens, and it says so.
	p.patch(`{"spec":{"paused":true}}`)
	p.awaitCondition(v1.ReplicaPaused)
	p.scale(0)
	p.shows("0 1 0")
	p.patch(`{"spec":{"paused":false}}`)
	p.shows("0 0 0")
	p.Until(p.names, func(s string) bool { return s == "tiny" }) // a VM that is deleted counts no longer, and is there until its VMI is gone
	p.Said("SuccessfulCreate", "SuccessfulDelete", "SuccessfulUpdate", "SuccessfulRestart", "SuccessfulPaused", "SuccessfulResume")

	// A template that fits no VM makes none.
	p.patch(`{"spec":{"replicas":2,"virtualMachineTemplate":{"spec":{"template":{"spec":{"domain":{"memory":{"guest":"1k"}}}}}}}}`)
	message := p.awaitCondition(v1.ReplicaFailure)
	if !strings.Contains(message, "spec.virtualMachineTemplate.spec.template.spec.domain.memory.guest") || p.names() != "tiny" {
		t.Errorf("VMs are %s; the condition says %q", p.names(), message)
	}
}

// updates: one guest is restarted after the other, as maxUnavailable says, and
// none when the strategy is another.
func (p *plane) updates() {
	p.t.Helper()
	uid := func(name string) types.UID { return get(p, name, &v1.VirtualMachineInstance{}).UID }
	memory := func(name string) string {
		return get(p, name, &v1.VirtualMachine{}).Spec.Template.Spec.Domain.Memory.Guest.String()
	}
	guest := func(size string) string {
		return fmt.Sprintf(`{"spec":{"virtualMachineTemplate":{"spec":{"template":{"spec":{"domain":{"memory":{"guest":%q}}}}}}}}`, size)
	}
	uids := map[string]types.UID{"tiny-0": uid("tiny-0"), "tiny-2": uid("tiny-2")}
	p.patch(guest("256Mi"))
	var first, second string
	changed := func(name string) bool {
		vmi := &v1.VirtualMachineInstance{}
		err := p.Client.Get(context.Background(), client.ObjectKey{Namespace: p.Namespace, Name: name}, vmi)
		return err == nil && vmi.UID != uids[name]
	}
	p.Until(func() string {
		for name := range uids {
			if changed(name) {
				first = name
			}
		}
		return first
	}, func(s string) bool { return s != "" })
	second = map[string]string{"tiny-0": "tiny-2", "tiny-2": "tiny-0"}[first]
	p.shows("2 2 1")
	time.Sleep(time.Second)
	if changed(second) {
		p.t.Errorf("%s was restarted while %s did not run", second, first)
	}
	p.run(first)
	p.Until(func() string { return fmt.Sprint(changed(second)) }, func(s string) bool { return s == "true" })
	p.run(second)
	p.shows("2 2 2")

	// Opportunistic: the spec is there, the guest is not restarted.
	p.patch(`{"spec":{"updateStrategy":{"opportunistic":{}}}}`)
	before := uid(first)
	p.patch(guest("512Mi"))
	p.Until(func() string { return memory(first) + memory(second) }, func(s string) bool { return s == "512Mi512Mi" })
	p.Until(func() string {
		if c := get(p, first, &v1.VirtualMachine{}).Status.Condition(v1.ConditionRestartRequired); c != nil {
			return string(c.Status)
		}
		return ""
	}, func(s string) bool { return s == "True" })
	if uid(first) != before {
		p.t.Errorf("%s was restarted", first)
	}
	// Unmanaged: it is left as it is.
	p.patch(`{"spec":{"updateStrategy":{"opportunistic":null,"unmanaged":{}}}}`)
	p.patch(guest("128Mi"))
	p.patch(`{"spec":{"paused":true}}`)
	p.awaitCondition(v1.ReplicaPaused)
	p.patch(`{"spec":{"paused":false}}`)
	if got := memory(first); got != "512Mi" {
		p.t.Errorf("%s has %s", first, got)
	}
}

// scaleSubresource is what a HorizontalPodAutoscaler reads and writes.
func (p *plane) scaleSubresource() {
	p.t.Helper()
	pool, got := &v1beta1.VirtualMachinePool{}, &autoscalingv1.Scale{}
	pool.Namespace, pool.Name = p.Namespace, "tiny"
	if err := p.Client.SubResource("scale").Get(context.Background(), pool, got); err != nil {
		p.t.Fatal(err)
	}
	if got.Spec.Replicas != 3 || got.Status.Selector != "app=tiny" {
		p.t.Errorf("scale is %+v %+v", got.Spec, got.Status)
	}
	p.Scale(pool, 1)
}

// TestNeverTooMany: two virt-controllers at once, whose caches are behind as
// caches are, make each VM once.
func TestNeverTooMany(t *testing.T) {
	p := newPlane(t)
	made := p.Made(&v1.VirtualMachineList{})
	p.control()
	p.control()
	text, err := os.ReadFile(sample)
	if err != nil {
		t.Fatal(err)
	}
	p.MustApply(strings.Replace(string(text), "runStrategy: Always", "runStrategy: Halted", 1)) // of those that start, few are made at a time
	for _, n := range []int{20, 5, 15} {
		p.scale(n)
		p.Until(func() string { return fmt.Sprint(len(p.vms())) }, func(s string) bool { return s == fmt.Sprint(n) })
		p.shows(fmt.Sprintf("%d %d 0", n, n))
	}
	p.Until(func() string { return fmt.Sprint(made()) }, func(string) bool { return made() >= 30 })
	if made := made(); made != 30 {
		t.Errorf("%d VMs were made, want 30", made)
	}
}

// TestSchema: what is wrong at first sight is refused by the API server, by path.
func TestSchema(t *testing.T) {
	p := newPlane(t)
	text, err := os.ReadFile(sample)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ old, new, want string }{
		"replicas":    {"replicas: 2", "replicas: -1", "spec.replicas"},
		"selector":    {"  selector:\n    matchLabels:\n      app: tiny\n", "", "spec.selector"},
		"unavailable": {"maxUnavailable: 1", "maxUnavailable: 130%", "spec.maxUnavailable"},
		"healing":     {"maxUnavailable: 1", "autohealing: {startUpFailureThreshold: 2}", "spec.autohealing: Invalid value: not supported yet"},
		"memory kept": {"maxUnavailable: 1", "scaleInStrategy: {proactive: {statePreservation: Online}}", "spec.scaleInStrategy.proactive.statePreservation"},
		"selectors":   {"maxUnavailable: 1", "updateStrategy: {proactive: {selectionPolicy: {selectors: {labelSelector: {}}}}}", "spec.updateStrategy.proactive.selectionPolicy.selectors"},
		"two":         {"maxUnavailable: 1", "scaleInStrategy: {unmanaged: {}, opportunistic: {}}", "only one strategy may be set"},
		"name":        {"  name: tiny\n", "  name: " + strings.Repeat("x", 53) + "\n", "longer than 52"},
		"strategy":    {"runStrategy: Always", "runStrategy: WaitAsReceiver", "spec.virtualMachineTemplate.spec.runStrategy"},
		"sound":       {"autoattachGraphicsDevice: false", "sound: {}", "spec.virtualMachineTemplate.spec.template.spec.domain.devices.sound"},
		"unknown":     {"terminationGracePeriodSeconds: 20", "terminationGraceSeconds: 20", "terminationGraceSeconds"},
	} {
		changed := strings.Replace(string(text), c.old, c.new, 1)
		if changed == string(text) {
			t.Errorf("%s: the sample has no %q", name, c.old)
		}
		want, word, _ := strings.Cut(c.want, ": Invalid value: ")
		if err := p.Apply(changed, client.DryRunAll); err == nil ||
			!strings.Contains(err.Error(), strings.TrimPrefix(want, "spec")) || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v, want an error that names %s", name, err, c.want)
		}
	}
	for _, good := range []string{"maxUnavailable: 20%", "scaleInStrategy: {proactive: {statePreservation: Offline, selectionPolicy: {sortPolicy: Oldest}}}",
		"updateStrategy: {opportunistic: {}}", "nameGeneration: {appendIndexToSecretRefs: true, appendIndexToConfigMapRefs: true}"} {
		if err := p.Apply(strings.Replace(string(text), "maxUnavailable: 1", good, 1), client.DryRunAll); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	if err := p.Apply(strings.Replace(string(text), "            memory:\n              guest: 128Mi\n", "", 1), client.DryRunAll); err != nil {
		t.Errorf("a template without memory: %v", err)
	}
	// What Go clients write into templates is kept, even where it is nonsense.
	noise := strings.ReplaceAll(string(text), "          labels:\n", "          creationTimestamp: null\n          labels:\n")
	noise = strings.Replace(noise, "    metadata:\n      labels:\n", "    metadata:\n      creationTimestamp: never\n      labels:\n", 1)
	if err := p.Apply(noise); err != nil {
		t.Error(err)
	}
	if err := p.Client.List(context.Background(), &v1beta1.VirtualMachinePoolList{}); err != nil {
		t.Errorf("pools cannot be listed: %v", err)
	}
	// The API server publishes the schema a moment after the kind.
	p.Until(func() string {
		out, err := p.Try("", "explain", "vmpool.spec.replicas")
		return fmt.Sprintf("%s (%v)", out, err)
	}, func(said string) bool { return strings.Contains(said, "Default: 1") })
}
