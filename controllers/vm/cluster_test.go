package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/follow"
	"github.com/kubeqemu/kubeqemu/internal/listing"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/test/apiserver"
)

var servers = apiserver.Shared{Install: apiserver.Installs(
	"kubevirts", "virtualmachines", "virtualmachineinstances", "virtualmachineinstancepresets",
	"virtualmachineinstancetypes", "virtualmachineclusterinstancetypes",
	"virtualmachinepreferences", "virtualmachineclusterpreferences")}

func TestMain(m *testing.M) { os.Exit(servers.Tests(m).Run()) }

// shared is a reconciler that runs against a real API server. There is no
// kubelet: the tests say what becomes of VMIs.
type shared struct {
	plane  *apiserver.Server
	client client.Client
	clock  *clocktesting.FakePassiveClock
}

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), authorizationv1.AddToScheme(scheme), rbacv1.AddToScheme(scheme),
		appsv1.AddToScheme(scheme), v1.AddToScheme(scheme), v1beta1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	return scheme
}

func startServer(t *testing.T) *shared {
	t.Helper()
	plane := servers.Server(t)
	s := &shared{plane: plane, clock: clocktesting.NewFakePassiveClock(time.Now())}
	mgr, err := ctrl.NewManager(plane.Config, ctrl.Options{Scheme: newScheme(t), Metrics: server.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)}, // -count=2 makes two
		Cache:      cache.Options{ByObject: map[client.Object]cache.ByObject{&v1.VirtualMachine{}: {Transform: Trim}}}})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := follow.Parse("", "example.com/*")
	if err != nil {
		t.Fatal(err)
	}
	r := &Reconciler{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Events: mgr.GetEventRecorder("test"),
		Clock: s.clock, Jitter: func() float64 { return 0 }, Follow: keys,
		Cluster: func(context.Context) (*v1.KubeVirtConfiguration, error) { return &v1.KubeVirtConfiguration{}, nil }}
	presets, err := listing.New[v1.VirtualMachineInstancePreset](plane.Config, v1.VirtualMachineInstancePresetResource,
		v1.MaxPresets, v1.MaxPresetBytes, clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	r.Presets = presets.In
	if err := r.Setup(mgr); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	go func() { ended <- mgr.Start(ctx) }()
	direct, err := client.New(plane.Config, client.Options{Scheme: newScheme(t)})
	if err != nil {
		t.Fatal(err)
	}
	s.client = client.WithFieldValidation(direct, metav1.FieldValidationStrict)
	return s
}

// subject is a VM in a namespace of its own.
type subject struct {
	*shared
	t         *testing.T
	namespace string
}

var ctx = context.Background()

func (s *shared) subject(t *testing.T) subject {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "vm-"}}
	if err := s.client.Create(ctx, ns); err != nil {
		t.Fatal(err)
	}
	return subject{shared: s, t: t, namespace: ns.Name}
}

const template = `
  template:
    metadata:
      creationTimestamp: null
      labels: {kubevirt.io/vm: vm}
      annotations: {note: this}
    spec:
      domain:
        devices:
          disks: [{name: root, disk: {bus: virtio}}]
          interfaces: [{name: default, masquerade: {}}]
        memory: {guest: 128Mi}
        resources: {}
      networks: [{name: default, pod: {}}]
      volumes: [{name: root, containerDisk: {image: "example.com/disk:1"}}]
`

func (s subject) object(spec string) *unstructured.Unstructured {
	s.t.Helper()
	object := &unstructured.Unstructured{}
	text := "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {name: vm, namespace: " + s.namespace +
		"}\nspec:\n  " + spec
	if err := sigsyaml.Unmarshal([]byte(text), &object.Object); err != nil {
		s.t.Fatalf("%v in %s", err, text)
	}
	return object
}

// create makes the VM of a run strategy.
func (s subject) create(strategy v1.VirtualMachineRunStrategy) {
	s.t.Helper()
	if err := s.client.Create(ctx, s.object("runStrategy: "+string(strategy)+template)); err != nil {
		s.t.Fatal(err)
	}
}

func (s subject) key() client.ObjectKey { return client.ObjectKey{Namespace: s.namespace, Name: "vm"} }

func (s subject) vm() *v1.VirtualMachine {
	s.t.Helper()
	vm := &v1.VirtualMachine{}
	if err := s.client.Get(ctx, s.key(), vm); err != nil {
		s.t.Fatal(err)
	}
	return vm
}

// until waits for something that comes by itself.
func until(t *testing.T, ask func() error) {
	t.Helper()
	testkit.Eventually(t, "the controller", ask)
}

// is waits until the VM's printable status is want, and returns the VM.
func (s subject) is(want v1.VirtualMachinePrintableStatus) *v1.VirtualMachine {
	s.t.Helper()
	var vm *v1.VirtualMachine
	until(s.t, func() error {
		if vm = s.vm(); vm.Status.PrintableStatus != want {
			return fmt.Errorf("the VM is %s, want %s: %+v", vm.Status.PrintableStatus, want, vm.Status)
		}
		return nil
	})
	return vm
}

// vmi waits for a VMI other than the one before, and returns it with the finalizer of the VMI controller.
func (s subject) vmi(before types.UID) *v1.VirtualMachineInstance {
	s.t.Helper()
	vmi := &v1.VirtualMachineInstance{}
	until(s.t, func() error {
		if err := s.client.Get(ctx, s.key(), vmi); err != nil {
			return err
		}
		if vmi.UID == before {
			return errors.New("it is the VMI that was there before")
		}
		return nil
	})
	// As the VMI controller does, before anything else.
	s.change(vmi, func() { controllerutil.AddFinalizer(vmi, v1.VMIFinalizer) })
	return vmi
}

func (s subject) change(object client.Object, edit func()) {
	s.t.Helper()
	until(s.t, func() error {
		if err := s.client.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		edit()
		return s.client.Update(ctx, object)
	})
}

// goes takes a VMI through phases.
func (s subject) goes(vmi *v1.VirtualMachineInstance, phases ...v1.VirtualMachineInstancePhase) {
	s.t.Helper()
	until(s.t, func() error {
		if err := s.client.Get(ctx, s.key(), vmi); err != nil {
			return err
		}
		for _, p := range phases {
			vmi.Status.SetPhase(p, metav1.NewTime(s.clock.Now()))
			ready := metav1.ConditionFalse
			if p == v1.Running {
				ready = metav1.ConditionTrue
			}
			vmi.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: ready, Reason: "Test",
				Message: "it is " + string(p)}, metav1.Now())
		}
		return s.client.Status().Update(ctx, vmi)
	})
}

// stopped waits until the VMI is being deleted, and lets it go.
func (s subject) stopped(vmi *v1.VirtualMachineInstance) {
	s.t.Helper()
	until(s.t, func() error {
		now := &v1.VirtualMachineInstance{}
		if err := s.client.Get(ctx, s.key(), now); err != nil {
			return err
		}
		if now.UID != vmi.UID {
			s.t.Fatal("there is another VMI before this one is gone")
		}
		if now.DeletionTimestamp == nil {
			return errors.New("the VMI is not being deleted")
		}
		controllerutil.RemoveFinalizer(now, v1.VMIFinalizer)
		return s.client.Update(ctx, now)
	})
}

// none fails the test if there is a VMI, or if one comes.
func (s subject) none() {
	s.t.Helper()
	for range 2 {
		s.poke()
		if err := s.client.Get(ctx, s.key(), &v1.VirtualMachineInstance{}); !apierrors.IsNotFound(err) {
			s.t.Fatalf("a VMI: %v", err)
		}
	}
}

// poke makes the controller look at the VM again, and waits until that is done. It changes the spec, which
// raises the generation. The status tells the generation that the controller has seen.
func (s subject) poke() {
	s.t.Helper()
	vm := s.vm()
	s.change(vm, func() {
		seconds := int64(1)
		if g := vm.Spec.Template.Spec.TerminationGracePeriodSeconds; g != nil {
			seconds = *g + 1
		}
		vm.Spec.Template.Spec.TerminationGracePeriodSeconds = &seconds
	})
	until(s.t, func() error {
		if now := s.vm(); now.Status.DesiredGeneration < vm.Generation {
			return errors.New("it was not looked at")
		}
		return nil
	})
}

// asks requests something of the VM, as virtctl does.
func (s subject) asks(requests ...v1.VirtualMachineStateChangeRequest) {
	s.t.Helper()
	until(s.t, func() error {
		vm := s.vm()
		vm.Status.StateChangeRequests = requests
		return s.client.Status().Update(ctx, vm)
	})
}

func (s subject) awaitEvents(reasons ...string) {
	s.t.Helper()
	until(s.t, func() error {
		var list corev1.EventList
		if err := s.client.List(ctx, &list, client.InNamespace(s.namespace)); err != nil {
			return err
		}
		var have []string
		for _, e := range list.Items {
			have = append(have, e.Reason)
		}
		for _, r := range reasons {
			if !strings.Contains(strings.Join(have, " "), r) {
				return fmt.Errorf("events %v, want %s", have, r)
			}
		}
		return nil
	})
}

func (s subject) awaitCondition(kind v1.ConditionType, reason string) *v1.VirtualMachineInstanceCondition {
	s.t.Helper()
	var c *v1.VirtualMachineInstanceCondition
	until(s.t, func() error {
		vm := s.vm()
		c = vm.Status.Condition(kind)
		if c == nil && reason != "" || c != nil && c.Reason != reason {
			return fmt.Errorf("condition %s is %+v, want %q", kind, c, reason)
		}
		return nil
	})
	return c
}
