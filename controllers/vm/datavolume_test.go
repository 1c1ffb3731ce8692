package vm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/datavolume"
)

// TestWhichDataVolumesAreToBeMade: the state of a disk decides whether its DataVolume is to be made, and what
// is said of it.
func TestWhichDataVolumesAreToBeMade(t *testing.T) {
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm", UID: "own"}}
	for _, name := range []string{"a", "b"} {
		vm.Spec.DataVolumeTemplates = append(vm.Spec.DataVolumeTemplates,
			v1.DataVolumeTemplate{ObjectMeta: v1.DataVolumeTemplateMeta{Name: name}})
	}
	state := func(phase string, edits ...func(*metav1.ObjectMeta)) datavolume.State {
		meta := &metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)}}
		for _, edit := range edits {
			edit(meta)
		}
		volume := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"phase": phase}}}
		return datavolume.State{Volume: meta, Progress: datavolume.Of("a", volume)}
	}
	claim := func(edits ...func(*metav1.ObjectMeta)) datavolume.State {
		meta := &metav1.ObjectMeta{Name: "a"}
		for _, edit := range edits {
			edit(meta)
		}
		return datavolume.State{Claim: meta}
	}
	controlled := func(version, kind, name, uid string) func(*metav1.ObjectMeta) {
		return func(m *metav1.ObjectMeta) {
			m.OwnerReferences = []metav1.OwnerReference{
				{APIVersion: version, Kind: kind, Name: name, UID: types.UID(uid), Controller: ptr.To(true)}}
		}
	}
	nobodys := func(m *metav1.ObjectMeta) { m.OwnerReferences = nil }
	deleted := func(m *metav1.ObjectMeta) { m.DeletionTimestamp = ptr.To(metav1.Now()) }
	collected := func(m *metav1.ObjectMeta) {
		m.Annotations = map[string]string{"cdi.kubevirt.io/garbageCollected": "true"}
	}
	others := controlled("kubevirt.io/v1", "VirtualMachine", "other", "other")
	earlier := controlled("kubevirt.io/v1alpha3", "VirtualMachine", "vm", "earlier")
	disguised := controlled("v1", "Pod", "vm", "own")
	own := controlled("kubevirt.io/v1", "VirtualMachine", "vm", "own")
	left := controlled("cdi.kubevirt.io/v1beta1", "DataVolume", "a", "gone")
	const made = "DataVolume a is to be made"
	for name, c := range map[string]struct {
		a                             datavolume.State
		missing, taken, failed, waits string
	}{
		"none":                    {missing: "a", waits: made},
		"filled":                  {a: state("Succeeded")},
		"to be filled by its pod": {a: state("PendingPopulation")},
		"to be bound":             {a: state("WaitForFirstConsumer")},
		"being filled":            {a: state("ImportInProgress"), waits: "DataVolume a is ImportInProgress"},
		"failed":                  {a: state("Failed"), failed: "DataVolume a failed", waits: "DataVolume a failed"},
		"nobody's":                {a: state("Succeeded", nobodys)},
		"another's":               {a: state("Succeeded", others), taken: "DataVolume a belongs to VirtualMachine other"},
		"another's, that failed":  {a: state("Failed", others), taken: "DataVolume a belongs to VirtualMachine other"},
		"another kind's":          {a: state("Succeeded", disguised), taken: "DataVolume a belongs to Pod vm"},
		"an earlier VM's": {a: state("Succeeded", earlier),
			waits: "DataVolume a belongs to an earlier VirtualMachine of this name, and is deleted with that"},
		"being deleted": {a: state("Succeeded", deleted),
			waits: "DataVolume a is being deleted, and is made again"},
		"a claim":                    {a: claim(), missing: "a, claimed", waits: made},
		"a claim of the VM":          {a: claim(own), missing: "a, claimed", waits: made},
		"a claim, collected":         {a: claim(collected)},
		"the VM's claim, collected":  {a: claim(collected, own)},
		"another's claim, collected": {a: claim(collected, others), taken: "claim a belongs to VirtualMachine other"},
		"another's claim":            {a: claim(others), taken: "claim a belongs to VirtualMachine other"},
		"an earlier VM's claim": {a: claim(collected, earlier),
			waits: "claim a belongs to an earlier VirtualMachine of this name, and is deleted with that"},
		"a claim being deleted": {a: claim(collected, deleted), waits: "claim a is being deleted, and is made again"},
		"a claim of a DataVolume": {a: claim(left),
			waits: "claim a is deleted with its DataVolume, which is gone, and is made again"},
		"a claim of another's volume": {a: claim(controlled("cdi.kubevirt.io/v1beta1", "DataVolume", "b", "b")),
			taken: "claim a belongs to DataVolume b"},
	} {
		// The other template's disk is filled, and says nothing.
		d, missing := noted(vm, c.a, state("Succeeded"))
		taken := d.taken.String()
		if missing != c.missing || d.failed.String() != c.failed || d.waits.String() != c.waits ||
			!strings.HasPrefix(taken, c.taken) || (taken == "") != (c.taken == "") {
			t.Errorf("%s: %+v, missing %s, want %+v", name, d, missing, c)
		}
	}
	both, _ := noted(vm, state("ImportInProgress"), state("Failed"))
	if both.failed.String() != "DataVolume a failed" ||
		both.waits.String() != "DataVolume a is ImportInProgress; DataVolume a failed" {
		t.Errorf("side by side: %+v", both)
	}
}

// noted returns what is known of a VM's disks in these states, and which DataVolumes are to be made.
func noted(vm *v1.VirtualMachine, states ...datavolume.State) (d disks, made string) {
	for i, state := range states {
		if m := d.note(vm, &vm.Spec.DataVolumeTemplates[i], state); m != nil {
			made += m.template.ObjectMeta.Name
			if m.claimed {
				made += ", claimed"
			}
		}
	}
	return d, made
}

// withManyDisks returns a VM with as many DataVolumeTemplates as can be, all of one source. The first is
// "disk".
func withManyDisks(source string) *v1.VirtualMachine {
	vm := withDisk()
	vm.Spec.DataVolumeTemplates[0].Spec.Raw = []byte(source)
	spec := &vm.Spec.Template.Spec
	for i := range v1.MaxDataVolumeTemplates - 1 {
		more, name := *vm.Spec.DataVolumeTemplates[0].DeepCopy(), fmt.Sprintf("more-%d", i)
		more.ObjectMeta.Name = name
		vm.Spec.DataVolumeTemplates = append(vm.Spec.DataVolumeTemplates, more)
		spec.Volumes = append(spec.Volumes, v1.Volume{Name: name, DataVolume: &v1.DataVolumeSource{Name: name}})
		spec.Domain.Devices.Disks = append(spec.Domain.Devices.Disks, v1.Disk{Name: name})
	}
	return vm
}

// TestRefusedDiskCostsFewRequests: a VM with many disks, of which the first cannot be made or is taken, costs
// no request for the others.
func TestRefusedDiskCostsFewRequests(t *testing.T) {
	for name, c := range map[string]struct {
		source string
		there  []client.Object
	}{
		"refused":            {source: `{"storage":{},"source":{"blank":{}}}`},
		"without DataSource": {source: `{"storage":{},"sourceRef":{"kind":"DataSource","name":"none"}}`},
		"taken": {source: `{"storage":{},"source":{"blank":{}}}`,
			there: []client.Object{&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "disk",
				OwnerReferences: []metav1.OwnerReference{
					{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Name: "other", UID: "other", Controller: ptr.To(true)}}}}}},
	} {
		vm, asked := withManyDisks(c.source), 0
		f := newFaulty(t, interceptor.Funcs{Create: func(_ context.Context, _ client.WithWatch, o client.Object,
			_ ...client.CreateOption) error {
			asked++
			return apierrors.NewForbidden(schema.GroupResource{Resource: "datavolumes"}, o.GetName(),
				errors.New("exceeded quota"))
		}}, append(c.there, vm)...)
		f.Live = interceptor.NewClient(f.store, interceptor.Funcs{Get: func(ctx context.Context, w client.WithWatch,
			key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			asked++
			return w.Get(ctx, key, o, opts...)
		}})
		if after, err := f.step(); err != nil || after < 5*time.Second {
			t.Errorf("%s: looked at again after %s (%v)", name, after, err)
		}
		if failed := f.vm().Status.Condition(v1.ConditionFailure); failed == nil || asked > 8 {
			t.Errorf("%s: %d requests, condition %+v", name, asked, failed)
		}
	}
}

// TestMessageOfManyDisksIsBounded: the text about many disks is bounded.
func TestMessageOfManyDisksIsBounded(t *testing.T) {
	if got := texts(slices.Repeat([]string{strings.Repeat("ä", 1000)}, 32)).String(); len(got) > 4<<10+len("…") ||
		!utf8.ValidString(got) || !strings.HasSuffix(got, "…") {
		t.Errorf("%d bytes: %.40s", len(got), got)
	}
}

// withDisk returns a VM with one DataVolumeTemplate, "disk", whose label names the instancetype of the VM's
// volume.
func withDisk() *v1.VirtualMachine {
	vm := valid(v1.RunStrategyAlways)
	vm.Spec.DataVolumeTemplates = []v1.DataVolumeTemplate{
		{ObjectMeta: v1.DataVolumeTemplateMeta{Name: "disk",
			Labels: map[string]string{"instancetype.kubevirt.io/default-instancetype": "later"}}}}
	vm.Spec.DataVolumeTemplates[0].Spec.Raw = []byte(`{"storage":{},"sourceRef":{"kind":"DataSource","name":"none"}}`)
	spec := &vm.Spec.Template.Spec
	spec.Volumes = []v1.Volume{{Name: "root", DataVolume: &v1.DataVolumeSource{Name: "disk"}}}
	spec.Domain.Devices.Disks = []v1.Disk{{Name: "root"}}
	return vm
}

// TestRefusedDataVolumeIsSaidOnce: the controller says once that a DataVolume cannot be made, and tries again
// in time.
func TestRefusedDataVolumeIsSaidOnce(t *testing.T) {
	f := newFaulty(t, interceptor.Funcs{}, withDisk())
	for range 2 {
		if after, err := f.step(); err != nil || after < 5*time.Second || after > 5*time.Minute {
			t.Errorf("looked at again after %s (%v)", after, err)
		}
	}
	c := f.vm().Status.Condition(v1.ConditionFailure)
	if c == nil || c.Reason != v1.ReasonFailedDataVolumeCreate ||
		!strings.Contains(c.Message, "DataSource ns/none does not exist") {
		t.Errorf("condition %+v", c)
	}
	if n := len(f.Events.(*events.FakeRecorder).Events); n != 1 || f.vmi() != nil {
		t.Errorf("%d events, VMI %v", n, f.vmi())
	}
}

// TestCDIsKindsMayGoAgain: CDI's kinds may go after they were looked up. The API server answers 404 then.
func TestCDIsKindsMayGoAgain(t *testing.T) {
	vm := withDisk()
	vm.Spec.DataVolumeTemplates[0].Spec.Raw = []byte(`{"storage":{},"source":{"blank":{}}}`)
	f := newFaulty(t, interceptor.Funcs{Create: func(ctx context.Context, w client.WithWatch, o client.Object,
		opts ...client.CreateOption) error {
		return apierrors.NewNotFound(schema.GroupResource{}, "")
	}}, vm)
	if after, err := f.step(); err != nil || after < 5*time.Second {
		t.Errorf("looked at again after %s (%v)", after, err)
	}
	if c := f.vm().Status.Condition(v1.ConditionFailure); c == nil ||
		!strings.Contains(c.Message, "CDI is not installed") {
		t.Errorf("condition %+v", c)
	}
}

// TestCollectedDataVolumeIsNotFilledAgain: a disk that CDI filled, and whose DataVolume CDI deleted, is not
// filled again.
func TestCollectedDataVolumeIsNotFilledAgain(t *testing.T) {
	for collected, want := range map[string]string{"true": "disk", "false": "made"} {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "disk",
			Annotations: map[string]string{"cdi.kubevirt.io/garbageCollected": collected}}}
		vm := withDisk()
		vm.Spec.DataVolumeTemplates[0].Spec.Raw = []byte(`{"storage":{},"source":{"blank":{}}}`)
		f := newFaulty(t, interceptor.Funcs{}, vm, claim)
		if _, err := f.step(); err != nil {
			t.Fatal(err)
		}
		volume, err := datavolume.Get(t.Context(), f.store, client.ObjectKey{Namespace: "ns", Name: "disk"})
		if err != nil || (volume != nil) != (want == "made") || (f.vmi() != nil) != (want == "disk") {
			t.Errorf("%s: DataVolume %v (%v), VMI %v", collected, volume, err, f.vmi())
		}
	}
}

// TestCollectedWithoutCDI: a VM whose disks are all filled needs no CDI.
func TestCollectedWithoutCDI(t *testing.T) {
	for collected, want := range map[string]bool{"true": true, "false": false} {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "disk",
			Annotations: map[string]string{"cdi.kubevirt.io/garbageCollected": collected}}}
		f := newFaulty(t, interceptor.Funcs{}, withDisk(), claim)
		f.Live = interceptor.NewClient(f.store, interceptor.Funcs{Get: func(ctx context.Context, w client.WithWatch,
			key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if kind := o.GetObjectKind().GroupVersionKind(); kind.Group == "cdi.kubevirt.io" {
				return &meta.NoKindMatchError{GroupKind: kind.GroupKind()}
			}
			return w.Get(ctx, key, o, opts...)
		}})
		if _, err := f.step(); err != nil {
			t.Fatal(err)
		}
		c := f.vm().Status.Condition(v1.ConditionFailure)
		if (f.vmi() != nil) != want || (c == nil) != want ||
			c != nil && !strings.Contains(c.Message, "CDI is not installed") {
			t.Errorf("%s: VMI %v, condition %+v", collected, f.vmi(), c)
		}
	}
}

// TestContendedQuotaIsTriedAgain: a quota that others use at the same time answers with a conflict. No event
// comes of that conflict, and the controller tries again.
func TestContendedQuotaIsTriedAgain(t *testing.T) {
	vm := withDisk()
	vm.Spec.DataVolumeTemplates[0].Spec.Raw = []byte(`{"storage":{},"source":{"blank":{}}}`)
	for _, vm := range []*v1.VirtualMachine{vm, valid(v1.RunStrategyAlways)} {
		f := newFaulty(t, interceptor.Funcs{Create: func(context.Context, client.WithWatch, client.Object,
			...client.CreateOption) error {
			return apierrors.NewConflict(schema.GroupResource{Resource: "resourcequotas"}, "q", errors.New("in use"))
		}}, vm)
		for range 2 {
			if after, err := f.step(); err != nil || after == 0 || after > 5*time.Second {
				t.Errorf("looked at again after %s (%v)", after, err)
			}
		}
	}
}

// TestWaitingVMIKeepsItsDataVolume: a VMI that waits for a disk needs the disk's DataVolume still, and a VMI whose
// launcher pod is made does not.
func TestWaitingVMIKeepsItsDataVolume(t *testing.T) {
	for phase, want := range map[v1.VirtualMachineInstancePhase]bool{v1.Pending: true, v1.Scheduling: true,
		v1.Running: false} {
		vm := withDisk()
		vm.Spec.DataVolumeTemplates[0].Spec.Raw = []byte(`{"storage":{},"source":{"blank":{}}}`)
		vmi := run(phase)
		vmi.Namespace, vmi.Name, vmi.UID, vmi.CreationTimestamp = "ns", "vm", "vmi", metav1.NewTime(now)
		vmi.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)}
		vmi.Status.Conditions = []v1.VirtualMachineInstanceCondition{
			isFalseFor(v1.ConditionSynchronized, v1.ReasonPvcNotFound)}
		f := newFaulty(t, interceptor.Funcs{}, vm, vmi)
		after, err := f.step()
		if err != nil {
			t.Fatal(err)
		}
		volume, err := datavolume.Get(t.Context(), f.store, client.ObjectKey{Namespace: "ns", Name: "disk"})
		if err != nil || (volume != nil) != want || (after == 5*time.Second) != want || f.vmi() == nil ||
			f.vmi().DeletionTimestamp != nil {
			t.Errorf("%s: DataVolume %v (%v), looked at again after %s, VMI %v", phase, volume, err, after, f.vmi())
		}
	}
}

// TestSilentAPIServerChangesNoStatus: the status stays as it is while the API server does not answer.
func TestSilentAPIServerChangesNoStatus(t *testing.T) {
	vm := withDisk()
	vm.Spec.DataVolumeTemplates[0].Spec.Raw = []byte(`{"storage":{},"source":{"blank":{}}}`)
	f := newFaulty(t, interceptor.Funcs{}, vm)
	f.step()
	f.step()
	before := f.vm().Status
	if c := before.Condition(v1.ConditionProvisioning); c == nil ||
		before.PrintableStatus != v1.VirtualMachineStatusProvisioning {
		t.Fatalf("status %+v", before)
	}
	f.Live = interceptor.NewClient(f.store, interceptor.Funcs{Get: func(context.Context, client.WithWatch,
		client.ObjectKey, client.Object, ...client.GetOption) error {
		return errors.New("the API server is away")
	}})
	if _, err := f.step(); err == nil {
		t.Error("no error")
	}
	if diff := cmp.Diff(before, f.vm().Status); diff != "" {
		t.Errorf("the status changed: %s", diff)
	}
}

// TestFailureOfCDIBeforeThereIsAClaim: CDI may fail before there is a claim. Then the VMI knows nothing of the failure.
func TestFailureOfCDIBeforeThereIsAClaim(t *testing.T) {
	vm := withDisk()
	vmi := run(v1.Pending)
	vmi.Namespace, vmi.Name, vmi.UID, vmi.CreationTimestamp = "ns", "vm", "vmi", metav1.NewTime(now.Add(-time.Hour))
	vmi.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(vm, v1.VirtualMachineGroupVersionKind)}
	vmi.Status.Conditions = []v1.VirtualMachineInstanceCondition{
		isFalseFor(v1.ConditionSynchronized, v1.ReasonPvcNotFound)}
	volume := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"conditions": []any{
		map[string]any{"type": "Bound", "status": "False", "reason": "ErrExceededQuota", "message": "no more"}}}}}
	volume.SetGroupVersionKind(v1.DataVolumeGroupVersionKind)
	volume.SetNamespace("ns")
	volume.SetName("disk")
	f := newFaulty(t, interceptor.Funcs{}, vm, vmi, volume)
	if after, err := f.step(); err != nil || after != time.Minute {
		t.Errorf("looked at again after %s (%v)", after, err)
	}
	if c := f.vm().Status.Condition(v1.ConditionFailure); c == nil ||
		!strings.Contains(c.Message, "ErrExceededQuota, no more") {
		t.Errorf("condition %+v", c)
	}
	// A filled disk may be deleted while the VMI waits for something else.
	volume.Object["status"] = map[string]any{"phase": "Succeeded"}
	if err := f.store.Update(t.Context(), volume); err != nil {
		t.Fatal(err)
	}
	if after, err := f.step(); err != nil || after != time.Minute || f.vm().Status.Condition(v1.ConditionFailure) != nil {
		t.Errorf("filled: looked at again after %s (%v): %+v", after, err, f.vm().Status)
	}
}

// TestPreferredStorageClass: a claim that names no storage class gets that of the VM's preference.
func TestPreferredStorageClass(t *testing.T) {
	vm := withDisk()
	vm.Spec.DataVolumeTemplates[0].Spec.Raw = []byte(`{"storage":{},"source":{"blank":{}}}`)
	vm.Spec.Preference = &v1.PreferenceMatcher{Kind: "VirtualMachinePreference", Name: "fast"}
	vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "none"} // is not needed yet
	vm.Spec.Template.Spec.Domain.Memory = nil
	preference := &v1beta1.VirtualMachinePreference{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "fast"}}
	preference.Spec.Volumes = &v1beta1.VolumePreferences{PreferredStorageClassName: "nvme"}
	f := newFaulty(t, interceptor.Funcs{}, vm)
	f.step()
	if c := f.vm().Status.Condition(v1.ConditionFailure); c == nil || c.Reason != v1.ReasonFailedFindPreference ||
		!strings.Contains(c.Message, "fast") {
		t.Errorf("condition %+v", c)
	}
	if err := f.store.Create(t.Context(), preference); err != nil {
		t.Fatal(err)
	}
	if _, err := f.step(); err != nil {
		t.Fatal(err)
	}
	volume, err := datavolume.Get(t.Context(), f.store, client.ObjectKey{Namespace: "ns", Name: "disk"})
	if err != nil || volume == nil {
		t.Fatalf("DataVolume %v (%v)", volume, err)
	}
	if class, _, _ := unstructured.NestedString(volume.Object, "spec", "storage", "storageClassName"); class != "nvme" {
		t.Errorf("storage class %q", class)
	}
}

// TestInferredFromWhatIsThere: once a disk is filled, its template is not asked which instancetype to take. The
// template may have been changed since.
func TestInferredFromWhatIsThere(t *testing.T) {
	vm := withDisk()
	vm.Spec.Instancetype = &v1.InstancetypeMatcher{InferFromVolume: "root"}
	vm.Spec.Template.Spec.Domain.Memory = nil
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "disk",
		Annotations: map[string]string{"cdi.kubevirt.io/garbageCollected": "true"}}}
	f := newFaulty(t, interceptor.Funcs{}, vm, claim)
	if _, err := f.step(); err != nil {
		t.Fatal(err)
	}
	if c := f.vm().Status.Condition(v1.ConditionFailure); c == nil || strings.Contains(c.Message, "later") ||
		!strings.Contains(c.Message, "infer instancetype") {
		t.Errorf("condition %+v", c)
	}
}

// TestLongWaitsAreAskedAboutSeldom: DataVolumes are asked about seldom once they take long.
func TestLongWaitsAreAskedAboutSeldom(t *testing.T) {
	now := time.Now()
	for waited, want := range map[time.Duration]time.Duration{0: 5 * time.Second, 40 * time.Second: 5 * time.Second,
		5 * time.Minute: 30 * time.Second, 100 * time.Hour: time.Minute} {
		for after, least := range map[time.Duration]time.Duration{0: want, time.Second: time.Second, time.Hour: want} {
			p := &plan{action: start, after: after}
			if p.postpone(ptr.To(metav1.NewTime(now.Add(-waited))), now); p.action != wait || p.after != least {
				t.Errorf("after %s: %+v, want %s", waited, p, least)
			}
		}
	}
}

// withDisks creates a VM with two disks: "blank", and "disk" of a source.
func (s subject) withDisks(spec, source string) {
	s.t.Helper()
	const storage = "storage: {resources: {requests: {storage: 1Gi}}}"
	object := s.object(spec + "\n  dataVolumeTemplates:\n  - {metadata: {name: disk, creationTimestamp: null, labels: {a: b}, annotations: {c: d}}, spec: {" + storage + ", " + source + "}}\n" +
		"  - {metadata: {name: blank}, spec: {" + storage + ", source: {blank: {}}}}" +
		strings.Replace(template, `{name: root, containerDisk: {image: "example.com/disk:1"}}`, "{name: root, dataVolume: {name: disk}}, {name: more, persistentVolumeClaim: {claimName: blank}}", 1))
	if err := s.client.Create(ctx, object); err != nil {
		s.t.Fatal(err)
	}
}

func (s subject) volume(name string) *unstructured.Unstructured {
	s.t.Helper()
	volume := &unstructured.Unstructured{}
	volume.SetGroupVersionKind(v1.DataVolumeGroupVersionKind)
	until(s.t, func() error { return s.client.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, volume) })
	return volume
}

// becomes writes how far a DataVolume is into its status, as CDI would, and makes the controller look at the
// VM.
func (s subject) becomes(name, phase, progress string) {
	s.t.Helper()
	volume := s.volume(name)
	patch := fmt.Sprintf(`{"status":{"phase":%q,"progress":%q}}`, phase, progress)
	if err := s.client.Status().Patch(ctx, volume,
		client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		s.t.Fatal(err)
	}
	s.look()
}

// look makes the controller look at the VM now, because nobody tells it of a change of other objects.
func (s subject) look() {
	s.t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"look":%q}}}`, rand.Text())
	if err := s.client.Patch(ctx, s.vm(), client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		s.t.Fatal(err)
	}
}

// says waits until a condition's message has all the words in it.
func (s subject) says(kind v1.ConditionType, words ...string) {
	s.t.Helper()
	until(s.t, func() error {
		c := s.vm().Status.Condition(kind)
		for _, word := range words {
			if c == nil || !strings.Contains(c.Message, word) {
				return fmt.Errorf("condition %s is %+v, want %q in it", kind, c, word)
			}
		}
		return nil
	})
}

func filled(s subject) {
	s.withDisks("runStrategy: Always", `source: {http: {url: "https://example.com"}}`)
	vm := s.is(v1.VirtualMachineStatusProvisioning)
	volume := s.volume("disk")
	if want := map[string]string{"a": "b"}; !maps.Equal(volume.GetLabels(), want) {
		s.t.Errorf("labels %v, want %v", volume.GetLabels(), want)
	}
	if want := map[string]string{"c": "d", "cdi.kubevirt.io/allowClaimAdoption": "true", "kubeqemu.io/service-account": "default"}; !maps.Equal(volume.GetAnnotations(), want) {
		s.t.Errorf("annotations %v, want %v", volume.GetAnnotations(), want)
	}
	if o := metav1.GetControllerOf(volume); o == nil || o.UID != vm.UID || !ptr.Deref(o.BlockOwnerDeletion, false) {
		s.t.Errorf("owner %+v", o)
	}
	if url, _, _ := unstructured.NestedString(volume.Object, "spec", "source", "http", "url"); url != "https://example.com" {
		s.t.Errorf("spec %v", volume.Object["spec"])
	}
	s.awaitEvents(v1.ReasonSuccessfulDataVolumeCreate)
	s.becomes("blank", "Succeeded", "100.0%")
	s.becomes("disk", "ImportInProgress", "42.0%")
	s.says(v1.ConditionProvisioning, "DataVolume disk is ImportInProgress, 42.0%")
	s.none()
	s.becomes("disk", "Failed", "N/A")
	s.is(v1.VirtualMachineStatusDataVolumeError)
	s.says(v1.ConditionFailure, "DataVolume disk failed")
	s.awaitEvents(v1.ReasonDataVolumeFailed)
	s.none()
	// As its owner deletes what failed, it is made again.
	if err := s.client.Delete(ctx, s.volume("disk")); err != nil {
		s.t.Fatal(err)
	}
	s.look()
	until(s.t, func() error {
		if s.volume("disk").GetUID() == volume.GetUID() {
			return errors.New("it is the DataVolume that failed")
		}
		return nil
	})
	s.becomes("disk", "Succeeded", "100.0%")
	s.vmi("")
	if vm := s.is(v1.VirtualMachineStatusStarting); vm.Status.Condition(v1.ConditionProvisioning) != nil ||
		vm.Status.Condition(v1.ConditionFailure) != nil {
		s.t.Errorf("conditions %+v", vm.Status.Conditions)
	}
}

// filledHalted: a halted VM's disks are filled too. A VM that is halted meanwhile is not started when they are
// filled.
func filledHalted(s subject) {
	s.withDisks("runStrategy: Always", "source: {blank: {}}")
	s.is(v1.VirtualMachineStatusProvisioning)
	vm := s.vm()
	s.change(vm, func() { vm.Spec.RunStrategy = ptr.To(v1.RunStrategyHalted) })
	s.becomes("disk", "ImportInProgress", "1%")
	s.says(v1.ConditionProvisioning, "disk is ImportInProgress, 1%")
	s.is(v1.VirtualMachineStatusProvisioning)
	s.becomes("disk", "Succeeded", "100%")
	s.becomes("blank", "WaitForFirstConsumer", "N/A")
	s.is(v1.VirtualMachineStatusStopped)
	s.none()
	s.change(vm, func() { vm.Spec.RunStrategy = ptr.To(v1.RunStrategyAlways) })
	s.vmi("")
}

func putOff(s subject) {
	s.withDisks("runStrategy: Halted", "source: {blank: {}}")
	first := s.volume("disk")
	vm := s.vm()
	s.change(vm, func() {
		metav1.SetMetaDataAnnotation(&vm.ObjectMeta, v1.ImmediateDataVolumeCreationAnnotation, "false")
	})
	s.poke()
	if err := s.client.Delete(ctx, first); err != nil {
		s.t.Fatal(err)
	}
	s.is(v1.VirtualMachineStatusStopped)
	s.poke()
	if err := s.client.Get(ctx, client.ObjectKeyFromObject(first), first); !apierrors.IsNotFound(err) {
		s.t.Errorf("it is made before the VM is to start: %v", err)
	}
	s.change(vm, func() { vm.Spec.RunStrategy = ptr.To(v1.RunStrategyManual) })
	s.asks(toStart())
	s.volume("disk")
	s.is(v1.VirtualMachineStatusProvisioning)
	s.becomes("disk", "Succeeded", "")
	s.becomes("blank", "Succeeded", "")
	s.vmi("")
}

// takenDisk: a VM does not start with a DataVolume that another object controls. It uses one that nobody controls.
func takenDisk(s subject) {
	volume := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"source": map[string]any{"upload": map[string]any{}}}}}
	volume.SetGroupVersionKind(v1.DataVolumeGroupVersionKind)
	volume.SetNamespace(s.namespace)
	volume.SetName("disk")
	volume.SetOwnerReferences([]metav1.OwnerReference{
		{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Name: "other", UID: "other", Controller: ptr.To(true)}})
	if err := s.client.Create(ctx, volume); err != nil {
		s.t.Fatal(err)
	}
	s.withDisks("runStrategy: Always", "source: {blank: {}}")
	s.awaitCondition(v1.ConditionFailure, v1.ReasonFailedDataVolumeCreate)
	s.says(v1.ConditionFailure, "DataVolume disk belongs to VirtualMachine other")
	s.becomes("disk", "Succeeded", "")
	s.none()
	if err := s.client.Patch(ctx, volume,
		client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"ownerReferences":null}}`))); err != nil {
		s.t.Fatal(err)
	}
	s.look()
	s.becomes("blank", "Succeeded", "") // it is made now: the first disk that is in the way ends the look
	s.vmi("")
	if o := metav1.GetControllerOf(s.volume("disk")); o != nil {
		s.t.Errorf("it got an owner: %+v", o)
	}
}

// grant lets the service account of the VM clone from a namespace.
func (s subject) grant(account, namespace string) {
	s.t.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "clone-" + s.namespace},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"cdi.kubevirt.io"}, Resources: []string{"datavolumes/source"},
			Verbs: []string{"create"}}}}
	binding := &rbacv1.RoleBinding{ObjectMeta: role.ObjectMeta,
		RoleRef:  rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: s.namespace, Name: account}}}
	if err := errors.Join(s.client.Create(ctx, role), s.client.Create(ctx, binding)); err != nil {
		s.t.Fatal(err)
	}
	s.look()
}

// cloned: a VM clones from another namespace only what its service account may clone.
func cloned(s subject) {
	images := s.subject(s.t).namespace
	s.withDisks("runStrategy: Always", "source: {pvc: {namespace: "+images+", name: golden}}")
	s.awaitCondition(v1.ConditionFailure, v1.ReasonUnauthorizedDataVolumeCreate)
	s.says(v1.ConditionFailure,
		"service account default of namespace "+s.namespace+" may not clone from namespace "+images,
		"create datavolumes/source.cdi.kubevirt.io")
	s.awaitEvents(v1.ReasonUnauthorizedDataVolumeCreate)
	s.none()
	vm := s.vm()
	s.change(vm, func() { vm.Spec.Template.Spec.ServiceAccountName = "cloner" })
	// Before the grant: the controller may look at the VM as it was until now once more.
	s.says(v1.ConditionFailure, "service account cloner")
	s.grant("default", images)
	s.none()
	s.change(vm, func() { vm.Spec.Template.Spec.ServiceAccountName = "" })
	s.is(v1.VirtualMachineStatusProvisioning)
	if name, _, _ := unstructured.NestedString(s.volume("disk").Object, "spec", "source", "pvc", "name"); name != "golden" {
		s.t.Errorf("spec %v", s.volume("disk").Object["spec"])
	}
}

// fromDataSource: the DataVolume that is made has the source that was checked, and names the DataSource's
// instancetype.
func fromDataSource(s subject) {
	images, secret := s.subject(s.t).namespace, s.subject(s.t).namespace
	source := func(name, spec string) {
		object := &unstructured.Unstructured{}
		text := "apiVersion: cdi.kubevirt.io/v1beta1\nkind: DataSource\nmetadata: {name: " + name + ", namespace: " + images +
			", labels: {instancetype.kubevirt.io/default-instancetype: small, other: x}}\nspec: {source: " + spec + "}\n"
		if err := sigsyaml.Unmarshal([]byte(text), &object.Object); err != nil {
			s.t.Fatal(err)
		}
		err := s.client.Create(ctx, object)
		if apierrors.IsAlreadyExists(err) {
			patch, _ := object.MarshalJSON()
			err = s.client.Patch(ctx, object, client.RawPatch("application/merge-patch+json", patch))
		}
		if err != nil {
			s.t.Fatal(err)
		}
		s.look()
	}
	s.withDisks("runStrategy: Always", "sourceRef: {kind: DataSource, namespace: "+images+", name: linux}")
	s.awaitCondition(v1.ConditionFailure, v1.ReasonUnauthorizedDataVolumeCreate)
	s.grant("default", images)
	s.says(v1.ConditionFailure, "DataSource "+images+"/linux does not exist")
	source("linux", "{pvc: {namespace: "+secret+", name: disk}}")
	s.says(v1.ConditionFailure, "may not clone from namespace "+secret)
	source("linux", "{pvc: null, dataSource: {namespace: "+images+", name: linux}}")
	s.says(v1.ConditionFailure, "is the last of more than")
	source("linux", "{dataSource: {namespace: "+images+", name: debian}}")
	source("debian", "{snapshot: {namespace: "+images+", name: v13}}")
	s.is(v1.VirtualMachineStatusProvisioning)
	volume := s.volume("disk")
	spec, _, _ := unstructured.NestedMap(volume.Object, "spec")
	if name, _, _ := unstructured.NestedString(spec, "source", "snapshot", "name"); name != "v13" ||
		spec["sourceRef"] != nil {
		s.t.Errorf("spec %v", spec)
	}
	if l := volume.GetLabels(); l["instancetype.kubevirt.io/default-instancetype"] != "small" || l["other"] != "" {
		s.t.Errorf("labels %v", l)
	}
}
