package stateclaim

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// moving is a VMI whose state a migration takes from one claim to another.
func moving(change func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "a-uid",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Name: "a", UID: "vm", Controller: ptr.To(true)}}}}
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m", SourcePersistentStatePVCName: "old", TargetPersistentStatePVCName: "new", Decision: v1.DecisionTarget,
		SourceNode: "node1", TargetNode: "node2", SourceState: &v1.MigrationSourceState{StartTimestamp: ptr.To(metav1.Unix(1, 0))}}
	if change != nil {
		change(vmi)
	}
	return vmi
}

func claim(name, copyOf string, leaving bool) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{v1.StateClaimLabel: "a"},
		OwnerReferences: moving(nil).OwnerReferences}}
	if copyOf != "" {
		c.Annotations = map[string]string{v1.StateCopyOfAnnotation: copyOf, v1.StateCopyOfUIDAnnotation: copyOf}
	}
	if leaving {
		c.DeletionTimestamp, c.Finalizers = ptr.To(metav1.Unix(1, 0)), []string{"kubernetes.io/pvc-protection"}
	}
	return c
}

// TestWhichClaimHasTheState: a copy counts once what it is a copy of is gone or going, and not before.
func TestWhichClaimHasTheState(t *testing.T) {
	usual := v1.StateClaimName("a", "vm")
	foreign := claim("old", "", false)
	foreign.OwnerReferences = nil
	for name, tt := range map[string]struct {
		claims []*corev1.PersistentVolumeClaim
		want   string
	}{
		"before the move":           {[]*corev1.PersistentVolumeClaim{claim("new", "old", false), claim("old", "", false)}, "old"},
		"the old one goes":          {[]*corev1.PersistentVolumeClaim{claim("old", "", true), claim("new", "old", false)}, "new"},
		"the old one is gone":       {[]*corev1.PersistentVolumeClaim{claim("new", "old", false)}, "new"},
		"the usual one goes":        {[]*corev1.PersistentVolumeClaim{claim(usual, "", true), claim("new", usual, false)}, "new"},
		"the second move":           {[]*corev1.PersistentVolumeClaim{claim("third", "new", false), claim("new", "old", false)}, "new"},
		"after the second move":     {[]*corev1.PersistentVolumeClaim{claim("third", "new", false), claim("new", "old", true)}, "third"},
		"the old one is no state":   {[]*corev1.PersistentVolumeClaim{foreign, claim("new", "old", false)}, "new"},
		"a copy of itself":          {[]*corev1.PersistentVolumeClaim{claim("new", "new", false)}, "new"},
		"the copy of a failed move": {[]*corev1.PersistentVolumeClaim{claim("old", "", false), claim("new", "old", true)}, "old"},
		"all go":                    {[]*corev1.PersistentVolumeClaim{claim("old", "", true)}, "old"},
	} {
		for range 2 { // in either order
			var list []corev1.PersistentVolumeClaim
			for _, c := range tt.claims {
				list = append(list, *c)
			}
			if found := Find(moving(nil), list); found == nil || found.Name != tt.want {
				t.Errorf("%s: %v, want %s", name, found, tt.want)
			}
			slices.Reverse(tt.claims)
		}
	}
}

// TestClaimIsOwnedByLabelAndOwner: a claim is a guest's by the label and the owner. A VMI's own claim has the name of such a claim, too.
func TestClaimIsOwnedByLabelAndOwner(t *testing.T) {
	alone := func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences = nil }
	usual := v1.StateClaimName("a", "a-uid")
	for name, tt := range map[string]struct {
		vmi   func(*v1.VirtualMachineInstance)
		claim string
		owner types.UID
		want  bool
	}{
		"a VM's":                       {nil, "restored", "vm", true},
		"another VM's":                 {nil, "restored", "other", false},
		"a VMI's":                      {alone, usual, "a-uid", true},
		"another VMI's":                {alone, usual, "other", false},
		"a VMI's, with another's name": {alone, "restored", "a-uid", false},
	} {
		vmi, c := moving(tt.vmi), claim(tt.claim, "", false)
		of := Owner(vmi)
		of.UID = tt.owner
		c.OwnerReferences = []metav1.OwnerReference{of}
		if got := IsOwned(vmi, c); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
		c.Labels = nil
		if IsOwned(vmi, c) {
			t.Errorf("%s, without the label: it is the guest's", name)
		}
	}
}

// TestStateIsAtTheTargetOnceDecided: after the decision the state is at the target, unless the guest never ran there.
func TestStateIsAtTheTargetOnceDecided(t *testing.T) {
	ended := func(reason string) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.Phase = v1.Failed
			vmi.Status.SetCondition(v1.VirtualMachineInstanceCondition{Type: v1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason}, metav1.Now())
		}
	}
	for name, tt := range map[string]struct {
		change func(*v1.VirtualMachineInstance)
		want   bool
	}{
		"decided":                  {nil, true},
		"undecided":                {func(vmi *v1.VirtualMachineInstance) { vmi.Status.MigrationState.Decision = "" }, false},
		"decided for the source":   {func(vmi *v1.VirtualMachineInstance) { vmi.Status.MigrationState.Decision = v1.DecisionSource }, false},
		"on the same claim":        {func(vmi *v1.VirtualMachineInstance) { vmi.Status.MigrationState.TargetPersistentStatePVCName = "old" }, false},
		"of an earlier controller": {func(vmi *v1.VirtualMachineInstance) { vmi.Status.MigrationState.TargetPersistentStatePVCName = "" }, false},
		"never moved":              {func(vmi *v1.VirtualMachineInstance) { vmi.Status.MigrationState = nil }, false},
		"only the target says so": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.MigrationState.SourceState = nil
			vmi.Status.MigrationState.TargetState = &v1.MigrationTargetState{DomainReadyTimestamp: ptr.To(metav1.Now())}
		}, false},
		"the source has prepared":     {func(vmi *v1.VirtualMachineInstance) { vmi.Status.MigrationState.SourceState.StartTimestamp = nil }, false},
		"ended there":                 {ended("GuestShutdown"), true},
		"its end is not known":        {ended(v1.ReasonPodDeleted), true},
		"QEMU did not start there":    {ended("StartFailed"), false},
		"QEMU was not asked to start": {ended("NeverStarted"), false},
		"a later start failed": {func(vmi *v1.VirtualMachineInstance) {
			ended("StartFailed")(vmi)
			vmi.Status.MigrationState.TargetState = &v1.MigrationTargetState{DomainReadyTimestamp: ptr.To(metav1.Now())}
		}, true},
	} {
		if got := HasMoved(moving(tt.change)); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
}

// TestOnlyTheLeftClaimIsDeleted: the claim that the state has left is deleted, and nothing else.
func TestOnlyTheLeftClaimIsDeleted(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	foreign := claim("old", "", false)
	foreign.OwnerReferences[0].UID = "another"
	restored := claim("old", "", false)
	restored.UID = "restored"
	foreignCopy := claim("foreign", "old", false)
	foreignCopy.OwnerReferences[0].UID = "another"
	silent := moving(func(vmi *v1.VirtualMachineInstance) { vmi.Status.MigrationState.SourceState = nil })
	unnamed := claim("new", "old", false)
	delete(unnamed.Annotations, v1.StateCopyOfAnnotation)
	for name, tt := range map[string]struct {
		vmi    *v1.VirtualMachineInstance
		claims []client.Object
		want   string // the claims that are deleted, the one that the state has left first
		kept   string
	}{
		"moved":                           {moving(nil), []client.Object{claim("old", "", false), claim("new", "old", false)}, "old", ""},
		"not moved":                       {moving(func(vmi *v1.VirtualMachineInstance) { vmi.Status.MigrationState.Decision = v1.DecisionSource }), []client.Object{claim("old", "", false), claim("new", "old", false)}, "", ""},
		"done":                            {moving(nil), []client.Object{claim("new", "old", false)}, "", ""},
		"being done":                      {moving(nil), []client.Object{claim("old", "", true), claim("new", "old", false)}, "", ""},
		"the copy is gone":                {moving(nil), []client.Object{claim("old", "", false)}, "", "new, to which the state has moved, is gone"},
		"the copy goes":                   {moving(nil), []client.Object{claim("old", "", false), claim("new", "old", true)}, "", "is being deleted"},
		"no copy of the old":              {moving(nil), []client.Object{claim("old", "", false), claim("new", "older", false)}, "", "of the claim new do not name it"},
		"a user has removed the name":     {moving(nil), []client.Object{claim("old", "", false), unnamed}, "", "of the claim new do not name it"},
		"only the target says so":         {silent, []client.Object{claim("old", "", false), claim("new", "old", false)}, "", "node1 has not written that it sends"},
		"a failed move left another copy": {moving(nil), []client.Object{claim("old", "", false), claim("new", "old", false), claim("left", "old", false)}, "old left", ""},
		"another guest's copy":            {moving(nil), []client.Object{claim("old", "", false), claim("new", "old", false), foreignCopy}, "old", ""},
		"restored from a backup":          {moving(nil), []client.Object{restored, claim("new", "old", false)}, "", "or has made old anew"},
		"somebody else's":                 {moving(nil), []client.Object{foreign, claim("new", "old", false)}, "", ""},
	} {
		c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(tt.claims...).Build()
		got, err := HandOver(t.Context(), c, c, tt.vmi)
		var left corev1.PersistentVolumeClaimList
		if err := errors.Join(err, c.List(t.Context(), &left)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		gone := strings.Fields(tt.want)
		want := len(tt.claims) - len(gone)
		if got.Deleted != strings.Join(gone[:min(len(gone), 1)], "") || len(left.Items) != want {
			t.Errorf("%s: deleted %q, want %q; %d claims are left, want %d", name, got.Deleted, tt.want, len(left.Items), want)
		}
		if (got.Kept == "") != (tt.kept == "") || !strings.Contains(got.Kept, tt.kept) {
			t.Errorf("%s: kept because %q, want %q", name, got.Kept, tt.kept)
		}
	}
}

// TestCopyIsFoundByTheVMsLabel: the copy is found by the VM's label, whatever somebody has made of the label of the claim that the state leaves.
func TestCopyIsFoundByTheVMsLabel(t *testing.T) {
	from := claim("old", "", false)
	from.Labels[v1.StateClaimLabel] = "changed"
	for _, name := range []string{"a", strings.Repeat("long", 20)} {
		made := Copy(moving(func(vmi *v1.VirtualMachineInstance) { vmi.Name = name }), from)
		if got := made.Labels[v1.StateClaimLabel]; got != v1.LabelOfName(name) || len(got) > 63 || made.Name != "new" || made.Annotations[v1.StateCopyOfAnnotation] != "old" {
			t.Errorf("%s: %+v", name, made.ObjectMeta)
		}
	}
}
