package node

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	clocks "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
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
	// machine is what the guest has.
	machine qemuargs.Machine
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
	g.machine.Disks = []qemuargs.Disk{{Name: "data",
		Image: qemuargs.Image{Path: "/dev/data", Volume: qemuargs.BlockVolume}}}
	g.clock = clocks.NewFakeClock(g.now)
	g.Reconciler = &Reconciler{Clock: g.clock}
	return g
}

// session returns the session of a launcher with such jobs, as a virt-handler that was just started has it. The guest
// has no more than it started with.
func (g *growing) session(jobs ...control.Job) *sessions.Session {
	g.Helper()
	s := answering(g.T, g.asked)
	s.Commands = control.KnownCommands()
	g.report(s, 0, jobs...)
	return s
}

// report lets the launcher report its jobs, and the size that the disk has grown to.
func (g *growing) report(s *sessions.Session, size int64, jobs ...control.Job) {
	g.machine.Disks[0].Image.Size = size
	machine := g.machine
	machine.Disks, machine.NICs = slices.Clone(machine.Disks), slices.Clone(machine.NICs)
	s.SetState(control.StateReport{State: control.StateRunning, StartedAt: &g.now, Machine: &machine, Jobs: jobs})
}

// want takes a step and compares what the launcher was asked, and when to come again.
func (g *growing) want(s *sessions.Session, again time.Duration, asked ...string) {
	g.Helper()
	if got := g.followSpec(g.Context(), g.vmi, s); got != again {
		g.Errorf("come again after %v, want %v", got, again)
	}
	if got := g.wasAsked(); !slices.Equal(got, asked) {
		g.Errorf("the launcher was asked %q, want %q", got, asked)
	}
}

// wasAsked returns what the launcher was asked. In place of a Machine it has the steps to it.
func (g *growing) wasAsked() (all []string) {
	g.Helper()
	for len(g.asked) > 0 {
		asked := <-g.asked
		var request control.BecomeRequest
		if data, ok := strings.CutPrefix(asked, control.CommandBecome+" "); ok {
			if err := json.Unmarshal([]byte(data), &request); err != nil {
				g.Fatal(err)
			}
			changes, restart := qemuargs.Become(&g.machine, &request.Machine, qemuargs.Sets{})
			asked = control.CommandBecome + strings.Join(restart, " ")
			for _, c := range changes {
				for _, step := range c.Steps {
					asked += " " + step.String()
				}
			}
		}
		all = append(all, asked)
	}
	return all
}

const (
	askGrow    = `become block_resize {"node-name":"disk-data","size":1073741824}`
	lanDown    = `become set_link {"name":"nic-lan","up":false}`
	lanUp      = `become set_link {"name":"nic-lan","up":true}`
	forgetJob1 = `forget-job {"id":1}`
	forgetJob2 = `forget-job {"id":2}`
)

func becomeJob(id uint64, state control.JobState) control.Job {
	return control.Job{ID: id, Kind: control.JobBecome, Target: control.JobTargetMachine, State: state}
}

// TestWishIsAskedForOnceAndFollowed: a size is asked for once, and its job followed to its end, also by a
// virt-handler that was started anew meanwhile.
func TestWishIsAskedForOnceAndFollowed(t *testing.T) {
	g := newGrowing(t)
	s := g.session()
	g.want(s, 0, askGrow)
	g.report(s, 0, becomeJob(1, control.JobRunning))
	g.want(s, 0)
	// A restart in the middle, and one before anybody has seen the result.
	running, done := becomeJob(1, control.JobRunning), becomeJob(1, control.JobDone)
	for _, next := range []*sessions.Session{s, g.session(running), g.session(done)} {
		g.report(next, claimSize, becomeJob(1, control.JobDone))
		g.want(next, 0, forgetJob1)
		g.want(next, 0) // the launcher's next report lacks it, and need not be there yet
		g.report(next, claimSize)
		g.want(next, 0)
	}
	// The claim grows while its disk still does.
	later := g.session(becomeJob(1, control.JobRunning))
	g.want(later, 0)
	g.report(later, claimSize/2, becomeJob(1, control.JobDone))
	g.want(later, 0, forgetJob1, askGrow)
	// Jobs of other kinds are nobody's here.
	other := g.session(control.Job{ID: 8, Kind: control.JobMigrate, Target: "data", State: control.JobRunning})
	g.want(other, 0, askGrow)
}

// TestDiskThatHasLessRoomIsNotAskedForAgain: a file system that has no room for all has room for all no sooner for
// being asked.
func TestDiskThatHasLessRoomIsNotAskedForAgain(t *testing.T) {
	g := newGrowing(t)
	s := g.session()
	g.want(s, 0, askGrow)
	g.report(s, claimSize/2, becomeJob(1, control.JobDone))
	g.want(s, 0, forgetJob1)
	g.clock.Step(2 * growPatience)
	g.want(s, 0)
}

// TestFailedWishIsTriedAgainInTime: what failed is tried again, and not before its time.
func TestFailedWishIsTriedAgainInTime(t *testing.T) {
	g := newGrowing(t)
	s := g.session()
	g.want(s, 0, askGrow)
	g.report(s, 0, becomeJob(1, control.JobFailed))
	g.want(s, growPatience, forgetJob1)
	g.clock.Step(growPatience - time.Second)
	g.want(s, time.Second)
	g.clock.Step(time.Second)
	g.want(s, 0, askGrow)
	g.report(s, 0, becomeJob(2, control.JobCanceled))
	g.want(s, growPatience, forgetJob2)
	// A launcher that says the same again and again is not answered again and again.
	g.want(s, growPatience)
	// A launcher that no longer lists the job has not done it.
	g.clock.Step(growPatience)
	g.want(s, 0, askGrow)
	g.report(s, 0)
	g.want(s, growPatience)
	s.Client.Close()
	g.clock.Step(growPatience)
	g.want(s, refusedPatience)
}

// TestWishesHoldUpNoOther: links come first, one job runs at a time, and what fails holds up nothing else.
func TestWishesHoldUpNoOther(t *testing.T) {
	g := newGrowing(t)
	g.machine.NICs = []qemuargs.NIC{{Name: "lan"}, {Name: "card", HostDevice: "0000:3b:02.1"}}
	g.vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "lan", State: v1.LinkDown},
		{Name: "card", State: v1.LinkDown}, {Name: "none", State: v1.LinkDown}}
	s := g.session()
	g.want(s, 0, lanDown)
	g.report(s, 0, becomeJob(1, control.JobRunning))
	g.want(s, 0)
	g.report(s, 0, becomeJob(1, control.JobFailed))
	g.want(s, linkPatience, forgetJob1, askGrow)
	g.clock.Step(linkPatience)
	g.report(s, 0, becomeJob(2, control.JobRunning))
	g.want(s, 0) // one at a time
	g.machine.NICs[0].Down = true
	g.report(s, claimSize, becomeJob(2, control.JobDone))
	g.want(s, 0, forgetJob2)
	g.vmi.Spec.Domain.Devices.Interfaces[0].State = ""
	g.want(s, 0, lanUp)
}

// TestLinksAreReported: the status says what the launcher's Machine says of links.
func TestLinksAreReported(t *testing.T) {
	g := newGrowing(t)
	g.machine.NICs = []qemuargs.NIC{{Name: "own"}, {Name: "lan", Down: true}, {Name: "card", HostDevice: "0000:3b:02.1"}}
	s := g.session()
	for name, want := range map[string]v1.InterfaceState{"own": v1.LinkUp, "lan": v1.LinkDown, "card": "", "none": ""} {
		if got := linkState(s, name); got != want {
			t.Errorf("the link of %s is %q, want %q", name, got, want)
		}
	}
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
