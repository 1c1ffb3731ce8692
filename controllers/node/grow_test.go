package node

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	clocks "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// growing is a VMI with a disk on a claim of 1 GiB, and a launcher that writes
// down what it is asked.
type growing struct {
	*testing.T
	*Reconciler
	vmi   *v1.VirtualMachineInstance
	clock *clocks.FakeClock
	now   time.Time
	asked chan string
}

const claimSize = 1 << 30

func newGrowing(t *testing.T) *growing {
	vmi := &v1.VirtualMachineInstance{}
	vmi.Spec.Volumes = []v1.Volume{{Name: "data", PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "a"}}}
	vmi.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "data", Disk: &v1.DiskTarget{}}}
	size := resource.MustParse("1Gi")
	vmi.Status.VolumeStatus = []v1.VolumeStatus{{Name: "data", PersistentVolumeClaimInfo: &v1.PersistentVolumeClaimInfo{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: size}, VolumeMode: ptr.To(corev1.PersistentVolumeBlock)}}}
	g := &growing{T: t, vmi: vmi, now: time.Now(), asked: make(chan string, 100)}
	g.clock = clocks.NewFakeClock(g.now)
	g.Reconciler = &Reconciler{Clock: g.clock}
	return g
}

// session returns the session of a launcher with such jobs, as a virt-handler that was just started has it.
func (g *growing) session(jobs ...control.Job) *sessions.Session {
	g.Helper()
	s := answering(g.T, g.asked)
	s.Commands = control.KnownCommands()
	g.report(s, jobs...)
	return s
}

// report lets the launcher report its jobs.
func (g *growing) report(s *sessions.Session, jobs ...control.Job) {
	s.SetState(control.StateReport{State: control.StateRunning, StartedAt: &g.now, Jobs: jobs})
}

// want takes a step and compares what the launcher was asked, and when to come again.
func (g *growing) want(s *sessions.Session, again time.Duration, asked ...string) {
	g.Helper()
	if got := g.growDisks(g.Context(), g.vmi, s); got != again {
		g.Errorf("come again after %v, want %v", got, again)
	}
	var got []string
	for len(g.asked) > 0 {
		got = append(got, <-g.asked)
	}
	if !slices.Equal(got, asked) {
		g.Errorf("the launcher was asked %q, want %q", got, asked)
	}
}

const (
	askGrow    = `grow-disk {"disk":"data","size":1073741824}`
	forgetJob1 = `forget-job {"id":1}`
	forgetJob2 = `forget-job {"id":2}`
)

func growJob(id uint64, state control.JobState, size int64) control.Job {
	return control.Job{ID: id, Kind: control.JobGrowDisk, Target: "data", State: state, Total: size}
}

// TestGrowthIsAskedForOnceAndFollowed: a size is asked for once, and its job followed to its end, also by a
// virt-handler that was started anew meanwhile.
func TestGrowthIsAskedForOnceAndFollowed(t *testing.T) {
	g := newGrowing(t)
	s := g.session()
	g.want(s, 0, askGrow)
	g.report(s, growJob(1, control.JobRunning, claimSize))
	g.want(s, 0)
	// A restart in the middle, and one before anybody has seen the result.
	for _, next := range []*sessions.Session{s, g.session(growJob(1, control.JobRunning, claimSize)), g.session(growJob(1, control.JobDone, claimSize))} {
		g.report(next, growJob(1, control.JobDone, claimSize))
		g.want(next, 0, forgetJob1)
		g.want(next, 0) // the launcher's next report lacks it, and need not be there yet
		g.report(next)
		g.want(next, 0)
	}
	// The claim grows while its disk still does.
	later := g.session(growJob(1, control.JobRunning, claimSize/2))
	g.want(later, 0)
	g.report(later, growJob(1, control.JobDone, claimSize/2))
	g.want(later, 0, forgetJob1, askGrow)
	// Jobs of others are nobody's here.
	other := g.session(control.Job{ID: 9, Kind: control.JobGrowDisk, Target: "root", State: control.JobRunning},
		control.Job{ID: 8, Kind: "migrate", Target: "data", State: control.JobRunning})
	g.want(other, 0, askGrow)
}

// TestFailedGrowthIsTriedAgainInTime: what failed is tried again, and not before its time.
func TestFailedGrowthIsTriedAgainInTime(t *testing.T) {
	g := newGrowing(t)
	s := g.session(growJob(1, control.JobFailed, claimSize))
	g.want(s, sessions.GrowPatience, forgetJob1)
	g.clock.Step(sessions.GrowPatience - time.Second)
	g.want(s, time.Second)
	g.clock.Step(time.Second)
	g.want(s, 0, askGrow)
	g.report(s, growJob(2, control.JobCanceled, claimSize))
	g.want(s, sessions.GrowPatience, forgetJob2)
	// A launcher that says the same again and again is not answered again and again.
	g.want(s, sessions.GrowPatience)
	s.Client.Close()
	g.clock.Step(sessions.GrowPatience)
	g.want(s, sessions.GrowPatience)
}

// TestWhichDisksGrow: only the disk of a claim grows, and only if the guest can write to it.
func TestWhichDisksGrow(t *testing.T) {
	source := v1.PersistentVolumeClaimVolumeSource{ClaimName: "a"}
	vmi := &v1.VirtualMachineInstance{}
	vmi.Spec.Volumes = []v1.Volume{
		{Name: "root", ContainerDisk: &v1.ContainerDiskSource{Image: "x"}},
		{Name: "data", PersistentVolumeClaim: &source},
		{Name: "tools", PersistentVolumeClaim: &source},
		{Name: "template", Ephemeral: &v1.EphemeralVolumeSource{PersistentVolumeClaim: &v1.EphemeralClaim{ClaimName: "d"}}},
	}
	for _, v := range vmi.Spec.Volumes {
		vmi.Spec.Domain.Devices.Disks = append(vmi.Spec.Domain.Devices.Disks, v1.Disk{Name: v.Name, Disk: &v1.DiskTarget{}})
	}
	vmi.Spec.Domain.Devices.Disks[2] = v1.Disk{Name: "tools", CDRom: &v1.CDRomTarget{}}
	for i, want := range []bool{false, true, false, false} {
		if d := vmi.Spec.Domain.Devices.Disks[i]; writable(vmi, d) != want {
			t.Errorf("disk %s: writable is %v", d.Name, !want)
		}
	}
}
