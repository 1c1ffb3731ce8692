package migration

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// leaver makes a VMI whose guest an eviction asks to leave node1.
func (c *cluster) leaver(name string, edit func(*v1.VirtualMachineInstance)) *v1.VirtualMachineInstance {
	c.t.Helper()
	vmi := c.vm(name, "node1")
	vmi.Spec.EvictionStrategy = ptr.To(v1.EvictionStrategyLiveMigrate)
	vmi.Status.EvacuationNodeName = "node1"
	edit(vmi)
	status := vmi.Status
	if err := c.client.Update(c.t.Context(), vmi); err != nil {
		c.t.Fatal(err)
	}
	vmi.Status = status
	if err := c.client.Status().Update(c.t.Context(), vmi); err != nil {
		c.t.Fatal(err)
	}
	return vmi
}

// evacuates reconciles a VMI twice, as two events do, and returns its migrations.
func (c *cluster) evacuates(vmi *v1.VirtualMachineInstance) ([]v1.VirtualMachineInstanceMigration, time.Duration) {
	c.t.Helper()
	return c.updates(&Mover{Client: c.client, Live: c.client, Events: c.events, Clock: c.clock}, vmi)
}

// TestEvictionMakesOneMigration: a guest that an eviction asks to leave its node gets one migration, before those of users.
func TestEvictionMakesOneMigration(t *testing.T) {
	for name, n := range map[string]struct {
		edit func(*v1.VirtualMachineInstance)
		want int
	}{
		"LiveMigrate": {func(*v1.VirtualMachineInstance) {}, 1},
		"LiveMigrateIfPossible": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.EvictionStrategy = ptr.To(v1.EvictionStrategyLiveMigrateIfPossible)
		}, 1},
		"External":     {func(vmi *v1.VirtualMachineInstance) { vmi.Spec.EvictionStrategy = ptr.To(v1.EvictionStrategyExternal) }, 0},
		"no strategy":  {func(vmi *v1.VirtualMachineInstance) { vmi.Spec.EvictionStrategy = nil }, 0},
		"not asked":    {func(vmi *v1.VirtualMachineInstance) { vmi.Status.EvacuationNodeName = "" }, 0},
		"it has left":  {func(vmi *v1.VirtualMachineInstance) { vmi.Status.NodeName = "node2" }, 0},
		"it has ended": {func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Succeeded }, 0},
		"it cannot move": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Bridge: &v1.InterfaceBridge{}}}
		}, 0},
		"it moves": {func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m"}
		}, 0},
	} {
		c := newCluster(t)
		vmi := c.leaver("a", n.edit)
		made, _ := c.evacuates(vmi)
		if len(made) != n.want {
			t.Errorf("%s: %d migrations", name, len(made))
			continue
		}
		for _, m := range made {
			if !strings.HasPrefix(m.Name, "kubevirt-evacuation-") || m.Namespace != vmi.Namespace || m.Spec.VMIName != "a" || m.EffectivePriority() != v1.PrioritySystemCritical ||
				m.Annotations[v1.EvacuationMigrationAnnotation] != "node1" || len(m.OwnerReferences) != 1 || m.OwnerReferences[0].UID != vmi.UID {
				t.Errorf("%s: %+v", name, m)
			}
		}
	}
	c := newCluster(t)
	vmi := c.leaver("a", func(*v1.VirtualMachineInstance) {})
	c.migration("of-a-user", "a")
	if made, _ := c.evacuates(vmi); len(made) != 2 {
		t.Errorf("beside a user's migration that waits: %d migrations", len(made))
	}
	c = newCluster(t)
	vmi = c.leaver("a", func(*v1.VirtualMachineInstance) {})
	own := c.migration("of-a-user", "a")
	own.Status.SetPhase(v1.MigrationScheduling, metav1.NewTime(c.clock.Now()))
	if err := c.client.Status().Update(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	if made, _ := c.evacuates(vmi); len(made) != 1 {
		t.Errorf("beside a user's migration that has begun: %d migrations", len(made))
	}
}

// named has a VMI say that a user named a claim for its disk.
func (c *cluster) named(claim string) *v1.VirtualMachineInstance {
	c.t.Helper()
	c.onClaim()
	vmi := &v1.VirtualMachineInstance{}
	if err := c.client.Get(c.t.Context(), client.ObjectKey{Namespace: "default", Name: "a"}, vmi); err != nil {
		c.t.Fatal(err)
	}
	c.names(vmi, claim)
	return vmi
}

func (c *cluster) names(vmi *v1.VirtualMachineInstance, claim string) {
	c.t.Helper()
	vmi.Status.VolumeStatus[0].Moves = false
	vmi.Status.VolumeStatus[0].MovesTo = &v1.PersistentVolumeClaimInfo{ClaimName: claim, VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem)}
	if err := c.client.Status().Update(c.t.Context(), vmi); err != nil {
		c.t.Fatal(err)
	}
}

// updating is a migration with a UID in place of one without: the fake API server gives none.
func (c *cluster) updating(made *v1.VirtualMachineInstanceMigration) *v1.VirtualMachineInstanceMigration {
	c.t.Helper()
	made.Finalizers = nil
	if err := errors.Join(c.client.Update(c.t.Context(), made), c.client.Delete(c.t.Context(), made)); err != nil {
		c.t.Fatal(err)
	}
	m := c.migration("m", made.Spec.VMIName)
	m.Annotations = made.Annotations
	if err := c.client.Update(c.t.Context(), m); err != nil {
		c.t.Fatal(err)
	}
	return m
}

// TestVolumeUpdateMakesOneMigration: a guest whose user named another claim for its disk gets one migration, which copies the disk to that claim and
// makes none.
func TestVolumeUpdateMakesOneMigration(t *testing.T) {
	c := newCluster(t)
	vmi := c.named("next")
	c.make(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "next"}})
	made, _ := c.evacuates(vmi)
	if len(made) != 1 || !strings.HasPrefix(made[0].Name, "kubevirt-workload-update-") || made[0].EffectivePriority() != v1.PrioritySystemMaintenance || made[0].Annotations[v1.VolumeUpdateAnnotation] != vmi.VolumeUpdate() {
		t.Fatalf("migrations %+v", made)
	}
	job := c.updating(&made[0])
	c.comes(job, v1.MigrationRunning)
	_, now := c.steps(job)
	if got := now.Status.MigratedVolumes; len(got) != 1 || got[0].SourcePVCInfo.ClaimName != "root-0" || got[0].DestinationPVCInfo.ClaimName != "next" {
		t.Errorf("the status says %+v", got)
	}
	if claims := c.claims(); len(claims) != 1 || claims[0].Name != "next" {
		t.Errorf("claims %+v", claims)
	}
	c.arrives(job)
	m, now := c.steps(job)
	if m.Status.Phase != v1.MigrationSucceeded || now.Claim(&now.Spec.Volumes[0]).Name != "next" || now.Spec.Volumes[0].Claim().Name != "next" || causeOf(now, false) != nil {
		t.Errorf("%s, the disk is on %s", m.Status.Phase, now.Claim(&now.Spec.Volumes[0]).Name)
	}
}

// TestMigrationToUnwantedClaimsEnds: a migration to claims that nobody wants any more ends, and the claim stays.
func TestMigrationToUnwantedClaimsEnds(t *testing.T) {
	for name, edit := range map[string]func(*v1.VirtualMachineInstance){
		"the old claim again": func(vmi *v1.VirtualMachineInstance) { vmi.Status.VolumeStatus[0].MovesTo = nil },
		"a third claim":       func(vmi *v1.VirtualMachineInstance) { vmi.Status.VolumeStatus[0].MovesTo.ClaimName = "third" },
	} {
		c := newCluster(t)
		vmi := c.named("next")
		c.make(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "next"}})
		made, _ := c.evacuates(vmi)
		job := c.updating(&made[0])
		c.comes(job, v1.MigrationRunning)
		_, now := c.steps(job)
		edit(now)
		if err := c.client.Status().Update(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		_, now = c.steps(job)
		if s := now.Status.MigrationState; s.Decision != v1.DecisionSource || !strings.Contains(s.FailureReason, "does not name the claim next any more") || len(c.claims()) != 1 {
			t.Errorf("%s: %+v, claims %v", name, s, c.claims())
		}
	}
}

// TestOtherMigrationCopiesToUsersClaimIfNeeded: a migration that was not made for it copies to a user's claim only if the guest could not move otherwise, and ends
// when the user takes that back.
func TestOtherMigrationCopiesToUsersClaimIfNeeded(t *testing.T) {
	for name, n := range map[string]struct {
		edit func(*v1.VolumeStatus)
		want string
	}{
		"only one node can use the disk": {func(*v1.VolumeStatus) {}, "next"},
		"a policy lets the disk move":    {func(s *v1.VolumeStatus) { s.Moves = true }, v1.CopyName("root", "m")},
		"both nodes can use the disk": {func(s *v1.VolumeStatus) {
			s.PersistentVolumeClaimInfo.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		}, ""},
	} {
		c := newCluster(t)
		vmi := c.named("next")
		c.make(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "next"}})
		n.edit(&vmi.Status.VolumeStatus[0])
		if err := c.client.Status().Update(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
		m := c.migration("m", "a")
		c.comes(m, v1.MigrationRunning)
		_, now := c.steps(m)
		got := ""
		for _, copied := range now.Status.MigratedVolumes {
			got += copied.DestinationPVCInfo.ClaimName
		}
		if got != n.want {
			t.Errorf("%s: the disk is copied to %q, want %q", name, got, n.want)
		}
		now.Status.VolumeStatus[0].MovesTo = nil
		if err := c.client.Status().Update(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		_, now = c.steps(m)
		if ended := now.Status.MigrationState.Decision == v1.DecisionSource; ended != (n.want == "next") {
			t.Errorf("%s: taken back, the migration has the decision %q", name, now.Status.MigrationState.Decision)
		}
	}
}

// TestSpecNamesUsersClaimsAfterTheMove: the spec names the claims that users named, and no others, once the guest is there.
func TestSpecNamesUsersClaimsAfterTheMove(t *testing.T) {
	for name, n := range map[string]struct {
		volume v1.Volume
		to     string
		want   string
	}{
		"a claim":         {v1.Volume{Name: "disk", PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "root"}}, "next", `[{"op":"replace","path":"/spec/volumes/0/persistentVolumeClaim/claimName","value":"next"},{"op":"test","path":"/spec/volumes/0/name","value":"disk"}]`},
		"a DataVolume":    {v1.Volume{Name: "disk", DataVolume: &v1.DataVolumeSource{Name: "root"}}, "next", `[{"op":"remove","path":"/spec/volumes/0/dataVolume"},{"op":"add","path":"/spec/volumes/0/persistentVolumeClaim","value":{"claimName":"next"}},{"op":"test","path":"/spec/volumes/0/name","value":"disk"}]`},
		"it has the name": {v1.Volume{Name: "disk", PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "next"}}, "next", `null`},
		"a policy's copy": {v1.Volume{Name: "disk", DataVolume: &v1.DataVolumeSource{Name: "root"}}, v1.CopyName("root", "m"), `null`},
	} {
		vmi := &v1.VirtualMachineInstance{}
		vmi.Spec.Volumes = []v1.Volume{n.volume}
		vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m"}
		vmi.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{{VolumeName: "disk", DestinationPVCInfo: &v1.PersistentVolumeClaimInfo{ClaimName: n.to}}}
		if renames(vmi) != nil {
			t.Errorf("%s: renamed before the guest has the disk there", name)
		}
		vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "disk", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{ClaimName: n.to}}}
		text, err := json.Marshal(renames(vmi))
		if err != nil || string(text) != n.want {
			t.Errorf("%s: %s (%v), want %s", name, text, err, n.want)
		}
	}
}

// TestVolumeUpdateBackOff: a failure puts off the next migration, whatever claim the user names by then.
func TestVolumeUpdateBackOff(t *testing.T) {
	c := newCluster(t)
	vmi := c.named("next")
	made, _ := c.evacuates(vmi)
	failed := &made[0]
	failed.Status.SetPhase(v1.MigrationFailed, metav1.NewTime(c.clock.Now()))
	if err := c.client.Status().Update(t.Context(), failed); err != nil {
		t.Fatal(err)
	}
	c.names(vmi, "third")
	if made, after := c.evacuates(vmi); len(made) != 1 || after != firstBackOff {
		t.Errorf("%d migrations, looked at again after %s", len(made), after)
	}
	c.clock.SetTime(c.clock.Now().Add(firstBackOff))
	if made, _ := c.evacuates(vmi); len(made) != 2 {
		t.Errorf("after the pause there are %d migrations", len(made))
	}
}

// TestMigrationToAGoneClaimFails: a migration to a claim that is gone fails and says so.
func TestMigrationToAGoneClaimFails(t *testing.T) {
	c := newCluster(t)
	c.named("next")
	m := c.migration("m", "a")
	_, now := c.steps(m)
	for range 3 {
		_, now = c.steps(m)
	}
	if s := now.Status.MigrationState; s == nil || s.Decision != v1.DecisionSource || !strings.Contains(s.FailureReason, `the claim "next", to which the disk of volume disk is to be copied, is gone`) {
		t.Errorf("%+v", s)
	}
}

// TestTakenNameHoldsUpNoEvacuation: a migration that has the name already, and is not the one that is to be made, holds up nothing.
func TestTakenNameHoldsUpNoEvacuation(t *testing.T) {
	for name, n := range map[string]struct {
		edit func(*v1.VirtualMachineInstanceMigration)
		want int
	}{
		"of another VMI": {func(m *v1.VirtualMachineInstanceMigration) { m.Spec.VMIName = "b" }, 2},
		"which has ended": {func(m *v1.VirtualMachineInstanceMigration) {
			m.Status.SetPhase(v1.MigrationFailed, metav1.Unix(1000, 0))
			m.Annotations, m.OwnerReferences = nil, nil
		}, 2},
		"the same": {func(*v1.VirtualMachineInstanceMigration) {}, 1},
	} {
		c := newCluster(t)
		vmi := c.leaver("a", func(*v1.VirtualMachineInstance) {})
		taken := migrationFor(vmi, causeOf(vmi, false), nil)
		n.edit(taken)
		status := taken.Status
		c.make(taken)
		taken.Status = status
		if err := c.client.Status().Update(t.Context(), taken); err != nil {
			t.Fatal(err)
		}
		e := &Mover{Client: c.client, Live: c.client, Events: c.events, Clock: c.clock}
		behind, err := e.create(t.Context(), vmi, false, migrationFor(vmi, causeOf(vmi, false), nil))
		if err != nil || behind != (n.want == 1) {
			t.Errorf("%s: behind %v, %v", name, behind, err)
		}
		var all v1.VirtualMachineInstanceMigrationList
		if err := c.client.List(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		if len(all.Items) != n.want {
			t.Errorf("%s: %d migrations", name, len(all.Items))
		}
	}
}

// TestBackOffAfterAClockThatWasAhead: the clock of an earlier virt-controller may be ahead.
func TestBackOffAfterAClockThatWasAhead(t *testing.T) {
	now := time.Unix(1000, 0)
	m := &v1.VirtualMachineInstanceMigration{}
	m.Status.SetPhase(v1.MigrationFailed, metav1.NewTime(now.Add(time.Hour)))
	if wait := (&cause{}).backOff([]*v1.VirtualMachineInstanceMigration{m}, now); wait != 0 {
		t.Errorf("after a failure an hour from now it waits for %v", wait)
	}
}

// TestFailedEvacuationIsRetriedLater: an evacuation that has failed is tried again, later each time.
func TestFailedEvacuationIsRetriedLater(t *testing.T) {
	c := newCluster(t)
	vmi := c.leaver("a", func(*v1.VirtualMachineInstance) {})
	var waits []time.Duration
	for i := range 7 {
		made, _ := c.evacuates(vmi)
		var open *v1.VirtualMachineInstanceMigration
		for j := range made {
			if !made[j].IsFinal() {
				open = &made[j]
			}
		}
		if open == nil {
			t.Fatalf("after %d failures there is no other migration", i)
		}
		open.UID, open.CreationTimestamp = types.UID(open.Name), metav1.NewTime(c.clock.Now()) // as the API server does
		open.Status.SetPhase(v1.MigrationFailed, metav1.NewTime(c.clock.Now()))
		if err := c.client.Update(t.Context(), open.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		now := &v1.VirtualMachineInstanceMigration{}
		if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(open), now); err != nil {
			t.Fatal(err)
		}
		now.Status = open.Status
		if err := c.client.Status().Update(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		after, wait := c.evacuates(vmi)
		if len(after) != len(made) {
			t.Fatalf("after %d failures another migration is made at once", i+1)
		}
		waits = append(waits, wait)
		c.clock.SetTime(c.clock.Now().Add(wait))
	}
	want := []time.Duration{20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 5 * time.Minute, 5 * time.Minute, 5 * time.Minute}
	for i := range want {
		if waits[i] != want[i] {
			t.Errorf("waits of %v, want %v", waits, want)
			break
		}
	}
}

// TestUnwantedEvacuationIsDropped: an evacuation that has not begun goes when nobody asks for it any more.
func TestUnwantedEvacuationIsDropped(t *testing.T) {
	for name, n := range map[string]struct {
		edit func(*v1.VirtualMachineInstance)
		goes bool
	}{
		"asked":           {func(*v1.VirtualMachineInstance) {}, false},
		"taken back":      {func(vmi *v1.VirtualMachineInstance) { vmi.Status.EvacuationNodeName = "" }, true},
		"it left already": {func(vmi *v1.VirtualMachineInstance) { vmi.Status.NodeName = "node2" }, true},
	} {
		c := newCluster(t)
		vmi := c.leaver("a", func(*v1.VirtualMachineInstance) {})
		made, _ := c.evacuates(vmi)
		if err := c.client.Get(t.Context(), client.ObjectKeyFromObject(vmi), vmi); err != nil {
			t.Fatal(err)
		}
		n.edit(vmi)
		if err := c.client.Status().Update(t.Context(), vmi); err != nil {
			t.Fatal(err)
		}
		now, after := c.steps(&made[0])
		if n.goes != (now == nil) || n.goes && after.Status.MigrationState != nil || !n.goes && now.Status.Phase != v1.MigrationScheduling {
			t.Errorf("%s: %+v, %+v", name, now, after.Status.MigrationState)
		}
	}
}
