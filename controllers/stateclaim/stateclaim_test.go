package stateclaim

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

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
		c.Annotations = map[string]string{v1.CopyOfAnnotation: copyOf}
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
