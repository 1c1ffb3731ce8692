package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// filled is what a guest's second disk has: numbers, which the guest goes on to write, and random bytes behind them.
type filled struct {
	m   vm
	sum string
}

// randomBytes is the command that tells the sum of the random bytes.
const randomBytes = "echo 3 >/proc/sys/vm/drop_caches; dd if=/dev/vdb bs=1M skip=16 count=32 2>/dev/null | md5sum"

// fill has the guest fill its disk, and begin to count.
func (m vm) fill() filled {
	m.t.Helper()
	shell := m.shell()
	m.in(shell, "mkdir -p /tmp; dd if=/dev/urandom of=/dev/vdb bs=1M seek=16 count=32 conv=fsync 2>/dev/null")
	sum := m.in(shell, randomBytes)
	m.in(shell, counting)
	return filled{m, sum}
}

// isWhole checks that the disk has all that the guest has written, and that the guest goes on.
func (d filled) isWhole() {
	d.m.t.Helper()
	shell := d.m.shell()
	told := int(seconds(d.m.t, d.m.in(shell, "cat /tmp/count")))
	if got := d.m.in(shell, fmt.Sprintf("echo 3 >/proc/sys/vm/drop_caches; dd if=/dev/vdb bs=512 skip=%d count=%d 2>/dev/null | tr -d '\\000' | md5sum", firstSector+1, told)); got != numbers(told) {
		d.m.t.Errorf("of %d numbers that the guest wrote, some are lost", told)
	}
	if got := d.m.in(shell, randomBytes); got != d.sum {
		d.m.t.Errorf("the disk has %s, and had %s", got, d.sum)
	}
	d.m.in(shell, fmt.Sprintf("while [ $(cat /tmp/count) -le %d ]; do usleep 100000; done", told))
}

// stays checks that a migration fails and says why in these words, and that the guest goes on.
func (d filled) stays(under migration, words ...string) {
	d.m.t.Helper()
	why := under.ends(v1.MigrationFailed).FailureReason
	d.m.t.Logf("the guest stays because %q", why)
	for _, word := range words {
		if !strings.Contains(why, word) {
			d.m.t.Errorf("the guest stays because %q, want %q", why, word)
		}
	}
	d.m.endsOnce(moving{vm: d.m, migration: under}, v1.MigrationFailed, guestsOn(d.m.t, d.m.get().Spec.Domain.Firmware.UUID))
	d.isWhole()
}

// small mounts a small file system on the second node.
func small(t *testing.T, folder, size string) {
	t.Helper()
	if out, err := onNodeNamed(secondName, `mkdir -p "$1" && mount -t tmpfs -o size="$2",mode=0777 e2e "$1"`, folder, size); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { onNodeNamed(secondName, `umount -l "$1"`, folder) })
}

// TestMigrationTargetFull: a migration to a node whose file system is full fails, and says so. The guest goes on with its disk whole, and moves once there is room.
func TestMigrationTargetFull(t *testing.T) {
	newSecondNode(t)
	t.Run("overlay", func(t *testing.T) {
		ns := namespace(t)
		t.Cleanup(func() { kubectl(t, "uncordon", secondName) })
		kubectl(t, "cordon", secondName)
		m := createVM(t, ns, "overlay", v1.RunStrategyAlways, emptyDisk("data", "64Mi"), offline)
		m.runs("")
		d := m.fill()
		for name, room := range map[string]struct{ size, says string }{
			"some-room": {"8m", "copy disk root to the target: No space left on device"},
			"no-room":   {"4k", "root.qcow2: no space left on device"},
		} {
			kubectl(t, "cordon", secondName)
			under := m.migrate(name, nil)
			var target *corev1.Pod
			err := poll(func() (err error) {
				s := m.get().Status.MigrationState
				if s == nil || s.MigrationName != name || s.TargetPod == "" {
					return fmt.Errorf("there is no target pod: %+v", s)
				}
				target, err = getObject[corev1.Pod]("-n", ns, "pod", s.TargetPod)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			// Its pod's folder is there before the kubelet makes it.
			small(t, "/var/lib/kubelet/pods/"+string(target.UID)+"/volumes/kubernetes.io~empty-dir/overlays", room.size)
			kubectl(t, "uncordon", secondName)
			d.stays(under, room.says)
		}
		m.migrate("room", nil).ends(v1.MigrationSucceeded)
		d.isWhole()
	})
	t.Run("claim", func(t *testing.T) {
		ns := namespace(t)
		c := provision(t, ns)
		copyPolicy(t, ns)
		t.Cleanup(func() { kubectl(t, "uncordon", secondName) })
		kubectl(t, "cordon", secondName)
		m := withTemplates(t, ns, "claim", map[string]string{"root": `{"registry":{"url":"docker://` + tinyImage + `"}}`, "data": `{"blank":{}}`}, "root", "data")
		if err := poll(func() error {
			now, err := m.instance()
			if err == nil && now.Status.Phase != v1.Running {
				err = fmt.Errorf("the VMI is %s", now.Status.Phase)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		small(t, c.nodeFolder(""), "24m")
		kubectl(t, "uncordon", secondName)
		err := poll(func() error {
			if c := m.condition(v1.ConditionLiveMigratable); c.Status != metav1.ConditionTrue {
				return fmt.Errorf("LiveMigratable is %+v", c)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		d := m.fill()
		first := m.disksOn(firstName)
		d.stays(m.migrate("no-room", nil), secondName, "has no room for its disk")
		if now := m.disksOn(firstName); strings.Join(now, " ") != strings.Join(first, " ") {
			t.Errorf("after a migration that failed there are the claims %v, and before there were %v", now, first)
		}
		if out, err := onNodeNamed(secondName, `mount -o remount,size=1g "$1"`, c.nodeFolder("")); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		m.migrate("room", nil).ends(v1.MigrationSucceeded)
		d.isWhole()
		m.disksOn(secondName)
	})
}
