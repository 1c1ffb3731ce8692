package vm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func (s subject) instancetype(name string, cpus uint32) *v1beta1.VirtualMachineInstancetype {
	s.t.Helper()
	it := &v1beta1.VirtualMachineInstancetype{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace},
		Spec: v1beta1.VirtualMachineInstancetypeSpec{
			CPU: v1beta1.CPUInstancetype{Guest: cpus}, Memory: v1beta1.MemoryInstancetype{Guest: resource.MustParse("64Mi")}}}
	if err := s.client.Create(ctx, it); err != nil {
		s.t.Fatal(err)
	}
	return it
}

// unsized is the template without what an instancetype sets.
var unsized = strings.Replace(template, "memory: {guest: 128Mi}", "", 1)

// sized: a VM has the size that its instancetype had when the VM was first started.
func sized(s subject) {
	const named = "runStrategy: Always\n  instancetype: {name: small, kind: virtualmachineinstancetype}\n  preference: {name: cores, kind: VirtualMachineClusterPreference}"
	if err := s.client.Create(ctx, s.object(named+unsized)); err != nil {
		s.t.Fatal(err)
	}
	if c := s.awaitCondition(v1.ConditionFailure, "FailedFindInstancetype"); c.Message != `virtualmachineinstancetypes.instancetype.kubevirt.io "small" not found` {
		s.t.Errorf("condition %+v", c)
	}
	s.none()
	it := s.instancetype("small", 2)
	s.poke()
	if c := s.awaitCondition(v1.ConditionFailure, "FailedFindPreference"); c.Message != `virtualmachineclusterpreferences.instancetype.kubevirt.io "cores" not found` {
		s.t.Errorf("condition %+v", c)
	}
	preference := &v1beta1.VirtualMachineClusterPreference{ObjectMeta: metav1.ObjectMeta{Name: "cores"},
		Spec: v1beta1.VirtualMachinePreferenceSpec{CPU: &v1beta1.CPUPreferences{PreferredCPUTopology: "preferCores"}}}
	if err := s.client.Create(ctx, preference); err != nil {
		s.t.Fatal(err)
	}
	s.poke()
	cores := func(vmi *v1.VirtualMachineInstance, want uint32) {
		s.t.Helper()
		if d := vmi.Spec.Domain; d.CPU.Cores != want || d.CPU.Sockets != 1 || d.Memory.Guest.String() != "64Mi" {
			s.t.Errorf("domain %+v %+v, want %d cores", d.CPU, d.Memory, want)
		}
	}
	vmi := s.vmi("")
	cores(vmi, 2)
	if a := vmi.Annotations; a["kubevirt.io/instancetype-name"] != "small" ||
		a["kubevirt.io/cluster-preference-name"] != "cores" {
		s.t.Errorf("annotations %v", a)
	}
	s.goes(vmi, v1.Running)
	vm := s.is(v1.VirtualMachineStatusRunning)
	ref := vm.Status.InstancetypeRef
	if ref == nil || ref.Name != "small" || ref.Kind != "VirtualMachineInstancetype" || ref.ControllerRevisionRef == nil ||
		vm.Status.PreferenceRef == nil {
		s.t.Fatalf("status %+v", vm.Status)
	}
	revision := &appsv1.ControllerRevision{}
	if err := s.client.Get(ctx,
		client.ObjectKey{Namespace: s.namespace, Name: ref.ControllerRevisionRef.Name}, revision); err != nil ||
		!metav1.IsControlledBy(revision, vm) {
		s.t.Errorf("revision: %v, %+v", err, revision.OwnerReferences)
	}

	// A change is not for a machine that has its size, not even a restarted one.
	s.change(it, func() { it.Spec.CPU.Guest = 4 })
	again := func() *v1.VirtualMachineInstance {
		s.t.Helper()
		before := vmi.UID
		s.goes(vmi, v1.Failed)
		s.stopped(vmi)
		return s.vmi(before)
	}
	vmi = again()
	cores(vmi, 2)
	if c := s.vm().Status.Condition(v1.ConditionRestartRequired); c != nil {
		s.t.Errorf("condition %+v", c)
	}

	// Another one is for the next start.
	s.instancetype("large", 8)
	s.goes(vmi, v1.Running)
	s.change(vm, func() { vm.Spec.Instancetype.Name = "large" })
	s.awaitCondition(v1.ConditionRestartRequired, "TemplateChanged")
	vmi = again()
	cores(vmi, 8)
	// And back: as it was kept.
	s.goes(vmi, v1.Running)
	s.change(vm, func() {
		vm.Spec.Instancetype.Name, vm.Spec.Instancetype.RevisionName = "small", ref.ControllerRevisionRef.Name
	})
	vmi = again()
	cores(vmi, 2)
	// Without one, the template stands for itself.
	s.goes(vmi, v1.Running)
	s.change(vm, func() {
		guest := resource.MustParse("32Mi")
		vm.Spec.Instancetype, vm.Spec.Template.Spec.Domain.Memory = nil, &v1.Memory{Guest: &guest}
	})
	vmi = again()
	if d := vmi.Spec.Domain; d.Memory.Guest.String() != "32Mi" || s.vm().Status.InstancetypeRef != nil {
		s.t.Errorf("domain %+v, status %+v", d.Memory, s.vm().Status)
	}
}

// foreignRevision: the VM does not take a ControllerRevision of its own that has the right name and another
// spec in it.
func foreignRevision(s subject) {
	// The VM names no instancetype before the other one's ControllerRevision is there.
	if err := s.client.Create(ctx, s.object("runStrategy: Halted"+unsized)); err != nil {
		s.t.Fatal(err)
	}
	it, vm := s.instancetype("small", 2), s.vm()
	revision := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: revisionName(vm, it),
		Namespace:       s.namespace,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)}}}
	revision.Data.Raw = []byte(`{"apiVersion":"instancetype.kubevirt.io/v1beta1","kind":"VirtualMachineInstancetype","spec":{"cpu":{"guest":64}}}`)
	if err := s.client.Create(ctx, revision); err != nil {
		s.t.Fatal(err)
	}
	s.change(vm, func() {
		vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "small", Kind: "virtualmachineinstancetype"}
		vm.Spec.RunStrategy = ptr.To(v1.RunStrategyAlways)
	})
	if c := s.awaitCondition(v1.ConditionFailure, v1.ReasonFailedCreate); !strings.Contains(c.Message, "found existing ControllerRevision with unexpected data") {
		s.t.Errorf("condition %+v", c)
	}
	s.none()
	if err := s.client.Delete(ctx, revision); err != nil {
		s.t.Fatal(err)
	}
	s.poke()
	if vmi := s.vmi(""); vmi.Spec.Domain.CPU.Sockets != 2 {
		s.t.Errorf("domain %+v", vmi.Spec.Domain.CPU)
	}
}

// TestRevisionWithTheSameSpecIsTaken: a ControllerRevision with the same spec is taken, whatever way the spec
// is written. One with another spec is not taken.
func TestRevisionWithTheSameSpecIsTaken(t *testing.T) {
	const (
		instancetype = `{"apiVersion":"instancetype.kubevirt.io/v1beta1","kind":"VirtualMachineInstancetype","spec":%s}`
		preference   = `{"apiVersion":"instancetype.kubevirt.io/v1beta1","kind":"VirtualMachinePreference","spec":%s}`
		wanted       = `{"cpu":{"guest":2,"model":"host-model"},"memory":{"guest":"1Gi"}}`
	)
	for name, c := range map[string]struct {
		kind, there, want string
		same              bool
	}{
		"the same": {instancetype, wanted, wanted, true},
		"another way of writing it": {instancetype, `{"memory":{"guest":"1024Mi"},"cpu":{"model":"host-model","guest":2}}`,
			wanted, true},
		"without a field": {instancetype, `{"cpu":{"guest":2},"memory":{"guest":"1Gi"}}`, wanted, false},
		"with an empty field": {instancetype,
			`{"cpu":{"guest":2,"model":"host-model","maxSockets":0},"memory":{"guest":"1Gi"},"gpus":[]}`, wanted, true},
		"with an unknown field": {instancetype,
			`{"cpu":{"guest":2,"model":"host-model","unknown":1},"memory":{"guest":"1Gi"}}`, wanted, true},
		"another size":      {instancetype, `{"cpu":{"guest":64},"memory":{"guest":"1Gi"}}`, wanted, false},
		"with a field more": {instancetype, wanted, `{"cpu":{"guest":2},"memory":{"guest":"1Gi"}}`, false},
		"nothing":           {instancetype, `{}`, wanted, false},
		"no object":         {instancetype, `7`, wanted, false},
		"null":              {instancetype, `null`, wanted, false},
		"a preference": {preference, `{"cpu":{"preferredCPUTopology":"cores"}}`,
			`{"cpu":{"preferredCPUTopology":"cores"}}`, true},
		"an empty preference": {preference, `{}`, `{}`, true},
		"another preference": {preference, `{"cpu":{"preferredCPUTopology":"cores"}}`,
			`{"cpu":{"preferredCPUTopology":"sockets"}}`, false},
		"a preference, of an earlier": {preference, `{}`, `{"cpu":{"preferredCPUTopology":"sockets"}}`, false},
	} {
		there, want := &appsv1.ControllerRevision{}, &appsv1.ControllerRevision{}
		there.Data.Raw, want.Data.Raw = []byte(fmt.Sprintf(c.kind, c.there)), []byte(fmt.Sprintf(c.kind, c.want))
		if got := sameSpec(there, want); got != c.same {
			t.Errorf("%s: the same is %v", name, got)
		}
	}
	there, want := &appsv1.ControllerRevision{}, &appsv1.ControllerRevision{}
	there.Data.Raw, want.Data.Raw = []byte(fmt.Sprintf(preference, `{}`)), []byte(fmt.Sprintf(instancetype, `{}`))
	if sameSpec(there, want) {
		t.Error("a preference is taken for an instancetype")
	}
}

// TestRevisionOfAnotherIsNotTaken: a ControllerRevision that the VM does not control is not taken, whatever is
// in it. It would go with its owner.
func TestRevisionOfAnotherIsNotTaken(t *testing.T) {
	owned := func(uids ...types.UID) *appsv1.ControllerRevision {
		revision := &appsv1.ControllerRevision{}
		for _, uid := range uids {
			vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm", UID: uid}}
			revision.OwnerReferences = append(revision.OwnerReferences,
				*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind))
		}
		return revision
	}
	partly := owned("mine")
	partly.OwnerReferences[0].Controller = nil
	for name, c := range map[string]struct {
		there *appsv1.ControllerRevision
		same  bool
	}{
		"the VM's":                            {owned("mine"), true},
		"nobody's":                            {owned(), false},
		"that of a VM of the same name":       {owned("other"), false},
		"the VM's, which does not control it": {partly, false},
	} {
		if got := sameOwner(c.there, owned("mine")); got != c.same {
			t.Errorf("%s: taken is %v", name, got)
		}
	}
}

// TestRevisionThatGoesMeanwhileIsMadeAnew: a ControllerRevision that goes meanwhile is made anew without a word
// about a failure, of a VM that starts and of one that does not.
func TestRevisionThatGoesMeanwhileIsMadeAnew(t *testing.T) {
	for _, strategy := range []v1.VirtualMachineRunStrategy{v1.RunStrategyAlways, v1.RunStrategyHalted} {
		vm := valid(strategy)
		vm.Spec.Template.Spec.Domain.Memory = nil
		vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "small", Kind: "VirtualMachineInstancetype"}
		it := &v1beta1.VirtualMachineInstancetype{ObjectMeta: metav1.ObjectMeta{Name: "small", Namespace: "ns",
			UID: "uid-of-small"},
			Spec: v1beta1.VirtualMachineInstancetypeSpec{CPU: v1beta1.CPUInstancetype{Guest: 2},
				Memory: v1beta1.MemoryInstancetype{Guest: resource.MustParse("64Mi")}}}
		there := true
		f := newFaulty(t, interceptor.Funcs{Create: func(ctx context.Context, w client.WithWatch, o client.Object,
			opts ...client.CreateOption) error {
			if _, ok := o.(*appsv1.ControllerRevision); ok && there {
				there = false
				return apierrors.NewAlreadyExists(schema.GroupResource{Resource: "controllerrevisions"}, o.GetName())
			}
			return w.Create(ctx, o, opts...)
		}}, vm, it)
		if after, err := f.step(); err != nil || after != behindDelay || f.vm().Status.Condition(v1.ConditionFailure) != nil {
			t.Errorf("%s: after %s (%v), condition %+v", strategy, after, err, f.vm().Status.Condition(v1.ConditionFailure))
		}
		if _, err := f.step(); err != nil || f.vm().Status.InstancetypeRef == nil {
			t.Errorf("%s: then %v, status %+v", strategy, err, f.vm().Status)
		}
	}
}

// keptWhileStopped: the controller copies the instancetype of a stopped VM as soon as the VM is there. The first start
// uses the copy, even if the instancetype was changed or deleted since.
func keptWhileStopped(s subject) {
	it := s.instancetype("small", 2)
	if err := s.client.Create(ctx,
		s.object("runStrategy: Halted\n  instancetype: {name: small, kind: virtualmachineinstancetypes}"+unsized)); err != nil {
		s.t.Fatal(err)
	}
	kept := func(name string) (ref *v1.InstancetypeStatusRef) {
		s.t.Helper()
		until(s.t, func() error {
			vm := s.vm()
			ref = vm.Status.InstancetypeRef
			if ref == nil || ref.Name != name || ref.Kind != "VirtualMachineInstancetype" || ref.ControllerRevisionRef == nil ||
				vm.Status.PrintableStatus != v1.VirtualMachineStatusStopped {
				return fmt.Errorf("status %+v", vm.Status)
			}
			return nil
		})
		return ref
	}
	small := kept("small")
	if err := s.client.Delete(ctx, it); err != nil {
		s.t.Fatal(err)
	}
	// Another one is kept at once, too.
	large := s.instancetype("large", 8)
	vm := s.vm()
	s.change(vm, func() { vm.Spec.Instancetype.Name = "large" })
	kept("large")
	if err := s.client.Delete(ctx, large); err != nil {
		s.t.Fatal(err)
	}
	vm = s.vm()
	s.change(vm, func() {
		vm.Spec.Instancetype.Name, vm.Spec.Instancetype.RevisionName = "small", small.ControllerRevisionRef.Name
		vm.Spec.RunStrategy = ptr.To(v1.RunStrategyAlways)
	})
	if cpu := s.vmi("").Spec.Domain.CPU; cpu.Sockets != 2 {
		s.t.Errorf("CPU %+v, want 2 sockets", cpu)
	}
	// A running VM that names one that is not there says so, and its guest runs on.
	vm = s.vm()
	s.change(vm, func() { vm.Spec.Instancetype.Name, vm.Spec.Instancetype.RevisionName = "none", "" })
	s.awaitCondition(v1.ConditionFailure, "FailedFindInstancetype")
	if vmi := s.vmi(""); vmi.DeletionTimestamp != nil {
		s.t.Error("the guest is stopped")
	}
}

// conflicting: the condition says with its path what both the template and the instancetype set, and nothing is
// started.
func conflicting(s subject) {
	s.instancetype("small", 1)
	if err := s.client.Create(ctx,
		s.object("runStrategy: Always\n  instancetype: {name: small, kind: VirtualMachineInstancetype}"+template)); err != nil {
		s.t.Fatal(err)
	}
	if c := s.awaitCondition(v1.ConditionFailure, "InvalidSpec"); !strings.Contains(c.Message, "spec.template.spec.domain.memory.guest") {
		s.t.Errorf("condition %+v", c)
	}
	s.none()
}

// inferred: a volume's claim says what its guest is to have.
func inferred(s subject) {
	s.infers("persistentVolumeClaim: {claimName: root}", `PersistentVolumeClaim "root" not found`)
}

// inferredWithoutCDI: where there are no DataVolumes, the claim of the DataVolume's name says what the guest is
// to have.
func inferredWithoutCDI(s subject) {
	s.infers("dataVolume: {name: root}", `DataVolume "root", PersistentVolumeClaim "root" is not found`)
}

// infers starts a VM with a volume whose claim comes later.
func (s subject) infers(source, missing string) {
	s.t.Helper()
	s.instancetype("small", 3)
	onClaim := strings.Replace(unsized, "{name: root, containerDisk: {image: \"example.com/disk:1\"}}",
		"{name: root, "+source+"}", 1)
	if err := s.client.Create(ctx, s.object("runStrategy: Always\n  instancetype: {inferFromVolume: root}\n"+
		"  preference: {inferFromVolume: root, inferFromVolumeFailurePolicy: Ignore}"+onClaim)); err != nil {
		s.t.Fatal(err)
	}
	if c := s.awaitCondition(v1.ConditionFailure, "FailedFindInstancetype"); !strings.Contains(c.Message, missing) {
		s.t.Errorf("condition %+v", c)
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "root", Namespace: s.namespace,
		Labels: map[string]string{"instancetype.kubevirt.io/default-instancetype": "small",
			"instancetype.kubevirt.io/default-instancetype-kind": "VirtualMachineInstancetype"}},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}
	if err := s.client.Create(ctx, claim); err != nil {
		s.t.Fatal(err)
	}
	s.poke()
	if d := s.vmi(types.UID("")).Spec.Domain; d.CPU.Sockets != 3 {
		s.t.Errorf("CPU %+v, want 3 sockets", d.CPU)
	}
	until(s.t, func() error {
		status := s.vm().Status
		if ref := status.InstancetypeRef; ref == nil || ref.Name != "small" || ref.InferFromVolume != "root" {
			return fmt.Errorf("instancetype %+v", ref)
		}
		if status.PreferenceRef != nil {
			return errors.New("a preference that no volume names")
		}
		return nil
	})
}
