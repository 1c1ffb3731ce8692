package instancetypes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	"github.com/kubeqemu/kubeqemu/api/instancetype/wellknown"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/test/apiserver"
)

var shared = apiserver.Shared{Install: apiserver.Installs("kubevirts",
	"virtualmachineinstancetypes", "virtualmachineclusterinstancetypes",
	"virtualmachinepreferences", "virtualmachineclusterpreferences")}

func TestMain(m *testing.M) { os.Exit(shared.Tests(m).Run()) }

// plane is an API server, with virt-controller's rights and policies.
type plane struct {
	*apiserver.Plane
	t *testing.T
}

// enable writes what the KubeVirt object says.
func (p *plane) enable(enabled string) {
	p.t.Helper()
	p.Patch(&v1.KubeVirt{}, "kubevirt", `{"spec":{"configuration":{"commonInstancetypesDeployment":{"enabled":`+enabled+`}}}}`)
}

// awaitCondition waits for the condition, as "status reason", and returns its message.
func (p *plane) awaitCondition(want string) (message string) {
	p.t.Helper()
	p.Until(func() string {
		kv := &v1.KubeVirt{}
		if err := p.Client.Get(context.Background(), client.ObjectKey{Namespace: "kubevirt", Name: "kubevirt"}, kv); err != nil {
			return err.Error()
		}
		i := slices.IndexFunc(kv.Status.Conditions, func(c v1.KubeVirtCondition) bool { return c.Type == v1.KubeVirtConditionCommonInstancetypesDeployed })
		if i < 0 {
			return ""
		}
		c := kv.Status.Conditions[i]
		message = c.Message
		return string(c.Status) + " " + c.Reason
	}, func(got string) bool { return got == want })
	return message
}

// ours are the names of the objects with virt-controller's label.
func (p *plane) ours() []string {
	p.t.Helper()
	var names []string
	sizes, preferences := &v1beta1.VirtualMachineClusterInstancetypeList{}, &v1beta1.VirtualMachineClusterPreferenceList{}
	for _, list := range []client.ObjectList{sizes, preferences} {
		if err := p.Client.List(context.Background(), list, client.MatchingLabels{managedBy: v1.VirtController}); err != nil {
			p.t.Fatal(err)
		}
	}
	for _, o := range sizes.Items {
		names = append(names, "instancetype "+o.Name)
	}
	for _, o := range preferences.Items {
		names = append(names, "preference "+o.Name)
	}
	return names
}

func (p *plane) size(name string) *v1beta1.VirtualMachineClusterInstancetype {
	p.t.Helper()
	size := &v1beta1.VirtualMachineClusterInstancetype{}
	if err := p.Client.Get(context.Background(), client.ObjectKey{Name: name}, size); err != nil {
		p.t.Fatal(err)
	}
	return size
}

// TestInstallAndRemove is one test: what it is about is in no namespace.
func TestInstallAndRemove(t *testing.T) {
	space := shared.Server(t).In(t, v1.KubeVirtNamespace)
	p := &plane{apiserver.NewPlane(space, []string{"kubevirts", "vmcf", "vmcp"}, v1.AddToScheme, v1beta1.AddToScheme), t}
	t.Run("schema", p.schema)
	wanted, _, err := installable()
	if err != nil {
		t.Fatal(err)
	}
	// A user's own, of the same name as one that is wanted.
	own := &v1beta1.VirtualMachineClusterInstancetype{ObjectMeta: metav1.ObjectMeta{Name: "u1.nano"},
		Spec: v1beta1.VirtualMachineInstancetypeSpec{CPU: v1beta1.CPUInstancetype{Guest: 3}, Memory: v1beta1.MemoryInstancetype{Guest: resource.MustParse("3Gi")}}}
	if err := p.Client.Create(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	t.Run("policy", p.policy)
	// By virt-controller's flag all are created, although there is no KubeVirt.
	p.Control(func(mgr ctrl.Manager) error {
		return (&Reconciler{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: clock.RealClock{}, ByDefault: true}).Setup(mgr)
	})
	p.Until(func() string { return fmt.Sprint(len(p.ours())) }, func(got string) bool { return got == fmt.Sprint(len(wanted)-1) })
	p.Kubectl("apply", "-f", "../../config/samples/kubevirt.yaml")
	message := p.awaitCondition("False " + v1.ReasonNamesTaken)
	if !strings.Contains(message, wellknown.Instancetype+" u1.nano") || !strings.Contains(message, fmt.Sprintf("%d instancetypes and preferences are there", len(wanted)-1)) {
		t.Errorf("the condition says %q", message)
	}
	// A changed field is written back when the KubeVirt changes. An added label stays.
	p.Patch(&v1beta1.VirtualMachineClusterInstancetype{}, "u1.micro", `{"metadata":{"labels":{"mine":"yes"}},"spec":{"cpu":{"guest":7}}}`)
	p.Delete(&v1beta1.VirtualMachineClusterPreference{}, "alpine")
	p.Delete(&v1beta1.VirtualMachineClusterInstancetype{}, "u1.nano")
	p.enable("true")
	p.awaitCondition("True " + v1.ReasonInstancetypesDeployed)
	if micro := p.size("u1.micro"); micro.Spec.CPU.Guest != 1 || micro.Labels["mine"] != "yes" || micro.Labels["instancetype.kubevirt.io/vendor"] != "kubevirt.io" {
		t.Errorf("u1.micro is %+v with the labels %v", micro.Spec, micro.Labels)
	}
	if got := p.ours(); len(got) != len(wanted) {
		t.Errorf("%d objects are there, want %d: %v", len(got), len(wanted), got)
	}
	// Without virt-controller's label an object is somebody's own, and so is a copy under another name.
	copied := p.size("u1.small").DeepCopy()
	copied.ObjectMeta = metav1.ObjectMeta{Name: "my.small", Labels: copied.Labels}
	if err := p.Client.Create(t.Context(), copied); err != nil {
		t.Fatal(err)
	}
	p.Patch(&v1beta1.VirtualMachineClusterInstancetype{}, "u1.micro", `{"metadata":{"labels":{"`+managedBy+`":null}}}`)
	p.enable("false")
	p.awaitCondition("False " + v1.ReasonInstancetypesRemoved)
	if got := p.ours(); len(got) != 1 {
		t.Errorf("%v are still there, want the copy", got)
	}
	p.size("u1.micro")
	p.size("my.small")
}

// TestUnset: without the flag, a KubeVirt that says nothing has nothing created and nothing deleted.
func TestUnset(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(v1.AddToScheme(scheme), v1beta1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: v1.KubeVirtNamespace, Name: "kubevirt"}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(kv).WithStatusSubresource(kv).Build()
	r := &Reconciler{Client: c, Live: c, Clock: clocktesting.NewFakePassiveClock(time.Unix(1000, 0))}
	reconcile := func(deployment *v1.CommonInstancetypesDeployment) (objects, conditions int) {
		t.Helper()
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(kv), kv); err != nil {
			t.Fatal(err)
		}
		kv.Spec.Configuration.CommonInstancetypesDeployment = deployment
		if err := c.Update(t.Context(), kv); err != nil {
			t.Fatal(err)
		}
		result, err := r.Reconcile(t.Context(), ctrl.Request{})
		if wanted := deployment != nil && ptr.Deref(deployment.Enabled, false); err != nil || (result.RequeueAfter > 0) != wanted {
			t.Fatalf("%+v: %+v, %v", deployment, result, err)
		}
		ours, err := r.ours(t.Context())
		if err := errors.Join(err, c.Get(t.Context(), client.ObjectKeyFromObject(kv), kv)); err != nil {
			t.Fatal(err)
		}
		return len(ours), len(kv.Status.Conditions)
	}
	wanted, _, err := installable()
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		deployment          *v1.CommonInstancetypesDeployment
		objects, conditions int
	}{
		{nil, 0, 0}, {&v1.CommonInstancetypesDeployment{}, 0, 0},
		{&v1.CommonInstancetypesDeployment{Enabled: ptr.To(true)}, len(wanted), 1},
		{&v1.CommonInstancetypesDeployment{}, len(wanted), 0}, {nil, len(wanted), 0},
		{&v1.CommonInstancetypesDeployment{Enabled: ptr.To(false)}, 0, 1},
	} {
		if objects, conditions := reconcile(step.deployment); objects != step.objects || conditions != step.conditions {
			t.Errorf("step %d: %d objects and %d conditions, want %d and %d", i, objects, conditions, step.objects, step.conditions)
		}
	}
}

// policy: virt-controller can neither change nor delete what somebody else created, nor create
// anything without its label.
func (p *plane) policy(t *testing.T) {
	controller, err := client.New(p.As("system:serviceaccount:kubevirt:virt-controller", "system:serviceaccounts"), client.Options{Scheme: p.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	own := p.size("u1.nano")
	labelled := own.DeepCopy()
	labelled.Labels = map[string]string{managedBy: v1.VirtController}
	unlabelled := &v1beta1.VirtualMachineClusterInstancetype{ObjectMeta: metav1.ObjectMeta{Name: "unlabelled"}, Spec: own.Spec}
	// The API server hears of a policy by a watch.
	p.Until(func() string {
		return fmt.Sprint(controller.Create(t.Context(), unlabelled.DeepCopy(), client.DryRunAll))
	}, func(got string) bool { return strings.Contains(got, "kubevirt-controller-instancetypes") })
	for what, err := range map[string]error{
		"take over": controller.Patch(t.Context(), labelled, client.MergeFrom(own)),
		"delete":    controller.Delete(t.Context(), own),
		"create":    controller.Create(t.Context(), unlabelled),
	} {
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "kubevirt-controller-instancetypes") {
			t.Errorf("%s: %v, want to be refused by the policy", what, err)
		}
	}
}

// schema: the API server takes every object that is created, and refuses each other object for
// the fields that it waits for.
func (p *plane) schema(t *testing.T) {
	all, err := wellknown.Objects()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(o.Manifest); err != nil {
			t.Fatal(err)
		}
		if o.Name == "u1.nano" { // else an API server that refuses nothing would pass
			devices := object.DeepCopy()
			devices.Object["spec"].(map[string]any)["gpus"] = []any{map[string]any{"name": "gpu", "deviceName": "example.com/gpu"}}
			if got := causes(p.Client.Create(t.Context(), devices, client.DryRunAll)); !slices.Equal(got, []string{"spec.gpus"}) {
				t.Errorf("of an object with a GPU the API server refuses %v", got)
			}
		}
		err := p.Client.Create(t.Context(), object, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict))
		var own []string
		for _, path := range o.WaitsFor {
			if !strings.HasPrefix(path, "spec.") && !strings.HasPrefix(path, "metadata.") { // those are the VMI's
				own = append(own, "spec."+path)
			}
		}
		if got := causes(err); !slices.Equal(got, slices.Sorted(slices.Values(own))) || len(own) == 0 && err != nil {
			t.Errorf("%s: the API server refuses %v (%v), want %v", o.Name, got, err, own)
		}
	}
}

// causes are the paths that an answer names, each once.
func causes(err error) []string {
	var status *apierrors.StatusError
	if !errors.As(err, &status) || status.ErrStatus.Details == nil {
		return nil
	}
	var paths []string
	for _, c := range status.ErrStatus.Details.Causes {
		paths = append(paths, c.Field)
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// TestCondition: a long list and a long error are cut.
func TestCondition(t *testing.T) {
	var many []string
	for i := range 12 {
		many = append(many, fmt.Sprintf("VirtualMachineClusterPreference p%d", i))
	}
	c := outcome{deployed: 3, taken: many, waiting: 80}.condition(true, nil)
	if c.Status != corev1.ConditionFalse || !strings.Contains(c.Message, "p9 and 2 more") || strings.Contains(c.Message, "p10") || !strings.Contains(c.Message, "80 more set fields") {
		t.Errorf("%+v", c)
	}
	c = outcome{}.condition(true, errors.New(strings.Repeat("ä", 1000)))
	if c.Reason != v1.ReasonFailedUpdate || len(c.Message) > 1100 || !strings.HasSuffix(c.Message, "ä…") {
		t.Errorf("%+v", c)
	}
}
