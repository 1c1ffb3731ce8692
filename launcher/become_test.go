package launcher

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// becomes asks the launcher to make the machine another, and returns the job's result, or why there is none, and the
// Machine that the guest has then.
func (v *vm) becomes(m qemuargs.Machine, files ...control.File) (control.Job, qemuargs.Machine, error) {
	v.Helper()
	var reply control.JobReply
	if err := v.call(control.CommandBecome, control.BecomeRequest{Machine: m}, &reply, files...); err != nil {
		return control.Job{}, qemuargs.Machine{}, err
	}
	for {
		state := testkit.Receive(v.T, v.conn.States, "a job's result")
		for _, j := range state.Jobs {
			if j.ID == reply.ID && j.Finished() {
				v.must(v.call(control.CommandForgetJob, control.JobRequest{ID: j.ID}, nil))
				return j, *state.Machine, nil
			}
		}
	}
}

// plugged returns a machine with a SCSI controller in a root port, a disk in a volume, a CD-ROM drive without a medium,
// and a card, besides those of another machine.
func plugged(v *vm, was qemuargs.Machine) qemuargs.Machine {
	v.Helper()
	volume := v.path("volume")
	v.must(os.Mkdir(volume, 0o700))
	lun := [2]int{0, 1}
	m := was
	m.SCSI = &qemuargs.SCSI{Queues: 1, QueueSize: 256, PCI: qemuargs.PCIAddress{Bus: "pci.2"}}
	m.Disks = append(slices.Clone(was.Disks),
		qemuargs.Disk{Name: "data", Driver: qemuargs.SCSIDisk, Bus: qemuargs.SCSIBus, LUN: &lun[0],
			Image: qemuargs.Image{Path: filepath.Join(volume, "disk.img"), Format: qemuargs.Raw,
				Volume: qemuargs.FileVolume, Create: 8 << 20}},
		qemuargs.Disk{Name: "cd", Driver: qemuargs.SCSICD, Bus: qemuargs.SCSIBus, LUN: &lun[1], ReadOnly: true})
	m.NICs = append(slices.Clone(was.NICs), qemuargs.NIC{Name: "lan", Driver: "virtio-net-pci-non-transitional",
		MAC: "52:54:00:00:00:01", Queues: 1, PCI: qemuargs.PCIAddress{Bus: "pci.3"}})
	return m
}

// withMedium returns the machine with a medium in its drive.
func withMedium(m qemuargs.Machine, path string) qemuargs.Machine {
	m.Disks = slices.Clone(m.Disks)
	m.Disks[2].Image = qemuargs.Image{Path: path, Format: qemuargs.Raw}
	return m
}

// TestBecome: a running machine gets a controller, a disk that is made, a drive and a card; its card's link goes
// down; its drive gets a medium, another one, and none; and the disk goes. After each, the Machine says what the
// guest has.
func TestBecome(t *testing.T) {
	t.Parallel()
	v := launch(t)
	was := *v.boot().Machine
	tap, _ := newTap(t)
	defer tap.Close()
	lan := control.File{Name: "tap/lan/0", File: tap}
	medium := v.path("medium.iso")
	v.must(os.WriteFile(medium, bytes.Repeat([]byte{1}, 1<<20), 0o600),
		os.WriteFile(medium+".2", bytes.Repeat([]byte{2}, 1<<20), 0o600))

	with := plugged(v, was)
	down := with
	down.NICs = slices.Clone(with.NICs)
	down.NICs[0].Down = true
	without := down
	without.Disks = slices.Delete(slices.Clone(down.Disks), 1, 2)
	for i, c := range []struct {
		next    qemuargs.Machine
		changes int64
		files   []control.File
	}{
		{with, 4, []control.File{lan}},
		{with, 0, nil},
		{down, 1, nil},
		{withMedium(down, medium), 1, nil},
		{withMedium(down, medium+".2"), 2, nil},
		{down, 1, nil},
		{without, 1, nil},
		{down, 2, nil}, // the disk is last, and then in its place
	} {
		job, now, err := v.becomes(c.next, c.files...)
		if err != nil || job.State != control.JobDone || job.Done != c.changes || job.Total != c.changes {
			t.Fatalf("%d: %+v, %v", i, job, err)
		}
		if changes, restart := qemuargs.Become(&now, &c.next, now.Sets()); len(changes)+len(restart) > 0 {
			t.Errorf("%d: the machine still has to change: %+v, %q", i, changes, restart)
		}
	}
	if stat, err := os.Stat(with.Disks[1].Image.Path); err != nil || stat.Size() != 8<<20 {
		t.Errorf("the disk that was made: %v, %v", stat, err)
	}
	var stats control.Stats
	v.must(v.call(control.CommandStats, nil, &stats))
	if len(stats.Disks) != 3 || len(stats.NICs) != 1 || stats.NICs[0].Name != "lan" {
		t.Errorf("statistics of %+v and %+v", stats.Disks, stats.NICs)
	}
}

// TestBecomeLeavesWhatFails: what cannot be, or came without its files, changes nothing. What QEMU refuses is undone,
// and the changes before it stay.
func TestBecomeLeavesWhatFails(t *testing.T) {
	t.Parallel()
	v := launch(t)
	if _, _, err := v.becomes(v.request.Machine); err == nil || !strings.Contains(err.Error(), "the VM is waiting") {
		t.Errorf("before the start: %v", err)
	}
	was := *v.boot().Machine
	tap, _ := newTap(t)
	defer tap.Close()
	lan := control.File{Name: "tap/lan/0", File: tap}
	with := plugged(v, was)
	other := was
	other.MemoryBytes *= 2
	other.TPM = &qemuargs.TPM{}
	for says, c := range map[string]struct {
		next  qemuargs.Machine
		files []control.File
	}{
		"needs a restart: memoryBytes, tpm":             {other, nil},
		`without the file "tap/lan/0"`:                  {with, nil},
		`"tap/lan/0", for which the machine has no use`: {was, []control.File{lan}},
	} {
		if _, _, err := v.becomes(c.next, c.files...); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}

	taken := with
	taken.NICs = slices.Clone(with.NICs)
	taken.NICs[0].PCI.Bus = "pci.2"
	if _, _, err := v.becomes(taken, lan); err == nil || !strings.Contains(err.Error(), "needs a restart: nics[lan].pci") {
		t.Errorf("a card where the controller is: %v", err)
	}

	// QEMU knows no such card.
	bad := with
	bad.NICs = slices.Clone(with.NICs)
	bad.NICs[0].Driver = "no-such-card"
	job, now, err := v.becomes(bad, lan)
	if err != nil || job.State != control.JobFailed || job.Done != 1 ||
		!strings.Contains(job.Error, "change nics[lan]: ") || !strings.Contains(job.Error, "no-such-card") {
		t.Errorf("%+v, %v", job, err)
	}
	if now.SCSI == nil || len(now.NICs) > 0 || len(now.Disks) != 1 {
		t.Errorf("the guest has %+v, %+v, %+v", now.SCSI, now.NICs, now.Disks)
	}
	// Nothing is left of the card: the same name comes again.
	good := now
	good.NICs = with.NICs
	if job, _, err := v.becomes(good, lan); err != nil || job.State != control.JobDone {
		t.Errorf("the card in another place: %+v, %v", job, err)
	}
	// A disk that cannot be opened, and one whose LUN is taken, leave nothing either.
	for name, spoil := range map[string]func(*qemuargs.Disk){
		"no such file": func(d *qemuargs.Disk) { d.Image.Create = 0 },
		"no such bus":  func(d *qemuargs.Disk) { lun := 1 << 20; d.LUN = &lun },
	} {
		next := good
		next.Disks = append(slices.Clone(good.Disks), with.Disks[1])
		spoil(&next.Disks[1])
		if job, now, err := v.becomes(next); err != nil || job.State != control.JobFailed || len(now.Disks) != 1 {
			t.Errorf("%s: %+v, %+v, %v", name, job, now.Disks, err)
		}
	}
	if job, _, err := v.becomes(with); err != nil || job.State != control.JobDone {
		t.Errorf("after all that: %+v, %v", job, err)
	}
}
