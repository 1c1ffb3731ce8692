package migration_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/migration"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

const gib = 1 << 30

// newMovingClaim returns a guest whose disk is on a claim, and is copied to another.
func newMovingClaim(t *testing.T) *moving {
	t.Helper()
	m := newMoving(t)
	vmi := m.vmi()
	vmi.Spec.Volumes = []v1.Volume{{Name: "root", DataVolume: &v1.DataVolumeSource{Name: "root"}}}
	if err := m.raw.Update(context.Background(), vmi); err != nil {
		t.Fatal(err)
	}
	vmi.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{{VolumeName: "root", SourcePVCInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "root"}, DestinationPVCInfo: &v1.PersistentVolumeClaimInfo{ClaimName: "root-1"}}}
	if err := m.raw.Status().Update(context.Background(), vmi); err != nil {
		t.Fatal(err)
	}
	m.source.answer(control.CommandInspect, `{"claims":[{"size":1073741824}]}`)
	m.target.answer(control.CommandInspect, `{"claims":[{"missing":true,"free":2147483648}]}`)
	m.source.mu.Lock()
	defer m.source.mu.Unlock()
	machine := *m.source.state.Machine
	machine.Disks = []qemuargs.Disk{{Name: "root", Driver: qemuargs.VirtioBlk, Image: qemuargs.Image{Path: "/claims/root/disk.img", Format: qemuargs.Raw, Volume: qemuargs.FileVolume, Create: 5}}}
	m.source.state.Machine = &machine
	return m
}

// begins lets the source's launcher report its Machine.
func (m *moving) begins() {
	m.Helper()
	m.source.report(control.StateRunning)
	launcher := m.here.Sessions.Get(types.NamespacedName{Namespace: "default", Name: m.status().SourcePod})
	_, err := launcher.Await(m.Context(), func(s control.StateReport) bool { return s.Machine != nil && s.Machine.Disks[0].Image.Volume != "" })
	if err != nil {
		m.Fatal(err)
	}
}

// TestTargetMakesADiskAsLarge: the target's launcher makes a disk as large as the source's, and the disk is copied.
func TestTargetMakesADiskAsLarge(t *testing.T) {
	m := newMovingClaim(t)
	m.begins()
	m.copies()
	var start control.StartRequest
	if err := json.Unmarshal(m.target.arguments(control.CommandStart), &start); err != nil {
		t.Fatal(err)
	}
	if disk := start.Machine.Disks[0]; disk.Image.Create != gib || disk.Image.Path != "/claims/root/disk.img" || !start.Incoming {
		t.Errorf("the target starts with %+v", disk)
	}
	if m.source.wasAsked(control.CommandMirrorDisk) != 1 || m.target.wasAsked(control.CommandExportDisk) != 1 {
		t.Errorf("the source was asked for %v, the target for %v", m.source.commands(), m.target.commands())
	}
	var asked control.InspectRequest
	if err := json.Unmarshal(m.source.arguments(control.CommandInspect), &asked); err != nil || len(asked.Claims) != 1 || asked.Claims[0] != (control.Claim{Volume: "root", ReadOnly: true}) {
		t.Errorf("the source inspects %+v (%v)", asked, err)
	}
}

// TestLargeDiskGetsTheTimeOfItsClaim: a launcher that says that its disk is large gets no more time than its claims
// permit.
func TestLargeDiskGetsTheTimeOfItsClaim(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{
		{VolumeName: "a", SourcePVCInfo: &v1.PersistentVolumeClaimInfo{Requests: storage("1Gi")}, DestinationPVCInfo: &v1.PersistentVolumeClaimInfo{Requests: storage("1Gi"), Capacity: storage("2Gi")}},
		{VolumeName: "b", DestinationPVCInfo: &v1.PersistentVolumeClaimInfo{Requests: storage("1Gi")}}, {VolumeName: "c"}}
	got := migration.AtMostClaims(map[string]int64{"a": 1 << 50, "b": 7, "c": 7, "d": 7}, vmi)
	if diff := cmp.Diff(map[string]int64{"a": 2 * gib, "b": 7, "c": 0}, got); diff != "" {
		t.Error(diff)
	}
}

func storage(size string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}

// TestSharedDiskIsNotMadeAnew: the source's launcher has made a disk that both nodes have. The target does not make
// it anew.
func TestSharedDiskIsNotMadeAnew(t *testing.T) {
	m := &qemuargs.Machine{UUID: "machine", Disks: []qemuargs.Disk{
		{Name: "shared", Image: qemuargs.Image{Volume: qemuargs.FileVolume, Create: 5}},
		{Name: "moved", Image: qemuargs.Image{Volume: qemuargs.FileVolume, Create: 5}},
		{Name: "empty", Image: qemuargs.Image{Create: 7}}}}
	vmi := &v1.VirtualMachineInstance{}
	vmi.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{{VolumeName: "moved"}}
	for name, facts := range map[string]qemuargs.VolumeFacts{"missing": {Missing: true, Free: gib}, "blank": {Blank: true, Free: gib}, "ours": {Incoming: "machine", Free: 0, Taken: gib}} {
		now := *m
		if err := migration.MakeMoved(&now, vmi, map[string]int64{"moved": gib}, []qemuargs.VolumeFacts{facts}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for i, want := range []int64{0, gib, 7} {
			if got := now.Disks[i].Image.Create; got != want {
				t.Errorf("%s: of disk %s %d bytes are made, want %d", name, now.Disks[i].Name, got, want)
			}
		}
	}
	if m.Disks[0].Image.Create != 5 {
		t.Error("the source's Machine is changed")
	}
}

// TestGuestStaysIfTargetHasNoRoomForItsDisk: a target without room for the disk, or whose claim has a disk, says so,
// and the guest stays.
func TestGuestStaysIfTargetHasNoRoomForItsDisk(t *testing.T) {
	for name, c := range map[string]struct{ source, target, says string }{
		"no room":               {"", `{"claims":[{"missing":true,"free":1073741823}]}`, "has no room for its disk of 1073741824 bytes: 1073741823 are free"},
		"a disk is there":       {"", `{"claims":[{"size":1073741824}]}`, "has a disk already"},
		"another machine's":     {"", `{"claims":[{"size":1073741824,"incoming":"other"}]}`, "has a disk already"},
		"a block device":        {"", `{"claims":[{"size":1073741824,"block":true,"blank":true}]}`, "has a disk already"},
		"no volume":             {"", `{"claims":[{"error":"no such folder"}]}`, "no such folder"},
		"a claim too few":       {"", `{}`, "asked about 1, got 0"},
		"a source without disk": {`{"claims":[{"missing":true}]}`, "", "has 0 bytes, which is no size"},
		"a source's odd size":   {`{"claims":[{"size":-512}]}`, "", "has -512 bytes, which is no size"},
		"a source's error":      {`{"claims":[{"error":"broken"}]}`, "", "inspect the disk of volume root: broken"},
	} {
		m := newMovingClaim(t)
		if c.source != "" {
			m.source.answer(control.CommandInspect, c.source)
		}
		if c.target != "" {
			m.target.answer(control.CommandInspect, c.target)
		}
		m.begins()
		m.until(name, func() bool { return m.status().Decision == v1.DecisionSource })
		m.idle()
		if s := m.status().SourceState; s == nil || !strings.Contains(s.Failure, c.says) {
			t.Errorf("%s: %+v, want %q", name, s, c.says)
		}
		if m.target.wasAsked(control.CommandStart) != 0 || m.source.wasAsked(control.CommandMigrate) != 0 {
			t.Errorf("%s: the source was asked for %v, the target for %v", name, m.source.commands(), m.target.commands())
		}
	}
}

// TestWhichDisksTheTargetMakes: only a disk in a file of a claim that the guest can write to is made.
func TestWhichDisksTheTargetMakes(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{{VolumeName: "root"}}
	facts := []qemuargs.VolumeFacts{{Missing: true, Free: 2 * gib}}
	file := qemuargs.Disk{Name: "root", Image: qemuargs.Image{Volume: qemuargs.FileVolume}}
	readOnly, overlay, device, other := file, file, file, file
	readOnly.ReadOnly, overlay.Overlay, device.Image.Volume, other.Name = true, &qemuargs.Overlay{}, qemuargs.BlockVolume, "other"
	for name, c := range map[string]struct {
		disk qemuargs.Disk
		ok   bool
	}{"a file": {file, true}, "only read": {readOnly, false}, "an overlay": {overlay, false}, "a device": {device, false}, "another": {other, false}} {
		from := []qemuargs.Disk{c.disk}
		machine := &qemuargs.Machine{Disks: from}
		err := migration.MakeMoved(machine, vmi, map[string]int64{"root": gib}, facts)
		if (err == nil) != c.ok || c.ok && machine.Disks[0].Image.Create != gib {
			t.Errorf("%s: %v, %+v", name, err, machine.Disks[0])
		}
		if from[0].Image.Create != 0 {
			t.Errorf("%s: the source's Machine was changed", name)
		}
	}
}

// TestMovedDiskWithoutDirectIO: QEMU refuses native I/O without O_DIRECT. So a disk that moves to a claim without
// O_DIRECT goes without both, unless its spec asks for one of them.
func TestMovedDiskWithoutDirectIO(t *testing.T) {
	for name, c := range map[string]struct {
		disk v1.Disk
		ok   bool
	}{"by default": {v1.Disk{Name: "root"}, true}, "cache none": {v1.Disk{Name: "root", Cache: v1.CacheNone}, false}, "native": {v1.Disk{Name: "root", IO: v1.IONative}, false}} {
		vmi := &v1.VirtualMachineInstance{}
		vmi.Spec.Domain.Devices.Disks = []v1.Disk{c.disk}
		vmi.Status.MigratedVolumes = []v1.StorageMigratedVolumeInfo{{VolumeName: "root"}}
		m := &qemuargs.Machine{Disks: []qemuargs.Disk{{Name: "root", AIO: qemuargs.Native, Image: qemuargs.Image{Volume: qemuargs.FileVolume, Direct: true}}}}
		err := migration.MakeMoved(m, vmi, map[string]int64{"root": gib}, []qemuargs.VolumeFacts{{Missing: true, Free: 2 * gib}})
		if d := m.Disks[0]; (err == nil) != c.ok || c.ok && (d.Image.Direct || d.AIO != "") {
			t.Errorf("%s: %v, %+v", name, err, d)
		}
	}
}
