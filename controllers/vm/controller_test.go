package vm

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	sigsyaml "sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/test/apiserver"
)

// TestReconcilerOnAPIServer: on a real API server the controller has the properties that the functions of the
// tables state, first on a cluster without CDI, and then with a stand-in of CDI.
func TestReconcilerOnAPIServer(t *testing.T) {
	s := startServer(t)
	early := s.subject(t)
	early.withDisks("runStrategy: Always", "source: {blank: {}}")
	s.run(t, "without CDI", map[string]func(subject){
		"life": life, "restart": restart, "manual": manual, "rerun on failure": rerunOnFailure, "once": once,
		"halted": halted, "back-off": backsOff, "taken": taken, "orphan": orphan, "applied twice": appliedTwice,
		"refused": refused, "accepted": accepted, "restart required": restartRequired, "placement": placed,
		"placement stays": unplaced, "links": linked, "invalid": invalid, "no memory": memoryless,
		"machine type": machineType, "idle": idle, "deleted at once": deletedAtOnce, "instancetype": sized,
		"ControllerRevision of somebody": foreignRevision, "instancetype of a stopped VM": keptWhileStopped,
		"conflict": conflicting, "inferred": inferred, "inferred without CDI": inferredWithoutCDI,
		"template's metadata": followed, "preset": preset, "many presets": manyPresets, "large presets": largePresets,
		"preset's schema": presetSchema,
	})
	if c := early.awaitCondition(v1.ConditionFailure, v1.ReasonFailedDataVolumeCreate); !strings.Contains(c.Message, "CDI is not installed") {
		t.Errorf("condition %+v", c)
	}
	early.is(v1.VirtualMachineStatusDataVolumeError)
	early.none()
	cdi, err := apiserver.Parse(apiserver.CDI)
	if err == nil {
		err = s.plane.Apply(t.Context(), cdi...)
	}
	if err != nil {
		t.Fatal(err)
	}
	early.look()
	early.is(v1.VirtualMachineStatusProvisioning)
	s.run(t, "with CDI", map[string]func(subject){
		"filled": filled, "halted": filledHalted, "put off": putOff, "taken": takenDisk,
		"clone": cloned, "DataSource": fromDataSource,
	})
	if _, err := s.plane.Try(apiserver.CDI, "delete", "-f", "-"); err != nil { // for -count
		t.Error(err)
	}
}

// run runs tests beside each other, and returns when all have ended.
func (s *shared) run(t *testing.T, name string, tests map[string]func(subject)) {
	t.Run(name, func(t *testing.T) {
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(s.subject(t))
			})
		}
	})
}

func life(s subject) {
	s.create(v1.RunStrategyAlways)
	vmi := s.vmi("")
	vm := s.is(v1.VirtualMachineStatusStarting)
	owner := metav1.GetControllerOf(vmi)
	if owner == nil || owner.UID != vm.UID || owner.Kind != "VirtualMachine" ||
		!ptr.Deref(owner.BlockOwnerDeletion, false) {
		s.t.Errorf("owner %+v", owner)
	}
	if want := map[string]string{"kubevirt.io/vm": "vm"}; !maps.Equal(vmi.Labels, want) {
		s.t.Errorf("labels %v, want %v", vmi.Labels, want)
	}
	if a := vmi.Annotations; a["note"] != "this" || a[v1.VMGenerationAnnotation] != "1" ||
		a[v1.TemplatePartsAnnotation] != vm.Parts().String() || len(a) != 3 {
		s.t.Errorf("annotations %v", a)
	}
	if !vm.Status.Created || vm.Status.Ready || vm.Status.RunStrategy != v1.RunStrategyAlways ||
		vm.Status.ObservedGeneration != 1 || vm.Status.DesiredGeneration != 1 {
		s.t.Errorf("status %+v", vm.Status)
	}
	s.goes(vmi, v1.Scheduled, v1.Running)
	if vm := s.is(v1.VirtualMachineStatusRunning); !vm.Status.Ready ||
		vm.Status.Condition(v1.ConditionReady).Reason != "Test" {
		s.t.Errorf("status %+v", vm.Status)
	}
	s.awaitEvents("SuccessfulCreate")

	if err := s.client.Delete(ctx, vm); err != nil {
		s.t.Fatal(err)
	}
	s.is(v1.VirtualMachineStatusTerminating)
	s.stopped(vmi)
	until(s.t, func() error { return gone(s) })
	s.awaitEvents("SuccessfulDelete")
}

func gone(s subject) error {
	if err := s.client.Get(ctx, s.key(), &v1.VirtualMachine{}); !apierrors.IsNotFound(err) {
		return fmt.Errorf("the VM is there (%v)", err)
	}
	return nil
}

// restart: a VM that always runs gets another VMI, and is the same machine.
func restart(s subject) {
	s.create(v1.RunStrategyAlways)
	vmi := s.vmi("")
	s.goes(vmi, v1.Running)
	s.is(v1.VirtualMachineStatusRunning)
	s.asks(toStop(vmi.UID))
	s.is(v1.VirtualMachineStatusStopping)
	s.stopped(vmi)
	second := s.vmi(vmi.UID)
	if diff := cmp.Diff(vmi.Spec, second.Spec); diff != "" || second.Spec.Domain.Firmware.UUID == "" ||
		second.Spec.Domain.Devices.Interfaces[0].MacAddress == "" {
		s.t.Errorf("it is another machine: %s", diff)
	}
	for _, end := range []v1.VirtualMachineInstancePhase{v1.Succeeded, v1.Failed} {
		s.goes(second, v1.Running, end)
		s.stopped(second)
		second = s.vmi(second.UID)
	}
	if vm := s.is(v1.VirtualMachineStatusStarting); len(vm.Status.StateChangeRequests) != 0 ||
		vm.Status.StartFailure != nil {
		s.t.Errorf("status %+v", vm.Status)
	}
}

func manual(s subject) {
	s.create(v1.RunStrategyManual)
	s.is(v1.VirtualMachineStatusStopped)
	s.none()
	s.asks(toStart())
	vmi := s.vmi("")
	s.goes(vmi, v1.Running)
	if vm := s.is(v1.VirtualMachineStatusRunning); len(vm.Status.StateChangeRequests) != 0 {
		s.t.Errorf("requests %v", vm.Status.StateChangeRequests)
	}
	s.asks(toStop(otherUID))
	until(s.t, func() error {
		if len(s.vm().Status.StateChangeRequests) != 0 {
			return errors.New("a request for another VMI is kept")
		}
		return nil
	})
	s.asks(toStop(vmi.UID), toStart())
	s.stopped(vmi)
	second := s.vmi(vmi.UID)
	s.goes(second, v1.Running, v1.Succeeded)
	s.is(v1.VirtualMachineStatusStopped)
	s.asks(toStop(second.UID))
	s.stopped(second)
	s.none()
}

func rerunOnFailure(s subject) {
	s.create(v1.RunStrategyRerunOnFailure)
	vmi := s.vmi("")
	s.goes(vmi, v1.Running, v1.Failed)
	s.stopped(vmi)
	second := s.vmi(vmi.UID)
	s.goes(second, v1.Running, v1.Succeeded)
	s.stopped(second)
	s.is(v1.VirtualMachineStatusStopped)
	s.none()
	s.asks(toStart())
	third := s.vmi(second.UID)
	s.goes(third, v1.Running)
	s.is(v1.VirtualMachineStatusRunning)
	s.asks(toStop(third.UID))
	s.stopped(third)
	s.is(v1.VirtualMachineStatusStopped)
	s.none()
}

func once(s subject) {
	s.create(v1.RunStrategyOnce)
	vmi := s.vmi("")
	s.goes(vmi, v1.Running, v1.Failed)
	s.is(v1.VirtualMachineStatusStopped)
	s.poke()
	if s.vmi("").DeletionTimestamp != nil {
		s.t.Error("the VMI is being deleted")
	}
}

func halted(s subject) {
	if err := s.client.Create(ctx, s.object("running: false"+template)); err != nil {
		s.t.Fatal(err)
	}
	s.is(v1.VirtualMachineStatusStopped)
	s.asks(toStartPaused())
	vmi := s.vmi("")
	vm := s.vm()
	if !ptr.Deref(vm.Spec.Running, false) || vm.Spec.RunStrategy != nil {
		s.t.Errorf("running %v, runStrategy %v", vm.Spec.Running, vm.Spec.RunStrategy)
	}
	if vmi.Spec.StartStrategy != v1.StartStrategyPaused {
		s.t.Error("it is not started paused")
	}
	s.goes(vmi, v1.Running)
	until(s.t, func() error {
		vmi.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionPaused, Status: metav1.ConditionTrue,
			Reason: "PausedByUser"}, metav1.Now())
		return s.client.Status().Update(ctx, vmi)
	})
	s.is(v1.VirtualMachineStatusPaused)
	vm = s.vm()
	s.change(vm, func() { vm.Spec.Running = ptr.To(false) })
	s.is(v1.VirtualMachineStatusStopping)
	s.stopped(vmi)
	s.is(v1.VirtualMachineStatusStopped)
	s.none()
}

func backsOff(s subject) {
	s.create(v1.RunStrategyAlways)
	vmi := s.vmi("")
	for i := 1; i <= 2; i++ {
		s.goes(vmi, v1.Scheduling, v1.Failed)
		s.stopped(vmi)
		vm := s.is(v1.VirtualMachineStatusCrashLoopBackOff)
		f := vm.Status.StartFailure
		if f == nil || f.ConsecutiveFailCount != i || f.LastFailedVMIUID != vmi.UID {
			s.t.Fatalf("after %d failures: %+v", i, f)
		}
		s.awaitCondition(v1.ConditionFailure, v1.ReasonGuestNotStarted)
		s.none()
		s.clock.SetTime(s.clock.Now().Add(delay(i, 0) + time.Second))
		s.poke()
		vmi = s.vmi(vmi.UID)
		s.is(v1.VirtualMachineStatusStarting)
	}
	s.goes(vmi, v1.Running)
	if f := s.is(v1.VirtualMachineStatusRunning).Status.StartFailure; f != nil {
		s.t.Errorf("it is remembered of a guest that runs: %+v", f)
	}
	s.awaitCondition(v1.ConditionFailure, "")
}

// taken: a VMI that is not the VM's is let alone, and the VM's condition says that it is in the way.
func taken(s subject) {
	foreign := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: "vm", Namespace: s.namespace},
		Spec: v1.VirtualMachineInstanceSpec{}}
	foreign.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Name: "vm", UID: "another", Controller: ptr.To(true)}}
	object := s.object("runStrategy: Always" + template)
	spec, _, _ := unstructuredSpec(object.Object)
	object.Object = map[string]any{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "spec": spec,
		"metadata": map[string]any{"name": "vm", "namespace": s.namespace}}
	object.SetOwnerReferences(foreign.OwnerReferences)
	if err := s.client.Create(ctx, object); err != nil {
		s.t.Fatal(err)
	}
	uid := object.GetUID()
	s.create(v1.RunStrategyAlways)
	c := s.awaitCondition(v1.ConditionFailure, "FailedCreate")
	if !strings.Contains(c.Message, "does not control") {
		s.t.Errorf("condition %+v", c)
	}
	s.awaitEvents("FailedCreate")
	if vm := s.is(v1.VirtualMachineStatusStopped); vm.Status.Created || vm.Status.Ready {
		s.t.Errorf("status %+v", vm.Status)
	}
	there := s.vmi("")
	if there.UID != uid || there.DeletionTimestamp != nil {
		s.t.Fatalf("the VMI %s is not let alone", there.UID)
	}
	s.change(there, func() { there.Finalizers = nil })
	if err := s.client.Delete(ctx, there); err != nil {
		s.t.Fatal(err)
	}
	s.vmi(uid)
	s.awaitCondition(v1.ConditionFailure, "")
}

func unstructuredSpec(vm map[string]any) (any, bool, error) {
	template := vm["spec"].(map[string]any)["template"].(map[string]any)
	return template["spec"], true, nil
}

func orphan(s subject) {
	s.create(v1.RunStrategyAlways)
	vmi := s.vmi("")
	s.goes(vmi, v1.Running)
	vm := s.is(v1.VirtualMachineStatusRunning)
	if err := s.client.Delete(ctx, vm, client.PropagationPolicy(metav1.DeletePropagationOrphan)); err != nil {
		s.t.Fatal(err)
	}
	until(s.t, func() error {
		if f := s.vm().Finalizers; len(f) != 1 || f[0] != metav1.FinalizerOrphanDependents {
			return fmt.Errorf("finalizers %v", f)
		}
		return nil
	})
	// What the garbage collector does.
	s.change(vmi, func() { vmi.OwnerReferences = nil })
	s.change(vm, func() { vm.Finalizers = nil })
	until(s.t, func() error { return gone(s) })
	if vmi := s.vmi(""); vmi.DeletionTimestamp != nil {
		s.t.Error("the VMI is being deleted")
	}
}

// appliedTwice: a server-side apply of the same object changes nothing, whatever was done with the VM since.
func appliedTwice(s subject) {
	apply := func() *v1.VirtualMachine {
		s.t.Helper()
		object := s.object("runStrategy: Always" + template)
		if err := s.client.Apply(ctx,
			client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("kubectl")); err != nil {
			s.t.Fatal(err)
		}
		return s.vm()
	}
	apply()
	vmi := s.vmi("")
	s.goes(vmi, v1.Running)
	before := s.is(v1.VirtualMachineStatusRunning)
	after := apply()
	if before.Generation != after.Generation || before.ResourceVersion != after.ResourceVersion {
		s.t.Errorf("it is changed: %s", cmp.Diff(before, after))
	}
}

// refused: the API server refuses a VM that is wrong, and says what is wrong, with its path.
func refused(s subject) {
	for spec, want := range map[string]string{
		"running: true\n  runStrategy: Always" + template:                                               "exclude each other",
		"updateVolumesStrategy: Replacement" + template:                                                 "one of running and runStrategy",
		"runStrategy: WaitAsReceiver" + template:                                                        "spec.runStrategy: Invalid value: \"WaitAsReceiver\": not supported yet",
		"runStrategy: Sometimes" + template:                                                             "spec.runStrategy",
		"runStrategy: Always":                                                                           "spec.template: Required",
		"runStrategy: Always\n  instancetype: {kind: VirtualMachineInstancetype}" + template:            "either name or inferFromVolume",
		"runStrategy: Always\n  instancetype: {name: small, kind: VirtualMachinePreference}" + template: "spec.instancetype.kind",
		"runStrategy: Always\n  preference: {name: small, inferFromVolume: root}" + template:            "either name or inferFromVolume",
		"runStrategy: Always\n  dataVolumeTemplates: [{metadata: {name: x}}]" + template:                "spec.dataVolumeTemplates",
		"runStrategy: Always\n  updateVolumesStrategy: Other" + template:                                "spec.updateVolumesStrategy",
		"runStrategy: Always\n  colour: red" + template:                                                 "spec.colour",
		"runStrategy: Always" + strings.Replace(template, "domain:", "colour: red\n      domain:", 1):   "spec.template.spec.colour",
		"runStrategy: Always" + strings.Replace(template, "resources: {}", "devices2: {}", 1):           "spec.template.spec.domain.devices2",
		"runStrategy: Always" + strings.Replace(template, "masquerade: {}", "", 1):                      "exactly one binding",
	} {
		err := s.client.Create(ctx, s.object(spec), client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), want) {
			s.t.Errorf("%s\n%v, want %q in it", spec, err, want)
		}
	}
}

// accepted: the API server accepts whatever else the metadata of a template may hold. Such metadata must not
// keep anybody from reading the VM either. The API server also accepts the sample, and VMs like KubeVirt's
// examples.
func accepted(s subject) {
	strange := strings.Replace(template, "creationTimestamp: null",
		"creationTimestamp: 5\n      ownerReferences: none\n      generateName: x", 1)
	if err := s.client.Create(ctx, s.object("runStrategy: Halted"+strange)); err != nil {
		s.t.Fatal(err)
	}
	s.is(v1.VirtualMachineStatusStopped)
	var list v1.VirtualMachineList
	if err := s.client.List(ctx, &list); err != nil {
		s.t.Error(err)
	}
	sample, err := os.ReadFile("../../config/samples/vm-tiny.yaml")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, example := range append(examples, string(sample)) {
		object := s.object("")
		if err := sigsyaml.Unmarshal([]byte(example), &object.Object); err != nil {
			s.t.Fatal(err)
		}
		object.SetNamespace(s.namespace)
		if err := s.client.Create(ctx, object, client.DryRunAll); err != nil {
			s.t.Errorf("%s\n%v", example, err)
		}
	}
	nothing := strings.Replace(template,
		"    metadata:\n      creationTimestamp: null\n      labels: {kubevirt.io/vm: vm}\n      annotations: {note: this}\n",
		"    metadata: null\n", 1)
	if err := s.client.Create(ctx, s.object("running: true"+nothing), client.DryRunAll); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		s.t.Error(err)
	}
}

// examples are of the shapes of KubeVirt's examples of VMs.
var examples = []string{`
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  labels: {kubevirt.io/vm: vm-cirros}
  name: vm-cirros
spec:
  runStrategy: Halted
  template:
    metadata:
      labels: {kubevirt.io/vm: vm-cirros}
    spec:
      domain:
        devices:
          disks:
          - {disk: {bus: virtio}, name: containerdisk}
          - {disk: {bus: virtio}, name: cloudinitdisk}
        memory: {guest: 128Mi}
        resources: {}
      terminationGracePeriodSeconds: 0
      volumes:
      - {containerDisk: {image: "registry:5000/kubevirt/cirros-container-disk-demo:devel"}, name: containerdisk}
      - {cloudInitNoCloud: {userData: "#!/bin/sh\n"}, name: cloudinitdisk}
`, `
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata:
  creationTimestamp: null
  labels: {kubevirt.io/vm: vm-priority}
  name: vm-priority
spec:
  running: false
  template:
    metadata:
      creationTimestamp: null
      labels: {kubevirt.io/vm: vm-priority}
    spec:
      domain:
        devices: {}
        machine: {type: ""}
        resources: {requests: {memory: 128Mi}}
      priorityClassName: preemtible
      terminationGracePeriodSeconds: 0
      volumes:
      - {containerDisk: {image: "registry:5000/kubevirt/cirros-container-disk-demo:devel"}, name: containerdisk}
status: {}
`}

func restartRequired(s subject) {
	s.create(v1.RunStrategyAlways)
	vmi := s.vmi("")
	s.goes(vmi, v1.Running)
	vm := s.is(v1.VirtualMachineStatusRunning)
	s.change(vm, func() { vm.Spec.RunStrategy = ptr.To(v1.RunStrategyManual) })
	until(s.t, func() error {
		if got := s.vm().Status; got.ObservedGeneration != vm.Generation ||
			got.Condition(v1.ConditionRestartRequired) != nil {
			return fmt.Errorf("a change of the strategy: status %+v", got)
		}
		return nil
	})
	s.poke()
	s.awaitCondition(v1.ConditionRestartRequired, "TemplateChanged")
	if got := s.vm().Status; strconv.FormatInt(got.ObservedGeneration, 10) != vmi.Annotations[v1.VMGenerationAnnotation] ||
		got.DesiredGeneration != vm.Generation+1 {
		s.t.Errorf("status %+v", got)
	}
	s.asks(toStop(vmi.UID), toStart())
	s.stopped(vmi)
	second := s.vmi(vmi.UID)
	s.awaitCondition(v1.ConditionRestartRequired, "")
	if ptr.Deref(second.Spec.TerminationGracePeriodSeconds, 0) != 1 {
		s.t.Error("the change does not hold")
	}
	until(s.t, func() error {
		if got := s.vm(); got.Status.ObservedGeneration != got.Generation {
			return fmt.Errorf("status %+v", got.Status)
		}
		return nil
	})
}

func invalid(s subject) {
	spec := "runStrategy: Always" + strings.Replace(template, "{name: root, disk: {bus: virtio}}",
		"{name: root, disk: {bus: virtio}}, {name: none, disk: {}}", 1)
	if err := s.client.Create(ctx, s.object(spec)); err != nil {
		s.t.Fatal(err)
	}
	c := s.awaitCondition(v1.ConditionFailure, "InvalidSpec")
	if !strings.Contains(c.Message, "spec.template.spec.domain.devices.disks[1].name") {
		s.t.Errorf("condition %+v", c)
	}
	if err := s.client.Get(ctx, s.key(), &v1.VirtualMachineInstance{}); !apierrors.IsNotFound(err) {
		s.t.Errorf("a VMI: %v", err)
	}
	vm := s.vm()
	s.change(vm, func() {
		disks := vm.Spec.Template.Spec.Domain.Devices.Disks
		vm.Spec.Template.Spec.Domain.Devices.Disks = disks[:1]
	})
	s.vmi("")
	s.awaitCondition(v1.ConditionFailure, "")
}

// memoryless: a VM may lack memory as long as it does not start. Then its condition says so.
func memoryless(s subject) {
	if err := s.client.Create(ctx, s.object("runStrategy: Halted"+unsized)); err != nil {
		s.t.Fatal(err)
	}
	s.is(v1.VirtualMachineStatusStopped)
	vm := s.vm()
	if c := vm.Status.Condition(v1.ConditionFailure); c != nil {
		s.t.Errorf("condition %+v of a VM that need not start", c)
	}
	s.change(vm, func() { vm.Spec.RunStrategy = ptr.To(v1.RunStrategyAlways) })
	if c := s.awaitCondition(v1.ConditionFailure, "InvalidSpec"); !strings.HasPrefix(c.Message, "spec.template.spec.domain.memory.guest: Required value: no memory requested") {
		s.t.Errorf("condition %+v", c)
	}
	s.none()
	vm = s.vm()
	s.change(vm, func() {
		vm.Spec.Template.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("128Mi"))}
	})
	s.vmi("")
	s.awaitCondition(v1.ConditionFailure, "")
}

// machineType: a VM that names no machine type keeps the one that it had first.
func machineType(s subject) {
	s.create(v1.RunStrategyAlways)
	vmi := s.vmi("")
	s.goes(vmi, v1.Running)
	until(s.t, func() error {
		vmi.Status.Machine = &v1.Machine{Type: "pc-q35-7.2"}
		return s.client.Status().Update(ctx, vmi)
	})
	until(s.t, func() error {
		if got := s.vm().Annotations[v1.MachineTypeAnnotation]; got != "pc-q35-7.2" {
			return fmt.Errorf("annotation %q", got)
		}
		return nil
	})
	s.asks(toStop(vmi.UID))
	s.stopped(vmi)
	if second := s.vmi(vmi.UID); second.Spec.Domain.Machine == nil || second.Spec.Domain.Machine.Type != "pc-q35-7.2" {
		s.t.Errorf("machine %+v", second.Spec.Domain.Machine)
	}
	if vm := s.vm(); vm.Spec.Template.Spec.Domain.Machine != nil ||
		vm.Status.Condition(v1.ConditionRestartRequired) != nil {
		s.t.Errorf("the template is changed: %+v", vm)
	}
}

// idle: nothing is written while nothing happens.
func idle(s subject) {
	s.create(v1.RunStrategyAlways)
	s.goes(s.vmi(""), v1.Running)
	before := s.is(v1.VirtualMachineStatusRunning)
	for range 3 {
		vmi := s.vmi("")
		s.change(vmi, func() { metav1.SetMetaDataAnnotation(&vmi.ObjectMeta, "poke", vmi.ResourceVersion) })
	}
	s.vm()
	time.Sleep(500 * time.Millisecond)
	if after := s.vm(); after.ResourceVersion != before.ResourceVersion {
		s.t.Errorf("it was written: %s", cmp.Diff(before, after))
	}
}

// deletedAtOnce: a VM that is deleted as it is made leaves nothing. Its VMI may be made a moment before. The
// VMI then has a finalizer, which no controller of this test removes.
func deletedAtOnce(s subject) {
	s.create(v1.RunStrategyAlways)
	if err := s.client.Delete(ctx, s.vm()); err != nil {
		s.t.Fatal(err)
	}
	until(s.t, func() error {
		if err := s.release(); err != nil {
			return err
		}
		return gone(s)
	})
	if err := s.client.Get(ctx, s.key(), &v1.VirtualMachineInstance{}); !apierrors.IsNotFound(err) {
		s.t.Errorf("the VMI is there (%v)", err)
	}
}

// release removes the finalizer of the VMI, if the VMI is there and is being deleted.
func (s subject) release() error {
	vmi := &v1.VirtualMachineInstance{}
	if err := s.client.Get(ctx, s.key(), vmi); err != nil || vmi.DeletionTimestamp == nil {
		return client.IgnoreNotFound(err)
	}
	controllerutil.RemoveFinalizer(vmi, v1.VMIFinalizer)
	return s.client.Update(ctx, vmi)
}
