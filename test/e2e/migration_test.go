package e2e

import (
	"crypto/md5"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// migration is a VirtualMachineInstanceMigration on the cluster.
type migration struct {
	t               *testing.T
	namespace, name string
}

// migrate makes a migration of a VMI.
func (v vmi) migrate(name string, selector map[string]string) migration {
	v.t.Helper()
	m := &v1.VirtualMachineInstanceMigration{TypeMeta: metav1.TypeMeta{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstanceMigration"},
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.VirtualMachineInstanceMigrationSpec{VMIName: v.name, AddedNodeSelector: selector}}
	text, err := json.Marshal(m)
	if err != nil {
		v.t.Fatal(err)
	}
	apply(v.t, v.namespace, string(text))
	return migration{v.t, v.namespace, name}
}

func (m migration) get() *v1.VirtualMachineInstanceMigration {
	m.t.Helper()
	return get[v1.VirtualMachineInstanceMigration](m.t, "-n", m.namespace, "vmim", m.name)
}

// waits waits until a migration is Pending.
func (m migration) waits() {
	m.t.Helper()
	err := poll(func() error {
		if now := m.get(); now.Status.Phase != v1.MigrationPending {
			return fmt.Errorf("migration %s is %q, and does not wait", m.name, now.Status.Phase)
		}
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

// cost returns how long the guest stood still in a migration, in milliseconds, and how many bytes were sent. Both are 0 if the
// source's virt-handler could not tell in time.
func cost(s *v1.VirtualMachineInstanceMigrationState) (downtime, sent int64) {
	if s.SourceState == nil || s.SourceState.Progress == nil {
		return 0, 0
	}
	return s.SourceState.Progress.DowntimeMilliseconds, s.SourceState.Progress.TransferredBytes
}

// ends waits for the end of a migration, and returns its state.
func (m migration) ends(want v1.VirtualMachineInstanceMigrationPhase) *v1.VirtualMachineInstanceMigrationState {
	m.t.Helper()
	err := poll(func() error {
		now, err := getObject[v1.VirtualMachineInstanceMigration]("-n", m.namespace, "vmim", m.name)
		if err == nil && !now.IsFinal() {
			err = fmt.Errorf("migration %s is %s", m.name, now.Status.Phase)
		}
		return err
	})
	now := m.get()
	if err != nil || now.Status.Phase != want {
		state, _ := json.Marshal(now.Status)
		m.t.Fatalf("migration %s is %s, want %s (%v): %s", m.name, now.Status.Phase, want, err, state)
	}
	return now.Status.MigrationState
}

// emptyDisk adds a disk on the node that begins empty.
func emptyDisk(name, size string) func(*v1.VirtualMachineInstanceSpec) {
	return func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Devices.Disks = append(s.Domain.Devices.Disks, v1.Disk{Name: name, Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}})
		s.Volumes = append(s.Volumes, v1.Volume{Name: name, EmptyDisk: &v1.EmptyDiskSource{Capacity: resource.MustParse(size)}})
	}
}

// The guest of TestMigration counts. It writes each number to its disk with fsync before it tells the number.
const (
	firstSector = 8192 // of the numbers
	counting    = `(i=0; while :; do i=$((i+1)); printf '%016d' $i | dd of=/dev/vdb bs=512 seek=$((8192+i)) conv=sync,fsync,notrunc 2>/dev/null; echo $i >/tmp/next; mv /tmp/next /tmp/count; usleep 50000; done) & echo started`
)

// numbers is the MD5 sum of the first n numbers, as the guest writes them.
func numbers(n int) string {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "%016d", i+1)
	}
	return fmt.Sprintf("%x  -", md5.Sum([]byte(text.String())))
}

// TestMigration: a VM's guest goes back and forth between two nodes, with its memory, its disks and its address inside, and
// without a restart.
func TestMigration(t *testing.T) {
	newSecondNode(t)
	ns := namespace(t)
	apply(t, ns, clientManifest)
	kubectl(t, "cordon", secondName)
	m := createVM(t, ns, "open", v1.RunStrategyAlways, emptyDisk("data", "32Mi"), cloudInit("#tiny\n"))
	m.runs("")
	kubectl(t, "uncordon", secondName)
	m.log().shows("tiny: eth0")
	uid := m.uid()
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/client", "--timeout=600s")
	if c := m.condition(v1.ConditionLiveMigratable); c.Status != metav1.ConditionTrue || m.get().Status.MigrationMethod != v1.MethodBlockMigration {
		t.Errorf("LiveMigratable is %+v by %s", c, m.get().Status.MigrationMethod)
	}
	shell := m.shell()
	must := func(command string) string {
		t.Helper()
		out, status := shell.run(command)
		if status != 0 {
			t.Fatalf("%s: %q (%d)", command, out, status)
		}
		return strings.TrimSpace(out)
	}
	must("mkdir -p /tmp && dd if=/dev/urandom of=/dev/vdb bs=1M count=4 conv=fsync 2>/dev/null && sync")
	sum := must("dd if=/dev/vdb bs=1M count=4 2>/dev/null | md5sum")
	must(counting)
	guests := guestsOn(t, m.get().Spec.Domain.Firmware.UUID)
	var downtimes []int64
	for i := range 20 {
		to := []string{secondName, firstName}[i%2]
		from := m.get().Status.NodeName
		before, booted := m.pod(), seconds(t, must("cut -d' ' -f1 /proc/uptime"))
		count := int(seconds(t, must("cat /tmp/count")))
		begun := time.Now()
		s := m.migrate(fmt.Sprint("move-", i), nil).ends(v1.MigrationSucceeded)
		downtime, sent := cost(s)
		t.Logf("from %s to %s in %.1f s; QEMU's downtime is %d ms, %d bytes were sent", from, to, time.Since(begun).Seconds(), downtime, sent)
		downtimes = append(downtimes, downtime)
		now := m.get()
		if now.UID != uid || now.Status.Phase != v1.Running || now.Status.NodeName != to || s.SourceNode != from || s.TargetNode != to {
			t.Fatalf("VMI %s is %s on %s; %+v", now.UID, now.Status.Phase, now.Status.NodeName, s)
		}
		// The source's launcher ends after the migration has.
		if err := poll(func() error {
			if got := guests(); got != 1 {
				return fmt.Errorf("%d QEMUs have the guest", got)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		m.is(v1.VirtualMachineStatusRunning)
		shell = m.shell()
		if up := seconds(t, must("cut -d' ' -f1 /proc/uptime")); up < booted {
			t.Errorf("the guest was up for %.1f s, and now for %.1f s", booted, up)
		}
		told := int(seconds(t, must("cat /tmp/count")))
		if told <= count {
			t.Errorf("the guest counted to %d, and now is at %d", count, told)
		}
		if got := must(fmt.Sprintf("echo 3 >/proc/sys/vm/drop_caches; dd if=/dev/vdb bs=512 skip=%d count=%d 2>/dev/null | tr -d '\\000' | md5sum", firstSector+1, told)); got != numbers(told) {
			t.Errorf("of %d numbers that the guest wrote, some are lost", told)
		}
		if got := must("sync; echo 3 >/proc/sys/vm/drop_caches; dd if=/dev/vdb bs=1M count=4 2>/dev/null | md5sum"); got != sum {
			t.Errorf("the disk has %s, and had %s", got, sum)
		}
		m.reached(before, to)
	}
	t.Logf("the downtimes, in ms: %d", downtimes)
	m.awaitEvents("PreparingTarget", "Migrating", "SuccessfulMigration")
	kubectl(t, "-n", ns, "delete", "vm", m.name, "--timeout=600s")
}

// reached checks that the guest's addresses are its new pod's, and that the pod before has ended well.
func (m vm) reached(before *corev1.Pod, node string) {
	m.t.Helper()
	pod := m.pod()
	if pod.Name == before.Name || pod.Spec.NodeName != node {
		m.t.Errorf("the guest is in pod %s on %s", pod.Name, pod.Spec.NodeName)
	}
	err := poll(func() error {
		if ip := m.get().Status.Interfaces[0].IP; ip != pod.Status.PodIP {
			return fmt.Errorf("the guest's address is %s, and its pod's %s", ip, pod.Status.PodIP)
		}
		if err := echoes(m.namespace, pod.Status.PodIP, 9999); err != nil {
			return err
		}
		return echoes(m.namespace, serviceIP(m.t, m.namespace, "guest"), 80)
	})
	if err != nil {
		m.t.Error(err)
	}
	err = poll(func() error {
		old, err := getObject[corev1.Pod]("-n", m.namespace, "pod", before.Name)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil && old.Status.Phase != corev1.PodSucceeded {
			err = fmt.Errorf("the pod that the guest has left is %s", old.Status.Phase)
		}
		return err
	})
	if err != nil {
		m.t.Error(err)
	}
}

func seconds(t *testing.T, text string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// guestsOn counts the QEMUs of a machine on all nodes, which have one kernel.
func guestsOn(t *testing.T, uuid string) func() int {
	return func() int {
		t.Helper()
		out, err := output("", "sh", "-c", `grep -alF -e "$1" /proc/[0-9]*/cmdline 2>/dev/null | xargs -r grep -al '^/usr/bin/qemu-system' 2>/dev/null | wc -l`, "sh", uuid)
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(out))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// TestMigrationCancelled: a migration that is deleted leaves the guest where it is, and nothing else. The next begins at
// once.
func TestMigrationCancelled(t *testing.T) {
	newSecondNode(t)
	ns := namespace(t)
	kubectl(t, "cordon", secondName)
	v := create(t, ns, tiny("stays"))
	v.await(v1.Running)
	v.log().shows("tiny: eth0")
	source := v.pod().Name
	// No node takes the target pod, for now.
	release := full(t, ns, secondName)
	kubectl(t, "uncordon", secondName)
	waits := v.migrate("waits", nil)
	err := poll(func() error {
		if phase := waits.get().Status.Phase; phase != v1.MigrationScheduling {
			return fmt.Errorf("it is %s", phase)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	kubectl(t, "-n", ns, "delete", "vmim", "waits", "--timeout=600s")
	now := v.get()
	if s := now.Status.MigrationState; now.Status.Phase != v1.Running || !s.AbortRequested || s.AbortStatus != v1.MigrationAbortSucceeded || s.Decision != v1.DecisionSource {
		t.Errorf("%s, %+v", now.Status.Phase, s)
	}
	release()
	err = poll(func() error {
		pods := get[corev1.PodList](t, "-n", ns, "pods", "-l", "kubevirt.io=virt-launcher").Items
		if len(pods) != 1 || pods[0].Name != source {
			return fmt.Errorf("%d pods are left", len(pods))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	v.migrate("goes", nil).ends(v1.MigrationSucceeded)
	// A node that does not fit is said.
	if out, err := output("", "kubectl", "-n", ns, "get", "vmim", "goes", "-o", "wide"); err != nil || !strings.Contains(out, secondName) || !strings.Contains(out, "Succeeded") {
		t.Errorf("kubectl get: %s, %v", out, err)
	}
}
