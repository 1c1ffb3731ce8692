package claimcopy

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// moving returns a VMI whose guest a migration brings to another node. Its state leaves the claim old for the claim
// new. Its disks leave root-0 for a copy of root, and data-0 for the claim next, which a user named.
func moving(change func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "a-uid",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Name: "a", UID: "vm",
			Controller: ptr.To(true)}}}}
	info := func(name string) *v1.PersistentVolumeClaimInfo { return &v1.PersistentVolumeClaimInfo{ClaimName: name} }
	on := func(claim string) *v1.DataVolumeSource { return &v1.DataVolumeSource{Name: claim} }
	vmi.Spec.Volumes = []v1.Volume{{Name: "disk", DataVolume: on("root")}, {Name: "data", DataVolume: on("data-0")}}
	vmi.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{
		{VolumeName: "disk", SourcePVCInfo: info("root-0"), DestinationPVCInfo: info(v1.CopyName("root", "m"))},
		{VolumeName: "data", SourcePVCInfo: info("data-0"), DestinationPVCInfo: info("next")}}
	vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "disk", PersistentVolumeClaimInfo: info("root-0")}}
	vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m",
		SourcePersistentStatePVCName: "old", TargetPersistentStatePVCName: "new", Decision: v1.DecisionTarget,
		SourceNode: "node1", TargetNode: "node2",
		SourceState: &v1.MigrationSourceState{StartTimestamp: ptr.To(metav1.Unix(1, 0))}}
	if change != nil {
		change(vmi)
	}
	return vmi
}

// migration returns the migration m of the VMI.
func migration() *v1.VirtualMachineInstanceMigration {
	m := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m", UID: "m"}}
	m.Spec.VMIName = "a"
	return m
}

// claim returns a claim with state. The migration m has made the claim, if it is a copy.
func claim(name, copyOf string, leaving bool) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
		UID: types.UID(name), Labels: map[string]string{v1.StateClaimLabel: "a"},
		OwnerReferences: moving(nil).OwnerReferences}}
	if copyOf != "" {
		c.Labels[v1.CopyOfLabel] = "m"
		c.Annotations = map[string]string{v1.CopyOfAnnotation: copyOf, v1.CopyOfUIDAnnotation: copyOf}
	}
	if leaving {
		c.DeletionTimestamp, c.Finalizers = ptr.To(metav1.Unix(1, 0)), []string{"kubernetes.io/pvc-protection"}
	}
	return c
}

// store is an API server that is made up, and the Copier there.
type store struct {
	*Copier
	t      *testing.T
	events chan string
}

func newStore(t *testing.T, objects ...client.Object) *store {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), v1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	recorder := events.NewFakeRecorder(10)
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithInterceptorFuncs(interceptor.Funcs{Delete: deleted(t)}).Build()
	return &store{&Copier{Client: c, Live: c, Events: recorder}, t, recorder.Events}
}

// deleted returns a delete that heeds the UID, as the API server does and the fake client does not. Nothing is deleted
// that is being deleted.
func deleted(t *testing.T) func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error {
	return func(ctx context.Context, to client.WithWatch, o client.Object, options ...client.DeleteOption) error {
		there, asked := &corev1.PersistentVolumeClaim{}, (&client.DeleteOptions{}).ApplyOptions(options)
		if err := to.Get(ctx, client.ObjectKeyFromObject(o), there); err != nil {
			return err
		}
		if there.DeletionTimestamp != nil {
			t.Errorf("claim %s is deleted once more", there.Name)
		}
		if p := asked.Preconditions; p != nil && p.UID != nil && *p.UID != there.UID {
			return apierrors.NewConflict(schema.GroupResource{}, there.Name, errors.New("UID"))
		}
		return to.Delete(ctx, o, options...)
	}
}

// has returns the names of the claims that are there to stay.
func (s *store) has() string {
	s.t.Helper()
	var list corev1.PersistentVolumeClaimList
	if err := s.Client.List(s.t.Context(), &list); err != nil {
		s.t.Fatal(err)
	}
	var names []string
	for _, c := range list.Items {
		if c.DeletionTimestamp == nil {
			names = append(names, c.Name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// said returns the first event, or "".
func (s *store) said() string {
	if len(s.events) == 0 {
		return ""
	}
	return <-s.events
}

// TestOnlyTheLeftClaimIsDeleted: the claim that the state has left is deleted, and nothing else.
func TestOnlyTheLeftClaimIsDeleted(t *testing.T) {
	type claims = []client.Object
	old, copied := claim("old", "", false), claim("new", "old", false)
	foreign := claim("old", "", false)
	foreign.OwnerReferences[0].UID = "another"
	restored := claim("old", "", false)
	restored.UID = "restored"
	foreignCopy := claim("foreign", "old", false)
	foreignCopy.OwnerReferences[0].UID = "another"
	left, ofOlder := claim("left", "old", false), claim("new", "older", false)
	ofOlder.Annotations[v1.CopyOfUIDAnnotation] = "old"
	unnamed := claim("new", "old", false)
	delete(unnamed.Annotations, v1.CopyOfAnnotation)
	stays := func(vmi *v1.VirtualMachineInstance) { vmi.Status.MigrationState.Decision = v1.DecisionSource }
	silent := func(vmi *v1.VirtualMachineInstance) { vmi.Status.MigrationState.SourceState = nil }
	for name, tt := range map[string]struct {
		change func(*v1.VirtualMachineInstance)
		claims claims
		want   string // the claims that are left
		said   string
	}{
		"moved":                           {nil, claims{old, copied}, "new", "has moved to claim new"},
		"not moved":                       {stays, claims{old, copied}, "new old", ""},
		"done":                            {nil, claims{copied}, "new", ""},
		"being done":                      {nil, claims{claim("old", "", true), copied}, "new", ""},
		"the copy is gone":                {nil, claims{old}, "old", "new, to which the state has moved, is gone"},
		"the copy goes":                   {nil, claims{old, claim("new", "old", true)}, "old", "is being deleted"},
		"no copy of the old":              {nil, claims{old, ofOlder}, "new old", "of the claim new do not name it"},
		"a user has removed the name":     {nil, claims{old, unnamed}, "new old", "of the claim new do not name it"},
		"only the target says so":         {silent, claims{old, copied}, "new old", "node1 has not written that it sends"},
		"a failed move left another copy": {nil, claims{old, copied, left}, "new", "Deleted claim old"},
		"such a copy goes":                {nil, claims{old, copied, claim("left", "old", true)}, "new", "Deleted claim old"},
		"another guest's copy":            {nil, claims{old, copied, foreignCopy}, "foreign new", "Deleted claim old"},
		"restored from a backup":          {nil, claims{restored, copied}, "new old", "or has made old anew"},
		"somebody else's":                 {nil, claims{foreign, copied}, "new old", ""},
	} {
		s := newStore(t, tt.claims...)
		if err := s.HandOver(t.Context(), moving(tt.change)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if has := s.has(); has != tt.want {
			t.Errorf("%s: there are %q, want %q", name, has, tt.want)
		}
		if said := s.said(); (said == "") != (tt.said == "") || !strings.Contains(said, tt.said) {
			t.Errorf("%s: said %q, want %q", name, said, tt.said)
		}
	}
}

// TestMakeLooksAtWhatIsThere: the new claims are made once, of what the API server has.
func TestMakeLooksAtWhatIsThere(t *testing.T) {
	machine := func(uid types.UID) *v1.VirtualMachine {
		return &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: uid}}
	}
	leaving := machine("vm")
	leaving.DeletionTimestamp, leaving.Finalizers = ptr.To(metav1.Unix(1, 0)), []string{v1.VMFinalizer}
	alone := moving(func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences = nil })
	there := func(more ...client.Object) []client.Object {
		return append(more, claim("root-0", "", false), claim("next", "", false), claim("old", "", false))
	}
	const vmGone = "the VirtualMachine, to which the claim for the disk of volume disk would belong, is gone"
	for name, tt := range map[string]struct {
		vmi     *v1.VirtualMachineInstance
		objects []client.Object
		why     string
	}{
		"all is there":      {moving(nil), there(machine("vm")), ""},
		"no VM":             {moving(nil), there(), vmGone},
		"another VM":        {moving(nil), there(machine("another")), vmGone},
		"the VM goes":       {moving(nil), there(leaving), vmGone},
		"a VMI without one": {alone, there(machine("vm")), vmGone},
		"an older copy": {moving(nil), []client.Object{machine("vm"), claim("root-0", "", false), claim("next", "", false),
			claim("old", "older", false), claim("older", "", false)}, `Delete the claim "older"`},
	} {
		s := newStore(t, tt.objects...)
		for range 2 {
			why, err := s.Make(t.Context(), tt.vmi, migration())
			if err != nil || (why == "") != (tt.why == "") || !strings.Contains(why, tt.why) {
				t.Errorf("%s: %q, want %q (%v)", name, why, tt.why, err)
			}
		}
		want := "new next old root-0 " + v1.CopyName("root", "m")
		if tt.why == "" && (s.has() != want || len(s.events) != 2) {
			t.Errorf("%s: there are %q, want %q; %d events", name, s.has(), want, len(s.events))
		}
	}
}

// TestRemoveLooksAtWhatCounts: the claims that a failed migration has made go, unless what the API server has counts on
// them.
func TestRemoveLooksAtWhatCounts(t *testing.T) {
	made := claim(v1.CopyName("root", "m"), "root", false)
	state := claim(v1.StateCopyName("a", "vm", "m"), "old", false)
	delete(made.Labels, v1.StateClaimLabel)
	like := made.DeepCopy() // its maker has taken over what the migration's claim has
	like.Name = "like"
	others := made.DeepCopy()
	others.Name, others.Labels[v1.CopyOfLabel] = v1.CopyName("root", "n"), "n"
	goes := claim(v1.CopyName("data", "m"), "data", true)
	holds := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "vm"}}
	holds.Status.MovedClaims = []v1.MovedClaim{{ClaimName: "root", HeldBy: made.Name}}
	for name, tt := range map[string]struct {
		objects []client.Object
		want    string
	}{
		"all is gone":         {nil, state.Name},
		"the old claim stays": {[]client.Object{claim("old", "", false)}, "old"},
		"the VM counts on it": {[]client.Object{holds}, state.Name + " " + made.Name},
		"the VMI does not":    {[]client.Object{holds, moving(nil)}, state.Name},
	} {
		s := newStore(t, append(tt.objects, made.DeepCopy(), state.DeepCopy(), like, others, goes)...)
		want := strings.Fields(tt.want + " " + like.Name + " " + others.Name)
		slices.Sort(want)
		if err := s.Remove(t.Context(), migration()); err != nil || s.has() != strings.Join(want, " ") {
			t.Errorf("%s: there are %q, want %q (%v)", name, s.has(), want, err)
		}
	}
}

// TestClaimMadeAnewStays: a claim that somebody deletes and makes anew, after it was looked at and before it is
// deleted, stays. Claims are looked at once more.
func TestClaimMadeAnewStays(t *testing.T) {
	for name, act := range map[string]func(*store) error{
		"after a failure": func(s *store) error { return s.Remove(s.t.Context(), migration()) },
		"after a success": func(s *store) error { return s.HandOver(s.t.Context(), moving(nil)) },
	} {
		made := claim(v1.StateCopyName("a", "vm", "m"), "old", false)
		s := newStore(t, made, claim("old", "", false), claim("new", "old", false))
		before := s.has()
		s.Live = interceptor.NewClient(s.Client.(client.WithWatch), interceptor.Funcs{List: func(ctx context.Context,
			to client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			err := to.List(ctx, list, options...)
			for _, name := range strings.Fields(before) {
				anew := claim(name, "", false)
				err = errors.Join(err, to.Delete(ctx, anew))
				anew.UID = "anew"
				err = errors.Join(err, to.Create(ctx, anew))
			}
			return err
		}})
		if err := act(s); kit.IgnoreConflict(err) == nil || s.has() != before || s.said() != "" {
			t.Errorf("%s: there are %q, want %q (%v)", name, s.has(), before, err)
		}
	}
}

// TestWhichNewClaimsAMigrationMakes: a migration makes the claims of policies and of state, and says what prevents
// that. A user makes the claims that the user has named.
func TestWhichNewClaimsAMigrationMakes(t *testing.T) {
	list := replacements(moving(nil))
	if len(list) != 3 || list[0].wish != byPolicy || list[1].wish != byUser || list[2].wish != ofState {
		t.Fatalf("replaced are %+v", list)
	}
	disk, user, state := list[0], list[1], list[2]
	ofDisk := claim(disk.to, "root", false)
	delete(ofDisk.Labels, v1.StateClaimLabel)
	others := ofDisk.DeepCopy()
	others.OwnerReferences[0].UID = "another"
	earlier := ofDisk.DeepCopy()
	earlier.Labels[v1.CopyOfLabel] = "n"
	leaving := ofDisk.DeepCopy()
	leaving.DeletionTimestamp = ptr.To(metav1.Unix(1, 0))
	unlabelled := claim("new", "old", false)
	delete(unlabelled.Labels, v1.StateClaimLabel)
	bare := claim("old", "", false)
	bare.Labels = nil
	copied, older := claim("old", "older", false), claim("older", "", false)
	foreign := claim("older", "", false)
	foreign.OwnerReferences[0].UID = "another"
	for name, tt := range map[string]struct {
		of    replacement
		found found
		makes bool
		why   string
	}{
		"a disk":                           {disk, found{from: bare}, true, ""},
		"a disk, whose claim goes":         {disk, found{from: claim("root-0", "", true)}, true, ""},
		"a disk, done":                     {disk, found{to: ofDisk}, false, ""},
		"a disk, without its claim":        {disk, found{}, false, `the claim "root-0" with the disk of volume disk is gone`},
		"a disk, without the VM":           {disk, found{from: bare, vmGone: true}, false, "the VirtualMachine, to which"},
		"a disk, another's in the way":     {disk, found{to: others}, false, "is in the way; delete it"},
		"a disk, of another migration":     {disk, found{to: earlier}, false, "is in the way; delete it"},
		"a disk, the new claim goes":       {disk, found{to: leaving}, false, "is being deleted"},
		"a user's":                         {user, found{to: bare}, false, ""},
		"a user's, gone":                   {user, found{}, false, `"next", to which the disk of volume data`},
		"a user's, which goes":             {user, found{to: leaving}, false, "is being deleted"},
		"state":                            {state, found{from: claim("old", "", false)}, true, ""},
		"state, done":                      {state, found{to: claim("new", "old", false)}, false, ""},
		"state, the new claim's label":     {state, found{to: unlabelled}, false, "is in the way; delete it"},
		"state, without its claim":         {state, found{}, false, `the claim "old" with the guest's state is gone`},
		"state, whose claim goes":          {state, found{from: claim("old", "", true)}, false, "is being deleted"},
		"state, on nobody's claim":         {state, found{from: bare}, false, "does not have the label"},
		"state, on a copy":                 {state, found{from: copied, older: claim("older", "", true)}, true, ""},
		"state, on a copy of another's":    {state, found{from: copied, older: foreign}, true, ""},
		"state, on a copy, the older stay": {state, found{from: copied, older: older}, false, `Delete the claim "older"`},
	} {
		makes, why := tt.of.decide(moving(nil), tt.found)
		if makes != tt.makes || (why == "") != (tt.why == "") || !strings.Contains(why, tt.why) {
			t.Errorf("%s: made %t, because %q; want %t, %q", name, makes, why, tt.makes, tt.why)
		}
	}
}

// TestNewClaimIsLikeTheOldOne: a new claim is like the old one, without its volume. The copy of state is found by the
// VM's label, whatever somebody has made of the label of the claim that the state leaves.
func TestNewClaimIsLikeTheOldOne(t *testing.T) {
	from := claim("old", "", false)
	from.Labels[v1.StateClaimLabel] = "changed"
	from.Spec = corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("local"), VolumeName: "pv",
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("5Gi")}}}
	for _, name := range []string{"a", strings.Repeat("long", 20)} {
		vmi := moving(func(vmi *v1.VirtualMachineInstance) { vmi.Name = name })
		for _, r := range replacements(vmi) {
			made, size, label := r.claim(vmi, from), "5Gi", ""
			if r.wish == ofState {
				size, label = "10Mi", v1.LabelOfName(name)
			}
			if made.Labels[v1.StateClaimLabel] != label || len(label) > 63 || made.Labels[v1.CopyOfLabel] != "m" ||
				made.Name != r.to || made.Annotations[v1.CopyOfAnnotation] != r.of || made.Spec.VolumeName != "" ||
				*made.Spec.StorageClassName != "local" || made.Spec.Resources.Requests.Storage().String() != size {
				t.Errorf("%s, %s: %+v", name, r.what, made)
			}
		}
	}
}

// TestClaimOfAFailedMigrationIsKeptIfItCounts: a claim that a failed migration has made is kept if the guest's disk or
// state is there.
func TestClaimOfAFailedMigrationIsKeptIfItCounts(t *testing.T) {
	made := claim(v1.CopyName("root", "m"), "root", false)
	delete(made.Labels, v1.StateClaimLabel)
	state := claim(v1.StateCopyName("a", "vm", "m"), "old", false)
	relabelled := state.DeepCopy()
	relabelled.Labels[v1.StateClaimLabel] = "other"
	holds := func(uid types.UID) *v1.VirtualMachine {
		vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{UID: uid}}
		vm.Status.MovedClaims = []v1.MovedClaim{{ClaimName: "root", HeldBy: made.Name}}
		return vm
	}
	knows := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{UID: "vm"}}
	has := moving(func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.VolumeStatus[0].PersistentVolumeClaimInfo.ClaimName = made.Name
	})
	attached := moving(func(vmi *v1.VirtualMachineInstance) {
		on := &v1.PersistentVolumeClaimVolumeSource{ClaimName: made.Name}
		vmi.Spec.Volumes = append(vmi.Spec.Volumes, v1.Volume{Name: "more", PersistentVolumeClaim: on})
	})
	next := moving(func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Volumes = nil })
	foreign := moving(func(vmi *v1.VirtualMachineInstance) { vmi.OwnerReferences[0].UID = "another" })
	source := moving(func(vmi *v1.VirtualMachineInstance) { vmi.Status.MigrationState.Decision = v1.DecisionSource })
	later := moving(func(vmi *v1.VirtualMachineInstance) { vmi.Status.MigrationState.MigrationUID = "n" })
	laterFailed := later.DeepCopy()
	laterFailed.Status.MigrationState.Decision = v1.DecisionSource
	old, leaving := claim("old", "", false), claim("old", "", true)
	for name, tt := range map[string]struct {
		claim *corev1.PersistentVolumeClaim
		vmi   *v1.VirtualMachineInstance
		vm    *v1.VirtualMachine
		from  *corev1.PersistentVolumeClaim
		want  bool
	}{
		"the guest has the disk there":              {made, has, nil, nil, true},
		"the guest has it at the source":            {made, moving(nil), holds("vm"), nil, false},
		"the guest has it as another disk":          {made, attached, nil, nil, true},
		"all is gone":                               {made, nil, nil, nil, false},
		"the VM counts on it":                       {made, nil, holds("vm"), nil, true},
		"the VM does not":                           {made, nil, knows, nil, false},
		"another VM of the name":                    {made, nil, holds("another"), nil, false},
		"another VM's VMI":                          {made, foreign, holds("vm"), nil, true},
		"the next VMI does not have the disk":       {made, next, holds("vm"), nil, true},
		"state, decided for the source":             {state, source, nil, nil, false},
		"state, at the target":                      {state, moving(nil), nil, old, true},
		"state, of an earlier migration":            {state, later, nil, old, false},
		"state, of one before a failed one":         {state, laterFailed, nil, nil, true},
		"state, the VMI is gone":                    {state, nil, nil, old, false},
		"state, the VMI and the old claim go":       {state, nil, nil, leaving, true},
		"state, the VMI and the old claim are gone": {state, nil, nil, nil, true},
		"state, somebody has changed the label":     {relabelled, source, nil, old, true},
	} {
		g := guest{migration(), wishOf(tt.claim, migration()), tt.vmi, tt.vm, tt.from}
		if got := g.countsOn(tt.claim); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
}

// TestClaimThatSomebodyTookAwayIsLeftAlone: a claim goes after a failure only if the migration has made it, for a disk
// or for state, and if it is still the guest's. It may have any name that a migration gives.
func TestClaimThatSomebodyTookAwayIsLeftAlone(t *testing.T) {
	owned := func(name, kind, by string) *corev1.PersistentVolumeClaim {
		c := claim(name, "root", false)
		c.OwnerReferences[0].Kind, c.OwnerReferences[0].Name = kind, by
		return c
	}
	disk, state, long := v1.CopyName("root", "m"), v1.StateCopyName("a", "vm", "m"), strings.Repeat("l", 253)
	const vm, vmi = "VirtualMachine", "VirtualMachineInstance"
	nobodys, relabelled, other := owned(disk, vm, "a"), owned(disk, vm, "a"), owned(disk, vm, "a")
	nobodys.OwnerReferences = nil
	relabelled.Labels[v1.CopyOfLabel] = "n"
	other.Annotations[v1.CopyOfAnnotation] = "data"
	called := func(disk string) *corev1.PersistentVolumeClaim {
		c := owned(v1.CopyName(disk, "m"), vm, "a")
		c.Annotations[v1.CopyOfAnnotation] = disk
		return c
	}
	for name, tt := range map[string]struct {
		claim *corev1.PersistentVolumeClaim
		want  wish
	}{
		"the VM's":                         {owned(disk, vm, "a"), byPolicy},
		"another VM's":                     {owned(disk, vm, "b"), ""},
		"nobody's":                         {nobodys, ""},
		"of another migration":             {relabelled, ""},
		"of another disk":                  {other, ""},
		"another claim, like it":           {owned("root-1", vm, "a"), ""},
		"of a disk called as state is":     {called(v1.StateClaimName("a", "vm")), byPolicy},
		"of a disk with a long name":       {called(long), byPolicy},
		"the VM's, of state":               {owned(state, vm, "a"), ofState},
		"another VM's, of state":           {owned(v1.StateCopyName("b", "vm", "m"), vm, "b"), ""},
		"a VMI's":                          {owned(disk, vmi, "a"), ""},
		"a VMI's, of state":                {owned(state, vmi, "a"), ofState},
		"another claim, like one of state": {owned("persistent-state-for-a-1", vmi, "a"), ""},
		"a pod's, of a name":               {owned(state, "Pod", "a"), ""},
	} {
		if got := wishOf(tt.claim, migration()); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
