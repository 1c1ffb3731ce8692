package migration

import (
	"math"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestMigrationHasItsConfiguredLimits: a migration has the limits of its configuration, by what is to be copied.
func TestMigrationHasItsConfiguredLimits(t *testing.T) {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Spec.Domain.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("1Gi"))}
	vmi.Spec.Volumes = []v1.Volume{
		{Name: "image", ContainerDisk: &v1.ContainerDiskSource{Image: "i"}},
		{Name: "scratch", EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse("1Gi")}},
		{Name: "claim", Ephemeral: &v1.EphemeralVolumeSource{}},
	}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("3Gi")}
	vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "claim",
		PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{Capacity: size}}}
	machine := &qemuargs.Machine{MemoryBytes: 1 << 60,
		Disks: []qemuargs.Disk{{Name: "image", Overlay: &qemuargs.Overlay{VirtualSize: 2 << 30}},
			{Name: "scratch", Image: qemuargs.Image{Create: 1 << 30}},
			{Name: "kept", Image: qemuargs.Image{Create: 1 << 40, Volume: "Filesystem"}}}}
	sizes := sizesOf(machine)
	config := &v1.MigrationConfiguration{BandwidthPerMigration: ptr.To(resource.MustParse("1Mi")),
		MaxDowntimeMs: ptr.To[uint64](50), AllowAutoConverge: ptr.To(true), AllowPostCopy: ptr.To(true)}
	want := control.MigrateRequest{BytesPerSecond: 1 << 20, DowntimeMilliseconds: 50, CompletionSeconds: 600,
		StallSeconds: 150, AutoConverge: true}
	if got := limits(config, vmi, sizes, nil); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	want.CompletionSeconds = 900
	if got := limits(config, vmi, sizes, map[string]int64{"root": 2 << 30, "less than nothing": -5 << 30}); got != want {
		t.Errorf("with a disk of a claim: %+v, want %+v", got, want)
	}
	// A launcher says that its disks are larger than the VMI's can be, and that there are others.
	for name, size := range map[string]int64{"image": 1 << 62, "scratch": 1 << 62, "claim": 1 << 62, "made up": 1 << 62,
		"negative": math.MinInt64} {
		sizes[name] = size
	}
	want.CompletionSeconds = 150 * (1 + maxSaid>>30 + 1 + 3)
	if got := limits(config, vmi, sizes, nil); got != want {
		t.Errorf("with what a launcher makes up: %+v, want %+v", got, want)
	}
	// No migration takes longer than a day.
	vmi.Spec.Domain.Memory.Guest = ptr.To(resource.MustParse("7Ei"))
	want.CompletionSeconds = 24 * 60 * 60
	if got := limits(config, vmi, sizes, map[string]int64{"root": math.MaxInt64}); got != want {
		t.Errorf("of a large guest: %+v, want %+v", got, want)
	}
}

// TestStalledMigrationIsNoticed: nothing sent for too long is noticed.
func TestStalledMigrationIsNoticed(t *testing.T) {
	now := time.Unix(0, 0)
	s := stall{limit: time.Minute, now: func() time.Time { return now }}
	for i, c := range []struct {
		at      int64
		carried int64
		stalls  bool
	}{{0, 0, false}, {50, 0, false}, {61, 0, true}, {62, 1, false}, {120, 1, false}, {123, 1, true}, {124, 2, false}} {
		now = time.Unix(c.at, 0)
		if got := s.look(c.carried); got != c.stalls {
			t.Errorf("look %d: %v", i, got)
		}
	}
}
