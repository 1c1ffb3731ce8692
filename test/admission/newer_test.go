package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/vm"
	"github.com/kubeqemu/kubeqemu/controllers/vmi"
)

// newerSchema: the CRDs are newer than the controllers, as they are during an
// upgrade. Fields that the controllers do not know survive all that they write.
func (s *testServer) newerSchema(t *testing.T) {
	const vmiSpec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties"
	const disks = "/domain/properties/devices/properties/disks/items/properties/newer"
	s.extend(t, "virtualmachineinstances", vmiSpec+"/newer", vmiSpec+disks)
	s.extend(t, "virtualmachines", vmiSpec+"/newer", vmiSpec+"/template/properties/spec/properties"+disks)
	controller := s.as(controllerAccount)
	request := func(name string) ctrl.Request {
		return ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "default", Name: name}}
	}
	cluster := func(context.Context) (*v1.KubeVirtConfiguration, error) { return &v1.KubeVirtConfiguration{}, nil }
	clock := clocktesting.NewFakePassiveClock(time.Now())
	instances := &vmi.Reconciler{Client: controller, Live: controller, Events: events.NewFakeRecorder(100), Clock: clock, Cluster: cluster,
		Config: vmi.PodConfig{LauncherImage: "launcher:v1"}}
	machines := &vm.Reconciler{Client: controller, Live: controller, Events: events.NewFakeRecorder(100), Clock: clock, Cluster: cluster, Jitter: func() float64 { return 0 }}

	const template = `{"domain":{"memory":{"guest":"128Mi"},"devices":{"disks":[{"name":"root","newer":"disk"}]}},"volumes":[{"name":"root","containerDisk":{"image":"image:v1"}}]%s}`
	make := func(kind, spec string) *unstructured.Unstructured {
		object := &unstructured.Unstructured{}
		text := fmt.Sprintf(`{"apiVersion":"kubevirt.io/v1","kind":%q,"metadata":{"name":"newer","namespace":"default","finalizers":["test/keep"]},"spec":%s}`, kind, spec)
		if err := json.Unmarshal([]byte(text), object); err != nil {
			t.Fatal(err)
		}
		s.poll("the API server knows the new fields", func() error {
			return controller.Create(t.Context(), object.DeepCopy(), client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict))
		})
		// As virt-controller, whose objects no webhook fills in.
		if err := controller.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		return object
	}
	// survives reconciles, and looks whether that was written, and what is not known
	// is there.
	survives := func(what string, object *unstructured.Unstructured, reconcile func(context.Context, ctrl.Request) (ctrl.Result, error), written string) {
		t.Helper()
		for range 3 {
			if _, err := reconcile(t.Context(), request(object.GetName())); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := s.admin.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(object.Object)
		if err != nil {
			t.Fatal(err)
		}
		for _, wanted := range []string{`"newer":"spec"`, `"newer":"disk"`, written} {
			if !strings.Contains(strings.ReplaceAll(string(text), `"f:newer"`, ""), wanted) {
				t.Errorf("%s: %s is not in %s", what, wanted, text)
			}
		}
	}

	instance := make("VirtualMachineInstance", fmt.Sprintf(template, `,"newer":"spec"`))
	survives("defaults, finalizer and status", instance, instances.Reconcile, `"bus":"sata"`)
	// No scheduler looks at its pod here, so that its status says nothing for a second.
	clock.SetTime(time.Now().Add(time.Minute))
	survives("status", instance, instances.Reconcile, `"phase":"Scheduling"`)
	if err := s.admin.Delete(t.Context(), instance.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	survives("the pod's deletion", instance, instances.Reconcile, `"deletionTimestamp"`)
	if f := instance.GetFinalizers(); len(f) != 1 {
		t.Errorf("the VMI's finalizers are %q", f)
	}

	machine := make("VirtualMachine", `{"runStrategy":"Halted","newer":"spec","template":{"spec":`+fmt.Sprintf(template, "")+`}}`)
	survives("a VM's finalizer", machine, machines.Reconcile, v1.VMFinalizer)
	start := []byte(`{"status":{"stateChangeRequests":[{"action":"Start","data":{"paused":"true"}}]}}`)
	if err := s.admin.Status().Patch(t.Context(), machine.DeepCopy(), client.RawPatch(types.MergePatchType, start)); err != nil {
		t.Fatal(err)
	}
	survives("a VM's run strategy", machine, machines.Reconcile, `"runStrategy":"Always"`)
	for _, object := range []*unstructured.Unstructured{instance, machine} {
		forced := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
		if err := s.admin.Delete(t.Context(), object.DeepCopy()); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
		if err := s.admin.Patch(t.Context(), object.DeepCopy(), forced); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	}
}

// extend adds fields to a CRD of kubevirt.io.
func (s *testServer) extend(t *testing.T, resource string, paths ...string) {
	t.Helper()
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	crd.SetName(resource + "." + v1.GroupVersion.Group)
	var operations []string
	for _, path := range paths {
		operations = append(operations, fmt.Sprintf(`{"op":"add","path":%q,"value":{"type":"string","maxLength":16}}`, path))
	}
	err := s.admin.Patch(t.Context(), crd, client.RawPatch(types.JSONPatchType, []byte("["+strings.Join(operations, ",")+"]")))
	if err != nil {
		t.Fatal(err)
	}
}
