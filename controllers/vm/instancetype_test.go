package vm

import (
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func (s subject) instancetype(name string, cpus uint32) *v1beta1.VirtualMachineInstancetype {
	s.t.Helper()
	it := &v1beta1.VirtualMachineInstancetype{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace}, Spec: v1beta1.VirtualMachineInstancetypeSpec{
		CPU: v1beta1.CPUInstancetype{Guest: cpus}, Memory: v1beta1.MemoryInstancetype{Guest: resource.MustParse("64Mi")}}}
	if err := s.client.Create(ctx, it); err != nil {
		s.t.Fatal(err)
	}
	return it
}

// unsized is the template without what an instancetype sets.
var unsized = strings.Replace(template, "memory: {guest: 128Mi}", "", 1)

// sized: a VM has the size that its instancetype had when it was started first.
func sized(s subject) {
	const named = "runStrategy: Always\n  instancetype: {name: small, kind: virtualmachineinstancetype}\n  preference: {name: cores, kind: VirtualMachineClusterPreference}"
	if err := s.client.Create(ctx, s.object(named+unsized)); err != nil {
		s.t.Fatal(err)
	}
	if c := s.awaitCondition(v1.ConditionFailure, "FailedCreate"); !strings.Contains(c.Message, `VirtualMachineInstancetype "small" not found`) {
		s.t.Errorf("condition %+v", c)
	}
	s.none()
	it := s.instancetype("small", 2)
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
	if a := vmi.Annotations; a["kubevirt.io/instancetype-name"] != "small" || a["kubevirt.io/cluster-preference-name"] != "cores" {
		s.t.Errorf("annotations %v", a)
	}
	s.goes(vmi, v1.Running)
	vm := s.is(v1.VirtualMachineStatusRunning)
	ref := vm.Status.InstancetypeRef
	if ref == nil || ref.Name != "small" || ref.Kind != "VirtualMachineInstancetype" || ref.ControllerRevisionRef == nil || vm.Status.PreferenceRef == nil {
		s.t.Fatalf("status %+v", vm.Status)
	}
	revision := &appsv1.ControllerRevision{}
	if err := s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: ref.ControllerRevisionRef.Name}, revision); err != nil || !metav1.IsControlledBy(revision, vm) {
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

// conflicting: what both set is said with its path, and nothing is started.
func conflicting(s subject) {
	s.instancetype("small", 1)
	if err := s.client.Create(ctx, s.object("runStrategy: Always\n  instancetype: {name: small, kind: VirtualMachineInstancetype}"+template)); err != nil {
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

// inferredWithoutCDI: where there are no DataVolumes, the claim of the DataVolume's name does.
func inferredWithoutCDI(s subject) {
	s.infers("dataVolume: {name: root}", `DataVolume "root", PersistentVolumeClaim "root" is not found`)
}

// infers starts a VM with a volume whose claim comes later.
func (s subject) infers(source, missing string) {
	s.t.Helper()
	s.instancetype("small", 3)
	onClaim := strings.Replace(unsized, "{name: root, containerDisk: {image: \"example.com/disk:1\"}}", "{name: root, "+source+"}", 1)
	if err := s.client.Create(ctx, s.object("runStrategy: Always\n  instancetype: {inferFromVolume: root}\n"+
		"  preference: {inferFromVolume: root, inferFromVolumeFailurePolicy: Ignore}"+onClaim)); err != nil {
		s.t.Fatal(err)
	}
	if c := s.awaitCondition(v1.ConditionFailure, "FailedCreate"); !strings.Contains(c.Message, missing) {
		s.t.Errorf("condition %+v", c)
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "root", Namespace: s.namespace,
		Labels: map[string]string{"instancetype.kubevirt.io/default-instancetype": "small", "instancetype.kubevirt.io/default-instancetype-kind": "VirtualMachineInstancetype"}},
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
