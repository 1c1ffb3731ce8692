package vm

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/datavolume"
)

// TestVMKeepsWhereItsDiskIs: a VM keeps on which claim its disk is, as its VMI says one claim after the other.
func TestVMKeepsWhereItsDiskIs(t *testing.T) {
	on := func(claim string) []v1.MovedClaim { return []v1.MovedClaim{{ClaimName: "root", HeldBy: claim}} }
	for name, c := range map[string]struct {
		has  []string
		want []v1.MovedClaim
	}{
		"where it was":       {[]string{"root"}, nil},
		"moved":              {[]string{"root", "a"}, on("a")},
		"moved, seen twice":  {[]string{"a", "a"}, on("a")},
		"moved twice":        {[]string{"a", "b"}, on("b")},
		"given back":         {[]string{"a", "root"}, nil},
		"given back, second": {[]string{"a", "b", "a"}, on("a")},
	} {
		var list []v1.MovedClaim
		for _, has := range c.has {
			list = held(list, "root", has)
		}
		if diff := cmp.Diff(c.want, list, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// disk0 and disk1 are the names of the claims that the migrations "0" and "1" have made: see v1.CopyName.
const disk0, disk1 = "disk-1fce9b7390", "disk-0fafd67bf5"

// travelled is a VM whose disk a migration has copied to the claim disk1, with its VMI and what there is of its disk.
type travelled struct {
	vm    *v1.VirtualMachine
	vmi   *v1.VirtualMachineInstance
	disks map[string]*corev1.PersistentVolumeClaim // disk0 and disk1
	// volume is the DataVolume of the template.
	volume client.Object
}

func newTravelled() *travelled {
	vm := withDisk()
	vm.Spec.DataVolumeTemplates[0].Spec.Raw = []byte(`{"storage":{},"source":{"blank":{}}}`)
	vm.Status.MovedClaims = []v1.MovedClaim{{ClaimName: "disk", HeldBy: disk1}}
	vmi := run(v1.Running)
	vmi.Namespace, vmi.Name, vmi.UID, vmi.CreationTimestamp = "ns", "vm", "vmi", metav1.NewTime(now)
	vmi.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)}
	vmi.Spec.Volumes = slices.Clone(vm.Spec.Template.Spec.Volumes)
	vmi.Status.VolumeStatus = []v1.VolumeStatus{
		{Name: "root", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{ClaimName: disk1}}}
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m", Decision: v1.DecisionTarget,
		Completed: true}
	c := &travelled{vm: vm, vmi: vmi, disks: map[string]*corev1.PersistentVolumeClaim{}}
	for i, name := range []string{disk0, disk1} {
		c.disks[name] = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name,
			UID: types.UID(name), Labels: map[string]string{v1.CopyOfLabel: strconv.Itoa(i)},
			Annotations:     map[string]string{v1.CopyOfAnnotation: "disk"},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)}}}
	}
	volume := datavolume.Named(client.ObjectKey{Namespace: "ns", Name: "disk"})
	volume.SetUID("disk")
	volume.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)})
	volume.Object["status"] = map[string]any{"phase": "Succeeded"}
	c.volume = volume
	return c
}

func (c *travelled) faulty(t *testing.T) *faulty {
	objects := []client.Object{c.vm}
	if c.vmi != nil {
		objects = append(objects, c.vmi)
	}
	if c.volume != nil {
		objects = append(objects, c.volume)
	}
	for _, claim := range c.disks {
		objects = append(objects, claim)
	}
	return newFaulty(t, interceptor.Funcs{}, objects...)
}

func (f *faulty) steps(t *testing.T) {
	t.Helper()
	for range 3 {
		if _, err := f.step(); err != nil {
			t.Fatal(err)
		}
	}
}

// has returns what there is of the VM's disk.
func (f *faulty) has(t *testing.T) string {
	t.Helper()
	var there []string
	if volume, err := datavolume.Get(t.Context(), f.store, client.ObjectKey{Namespace: "ns", Name: "disk"}); err != nil {
		t.Fatal(err)
	} else if volume != nil {
		there = append(there, "DataVolume")
	}
	for _, name := range []string{disk0, disk1} {
		if f.store.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, &corev1.PersistentVolumeClaim{}) == nil {
			there = append(there, name)
		}
	}
	return strings.Join(there, " ")
}

// TestOldClaimIsDeletedAfterTheMove: the VM notes where a migration has copied its disk. Once the guest has
// moved, it deletes what the disk has left. Later starts use the new claim, and make no DataVolume.
func TestOldClaimIsDeletedAfterTheMove(t *testing.T) {
	c := newTravelled()
	c.vm.Status.MovedClaims, c.vmi.Status.MigrationState.Completed = nil, false
	f := c.faulty(t)
	f.steps(t)
	want := []v1.MovedClaim{{ClaimName: "disk", HeldBy: disk1}}
	if diff := cmp.Diff(want, f.vm().Status.MovedClaims); diff != "" || f.has(t) != "DataVolume "+disk0+" "+disk1 {
		t.Fatalf("while the guest moves: %s, there are %s", diff, f.has(t))
	}
	vmi := f.vmi()
	vmi.Status.MigrationState.Completed = true
	if err := f.store.Status().Update(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	f.steps(t)
	want[0].CleanedUp = "m"
	if diff := cmp.Diff(want, f.vm().Status.MovedClaims); diff != "" || f.has(t) != disk1 {
		t.Fatalf("afterwards: %s, there are %s", diff, f.has(t))
	}
	vmi = f.vmi()
	vmi.Finalizers = nil
	if err := errors.Join(f.store.Update(t.Context(), vmi),
		client.IgnoreNotFound(f.store.Delete(t.Context(), vmi))); err != nil {
		t.Fatal(err)
	}
	f.steps(t)
	started := f.vmi()
	if started == nil || started.Annotations[v1.ClaimsAnnotation] != `{"disk":"`+disk1+`"}` || f.has(t) != disk1 {
		t.Errorf("the next start is %+v, there are %s", started, f.has(t))
	}
}

// heedingUID deletes an object if it has the UID, as the API server does and the fake client does not.
func heedingUID(ctx context.Context, w client.WithWatch, o client.Object, options ...client.DeleteOption) error {
	there, asked := o.DeepCopyObject().(client.Object), (&client.DeleteOptions{}).ApplyOptions(options)
	if err := w.Get(ctx, client.ObjectKeyFromObject(o), there); err != nil {
		return err
	}
	if p := asked.Preconditions; p != nil && p.UID != nil && *p.UID != there.GetUID() {
		return apierrors.NewConflict(schema.GroupResource{}, o.GetName(), errors.New("UID"))
	}
	return w.Delete(ctx, o, options...)
}

// TestNothingIsDeletedWithoutCertainty: nothing is deleted unless it is certain that the guest has its disk elsewhere.
func TestNothingIsDeletedWithoutCertainty(t *testing.T) {
	const copies, all = disk0 + " " + disk1, "DataVolume " + disk0 + " " + disk1
	live := func(change func(client.Object)) func(*testing.T, *faulty) {
		return func(t *testing.T, f *faulty) {
			f.Live = interceptor.NewClient(f.store, interceptor.Funcs{Get: func(ctx context.Context, w client.WithWatch,
				key client.ObjectKey, o client.Object, options ...client.GetOption) error {
				err := w.Get(ctx, key, o, options...)
				if err == nil {
					change(o)
				}
				return err
			}})
		}
	}
	for name, c := range map[string]struct {
		change func(*travelled)
		fault  func(*testing.T, *faulty)
		want   string
	}{
		"all is as it should be": {func(*travelled) {}, nil, disk1},
		"the guest moves again": {func(c *travelled) {
			c.vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "n"}
		}, nil, all},
		"the migration failed": {func(c *travelled) { c.vmi.Status.MigrationState.Failed = true }, nil, all},
		"the guest never ran on the target": {
			func(c *travelled) { c.vmi.Status.MigrationState.Decision = v1.DecisionSource }, nil, all},
		"no migration":          {func(c *travelled) { c.vmi.Status.MigrationState = nil }, nil, all},
		"the new claim is gone": {func(c *travelled) { delete(c.disks, disk1) }, nil, "DataVolume " + disk0},
		"the new claim is being deleted": {func(c *travelled) {
			c.disks[disk1].Finalizers = []string{"kubernetes.io/pvc-protection"}
			c.disks[disk1].DeletionTimestamp = &metav1.Time{Time: now}
		}, nil, all},
		"the new claim is no copy":      {func(c *travelled) { c.disks[disk1].Annotations = nil }, nil, all},
		"the new claim is not the VM's": {func(c *travelled) { c.disks[disk1].OwnerReferences = nil }, nil, all},
		"the old ones are not the VM's": {
			func(c *travelled) { c.volume.SetOwnerReferences(nil); c.disks[disk0].OwnerReferences = nil }, nil, all},
		"another disk's copy": {
			func(c *travelled) { c.disks[disk0].Annotations[v1.CopyOfAnnotation] = "data" }, nil, copies},
		"another claim, like a copy": {
			func(c *travelled) { c.disks[disk0].Labels[v1.CopyOfLabel] = "1" }, nil, copies},
		"the new claim is another, like a copy": {
			func(c *travelled) { c.disks[disk1].Labels[v1.CopyOfLabel] = "0" }, nil, all},
		"the guest has the old copy, too": {func(c *travelled) {
			old := &v1.PersistentVolumeClaimVolumeSource{ClaimName: disk0}
			c.vmi.Spec.Volumes = append(c.vmi.Spec.Volumes, v1.Volume{Name: "old", PersistentVolumeClaim: old})
		}, nil, copies},
		"cleaned up before": {func(c *travelled) { c.vm.Status.MovedClaims[0].CleanedUp = "m" }, nil, all},
		"the VMI moves again, and the cache is behind": {func(*travelled) {}, live(func(o client.Object) {
			if vmi, ok := o.(*v1.VirtualMachineInstance); ok {
				vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "n"}
			}
		}), all},
		"the VM has changed, and the cache is behind": {func(*travelled) {}, live(func(o client.Object) {
			if vm, ok := o.(*v1.VirtualMachine); ok {
				vm.ResourceVersion = "1000000"
			}
		}), all},
		"the guest has its disk elsewhere, and the cache is behind": {func(*travelled) {}, live(func(o client.Object) {
			if vmi, ok := o.(*v1.VirtualMachineInstance); ok {
				vmi.Status.VolumeStatus[0].PersistentVolumeClaimInfo.ClaimName = disk0
			}
		}), all},
	} {
		k := newTravelled()
		c.change(k)
		f := k.faulty(t)
		if c.fault != nil {
			c.fault(t, f)
		}
		f.steps(t)
		if got := f.has(t); got != c.want {
			t.Errorf("%s: there are %s, want %s", name, got, c.want)
		}
	}
}

// TestClaimMadeAnewStays: a claim that somebody deletes and makes anew, after it was looked at and before it is
// deleted, stays. The VM looks once more.
func TestClaimMadeAnewStays(t *testing.T) {
	f := newTravelled().faulty(t)
	f.Client = interceptor.NewClient(f.store, interceptor.Funcs{Delete: heedingUID})
	f.Live = interceptor.NewClient(f.store, interceptor.Funcs{List: func(ctx context.Context, w client.WithWatch,
		list client.ObjectList, options ...client.ListOption) error {
		err := w.List(ctx, list, options...)
		if claims, ok := list.(*corev1.PersistentVolumeClaimList); ok && len(claims.Items) == 2 {
			anew := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: disk0}}
			err = errors.Join(err, w.Delete(ctx, anew))
			anew.UID = "anew"
			err = errors.Join(err, w.Create(ctx, anew))
		}
		return err
	}})
	var err error
	for range 3 {
		_, again := f.step()
		err = errors.Join(err, again)
	}
	if err == nil || !strings.Contains(err.Error(), "it was made anew") {
		t.Errorf("nothing brings the VM back: %v", err)
	}
	if f.steps(t); f.has(t) != disk0+" "+disk1 || f.vm().Status.MovedClaims[0].CleanedUp != "m" {
		t.Errorf("there are %s; %+v", f.has(t), f.vm().Status.MovedClaims)
	}
}

// TestDiskOfADeletedClaimIsMadeAnew: a disk whose claim somebody has deleted is made anew at the next start, as
// a DataVolume is that somebody has deleted. If the DataVolume of the template is still there, the VM starts
// with that DataVolume, and the DataVolume stays.
func TestDiskOfADeletedClaimIsMadeAnew(t *testing.T) {
	for _, there := range []bool{false, true} {
		c := newTravelled()
		c.vmi, c.disks = nil, nil
		if !there {
			c.volume = nil
		}
		f := c.faulty(t)
		f.steps(t)
		if m := f.vm().Status.MovedClaims; len(m) != 0 || f.has(t) != "DataVolume" || (f.vmi() != nil) != there {
			t.Errorf("DataVolume %t: moved %v, there are %s, VMI %v", there, m, f.has(t), f.vmi())
		}
		if vmi := f.vmi(); vmi != nil && vmi.Annotations[v1.ClaimsAnnotation] != "" {
			t.Errorf("the VMI starts with %s", vmi.Annotations[v1.ClaimsAnnotation])
		}
		var said []string
		for recorder := f.Events.(*events.FakeRecorder).Events; len(recorder) > 0; {
			said = append(said, strings.Fields(<-recorder)[1])
		}
		if !slices.Contains(said, "ClaimLost") {
			t.Errorf("events %s", said)
		}
	}
}

// TestLostClaimMayComeBackWhileHalted: a halted VM keeps its note of a claim that is gone. A backup may bring
// the claim back before the next start.
func TestLostClaimMayComeBackWhileHalted(t *testing.T) {
	c := newTravelled()
	c.vmi, c.disks, c.volume = nil, nil, nil
	c.vm.Spec.RunStrategy = new(v1.VirtualMachineRunStrategy)
	*c.vm.Spec.RunStrategy = v1.RunStrategyHalted
	f := c.faulty(t)
	f.steps(t)
	if m := f.vm().Status.MovedClaims; len(m) != 1 || f.has(t) != "" {
		t.Errorf("moved %v, there are %s", m, f.has(t))
	}
}

// TestVMWaitsWhileItsClaimIsDeleted: a VM does not start while its claim is being deleted.
func TestVMWaitsWhileItsClaimIsDeleted(t *testing.T) {
	c := newTravelled()
	c.vmi, c.volume = nil, nil
	c.disks[disk1].Finalizers, c.disks[disk1].DeletionTimestamp = []string{"kubernetes.io/pvc-protection"},
		&metav1.Time{Time: now}
	f := c.faulty(t)
	f.steps(t)
	if condition := f.vm().Status.Condition(v1.ConditionProvisioning); f.vmi() != nil || condition == nil ||
		!strings.Contains(condition.Message, "claim "+disk1+", to which a migration copied a disk, is being deleted") {
		t.Errorf("VMI %v, condition %+v", f.vmi(), condition)
	}
}

// TestVMSaysWhatToDoWhenItsClaimIsGone: a VMI that waits for a claim that is gone stays. Its VM says what to
// do.
func TestVMSaysWhatToDoWhenItsClaimIsGone(t *testing.T) {
	c := newTravelled()
	c.vmi.Status = v1.VirtualMachineInstanceStatus{Phase: v1.Pending,
		Conditions: []v1.VirtualMachineInstanceCondition{isFalseFor(v1.ConditionSynchronized, v1.ReasonPvcNotFound)}}
	c.vmi.Annotations = map[string]string{v1.ClaimsAnnotation: `{"disk":"` + disk1 + `"}`}
	c.disks, c.volume = nil, nil
	f := c.faulty(t)
	f.steps(t)
	if failed := f.vm().Status.Condition(v1.ConditionFailure); f.vmi() == nil || len(f.vm().Status.MovedClaims) != 1 ||
		f.has(t) != "" || failed == nil ||
		!strings.Contains(failed.Message, "claim "+disk1+", to which a migration copied a disk, is gone: restart the VM") {
		t.Errorf("VMI %v, condition %+v", f.vmi(), failed)
	}
}

// TestEarlierCopyPreventsANewDisk: a disk whose claim is gone is not made anew while an earlier copy of the
// disk is there. The next migration would delete that copy.
func TestEarlierCopyPreventsANewDisk(t *testing.T) {
	c := newTravelled()
	c.vmi, c.volume = nil, nil
	delete(c.disks, disk1)
	f := c.faulty(t)
	f.steps(t)
	condition := f.vm().Status.Condition(v1.ConditionProvisioning)
	if f.vmi() != nil || f.has(t) != disk0 || condition == nil ||
		!strings.Contains(condition.Message, "claim "+disk0+" has an earlier copy of the disk") {
		t.Fatalf("VMI %v, there are %s, condition %+v", f.vmi(), f.has(t), condition)
	}
	if err := f.store.Delete(t.Context(), c.disks[disk0]); err != nil {
		t.Fatal(err)
	}
	f.steps(t)
	if m := f.vm().Status.MovedClaims; len(m) != 0 || f.has(t) != "DataVolume" {
		t.Errorf("moved %v, there are %s", m, f.has(t))
	}
}

// TestStaleVMITakesNothingBack: a VMI that the cache has from before a migration takes nothing back of what the
// VM has noted.
func TestStaleVMITakesNothingBack(t *testing.T) {
	for live, want := range map[string]string{disk1: disk1, "disk": "disk", "": disk1} {
		c := newTravelled()
		c.vmi.Status.MigrationState = nil
		c.vmi.Status.VolumeStatus[0].PersistentVolumeClaimInfo.ClaimName = "disk"
		f := c.faulty(t)
		f.Live = interceptor.NewClient(f.store, interceptor.Funcs{Get: func(ctx context.Context, w client.WithWatch,
			key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			err := w.Get(ctx, key, o, options...)
			if vmi, ok := o.(*v1.VirtualMachineInstance); ok && err == nil {
				if live == "" {
					return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
				}
				vmi.Status.VolumeStatus[0].PersistentVolumeClaimInfo.ClaimName = live
			}
			return err
		}})
		f.steps(t)
		if got := f.vm().Status.HeldBy("disk"); got != want {
			t.Errorf("the API server has %q: the disk is on %s, want %s", live, got, want)
		}
	}
}
