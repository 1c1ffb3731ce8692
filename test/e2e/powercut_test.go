package e2e

import (
	"crypto/md5"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// late is how late the network, or virt-handler, is after one.
const late = 125 * time.Second

// writeRecords is what a guest writes to its second disk, each synced before it is
// said on the console: a record a sector, from sector 1 on.
const writeRecords = `i=0; while :; do i=$((i+1)); printf 'record %08d' $i | dd of=/dev/vdb bs=512 seek=$i conv=sync,fsync 2>/dev/null && echo "syn""ced:$i"; done`

var synced = regexp.MustCompile(`synced:(\d+)\r?\n`)

// lastSynced is the number of the last record that the guest has said is synced.
func lastSynced(s *transcript) int {
	n := 0
	if all := synced.FindAllStringSubmatch(s.all(), -1); len(all) > 0 {
		fmt.Sscan(all[len(all)-1][1], &n)
	}
	return n
}

// holdsRecords looks, in the guest, whether its disk has the first n records.
func (v vmi) holdsRecords(n int) {
	v.t.Helper()
	sum := md5.New()
	for i := 1; i <= n; i++ {
		fmt.Fprintf(sum, "record %08d", i)
	}
	got := v.in(v.shell(), fmt.Sprintf(`dd if=/dev/vdb bs=512 skip=1 count=%d 2>/dev/null | tr -d '\000' | md5sum`, n))
	if want := fmt.Sprintf("%x", sum.Sum(nil)); strings.Fields(got)[0] != want {
		v.t.Errorf("the first %d records, which were synced, are not on the disk of %s", n, v.name)
	}
}

// power is the power of the test's cluster.
type power struct{ t *testing.T }

func (p power) cluster(command string, args ...string) {
	p.t.Helper()
	if _, err := output("", "cluster", append([]string{command, "--name", os.Getenv(clusterVariable)}, args...)...); err != nil {
		p.t.Fatal(err)
	}
}

// cut cuts it; the test's end brings it back.
func (p power) cut() {
	p.t.Helper()
	p.t.Cleanup(func() { output("", "cluster", "power-on", "--name", os.Getenv(clusterVariable)) })
	p.cluster("power-cut")
}

// back waits until VMs run, in other VMIs than before.
func (p power) back(since time.Time, machines []vm, before []types.UID) {
	p.t.Helper()
	err := poll(func() error {
		// Not by get: the API server may just be starting.
		out, err := output("", "kubectl", "-n", machines[0].namespace, "get", "vmi", "-o", "json")
		if err != nil {
			return err
		}
		var all v1.VirtualMachineInstanceList
		if err := json.Unmarshal([]byte(out), &all); err != nil {
			return err
		}
		processes, err := nodeProcesses()
		if err != nil {
			return err
		}
		for i, m := range machines {
			if err := runsAnew(all.Items, processes, m.name, before[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		p.t.Fatalf("after the power was back: %v", err)
	}
	p.t.Logf("all VMs run %.0f s after the power was back", time.Since(since).Seconds())
	for _, m := range machines {
		m.is(v1.VirtualMachineStatusRunning)
	}
	p.one(machines)
}

func runsAnew(all []v1.VirtualMachineInstance, processes []nodeProcess, name string, before types.UID) error {
	i := slices.IndexFunc(all, func(v v1.VirtualMachineInstance) bool { return v.Name == name })
	if i < 0 {
		return fmt.Errorf("VMI %s does not exist", name)
	}
	v := all[i]
	// The status may be from before the power cut.
	hasQEMU := slices.ContainsFunc(processes, func(p nodeProcess) bool { return p.isQEMU() && slices.Contains(p.Args, v.Spec.Domain.Firmware.UUID) })
	if v.UID == before || v.Status.Phase != v1.Running || !hasQEMU {
		return fmt.Errorf("VMI %s (%s, was %s) is %s, has a QEMU: %v; %+v", name, v.UID, before, v.Status.Phase, hasQEMU, v.Status.Conditions)
	}
	return nil
}

// one looks whether each VM has one QEMU and one pod.
func (p power) one(machines []vm) {
	p.t.Helper()
	for _, m := range machines {
		m.qemu() // fails if there are two
		var names []string
		for _, pod := range get[corev1.PodList](p.t, "-n", m.namespace, "pods", "-l", "kubevirt.io/vm="+m.name).Items {
			names = append(names, fmt.Sprintf("%s (%s %s)", pod.Name, pod.Status.Phase, pod.Status.Reason))
		}
		if len(names) != 1 {
			p.t.Errorf("VM %s has the pods %v, want one", m.name, names)
		}
	}
}

// TestPowerCut: after a power cut every VM that shall always run runs again, by
// itself, with all that its guest had synced; those that do not shall not. So it
// is too if virt-handler, or the pods' network, is there minutes later only.
func TestPowerCut(t *testing.T) {
	check := addsNothing(t)
	c := claims{t, namespace(t)}
	folder := c.folder("data", "100Mi", "true")
	machines := []vm{
		createVM(t, c.namespace, "disk", v1.RunStrategyAlways, onClaim("data")),
		createVM(t, c.namespace, "one", v1.RunStrategyAlways),
		createVM(t, c.namespace, "two", v1.RunStrategyAlways),
	}
	halted := createVM(t, c.namespace, "halted", v1.RunStrategyHalted)
	once := createVM(t, c.namespace, "once", v1.RunStrategyOnce)
	ended := once.runs("")
	once.powerOff()
	once.ends(v1.Succeeded)
	p := power{t}
	conflist := filepath.Join(filepath.Dir(os.Getenv("KUBECONFIG")), "node-1", "cni", "10-pods.conflist")
	stages := []struct {
		name string
		run  func()
	}{
		{"power cut", func() {
			p.cut()
			p.cluster("power-on")
		}},
		{"virt-handler is late", func() {
			start := stopHandler(t)
			p.cut()
			p.cluster("power-on")
			time.Sleep(late)
			start()
		}},
		{"the network is late", func() {
			p.cut()
			if err := os.Rename(conflist, conflist+".away"); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.Rename(conflist+".away", conflist) })
			p.cluster("power-on", "--no-wait")
			time.Sleep(late)
			if err := os.Rename(conflist+".away", conflist); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for _, stage := range stages {
		t.Logf("== %s", stage.name)
		before := make([]types.UID, len(machines))
		for i, m := range machines {
			before[i] = m.runs("")
		}
		shell := machines[0].shell()
		shell.send(writeRecords + "\n")
		shell.shows(`synced:30\r?\n`)
		stage.run()
		n := lastSynced(shell)
		p.back(time.Now(), machines, before)
		machines[0].holdsRecords(n)
		t.Logf("%d records were synced", n)
		halted.ends("")
		once.ends(v1.Succeeded)
		if now := once.uid(); now != ended {
			t.Errorf("the VMI of VM %s that had ended is %s, was %s", once.name, now, ended)
		}
	}
	p.cutWhileStarting(machines)
	if out, err := onNode(`ls -A "$1"`, folder); err != nil || out != "disk.img\n" {
		t.Errorf("in the volume: %q (%v)", out, err)
	}
	kubectl(t, "-n", c.namespace, "delete", "vm", "--all", "--timeout=600s")
	check()
	addressesAreFreed(t)
}

// cutWhileStarting cuts the power while pods are made, admitted and started: one
// that was turned away before anything of it ran may be replaced within its VMI.
func (p power) cutWhileStarting(machines []vm) {
	p.t.Helper()
	for i, until := range []v1.VirtualMachineInstancePhase{v1.Scheduling, v1.Scheduled} {
		p.t.Logf("== power cut, while one is %s", until)
		before := make([]types.UID, len(machines))
		for i, m := range machines {
			before[i] = m.runs("")
			m.asks(stopIt(before[i]), startIt)
		}
		err := poll(func() error {
			out, err := output("", "kubectl", "-n", machines[i].namespace, "get", "vmi", machines[i].name, "-o", "jsonpath={.metadata.uid} {.status.phase}")
			if err != nil {
				return err
			}
			uid, phase, _ := strings.Cut(out, " ")
			if types.UID(uid) == before[i] || v1.VirtualMachineInstancePhase(phase) != until && phase != string(v1.Running) {
				return fmt.Errorf("VMI %s is %s", machines[i].name, out)
			}
			return nil
		})
		if err != nil {
			p.t.Fatal(err)
		}
		p.cut()
		p.cluster("power-on")
		p.back(time.Now(), machines, before)
	}
}

// TestKubeletKilled: VMs do not notice that the kubelet is killed and started
// again, even if virt-handler, and so its device plugins, are not there then. The images of one VM come by containers,
// of which one has ended.
func TestKubeletKilled(t *testing.T) {
	ns := namespace(t)
	all := []vmi{create(t, ns, tiny("kubelet-killed"))}
	all[0].await(v1.Running)
	if !withoutImageVolumes() {
		configure(t, `{"developerConfiguration":{"disabledFeatureGates":["ImageVolume"]}}`,
			`{"developerConfiguration":{"disabledFeatureGates":null}}`)
	}
	all = append(all, create(t, ns, tiny("with-containers", bootsKernel)))
	all[1].await(v1.Running)
	var before []nodeProcess
	for _, v := range all {
		before = append(before, v.qemu())
	}
	start := stopHandler(t)
	for range 2 {
		power{t}.cluster("stop", "kubelet")
		power{t}.cluster("start", "kubelet")
		time.Sleep(10 * time.Second) // for it to do what it should not
		start()
		for i, v := range all {
			if now := v.qemu(); now.PID != before[i].PID || now.Start != before[i].Start {
				t.Errorf("QEMU of %s is %d, was %d", v.name, now.PID, before[i].PID)
			}
			if pod := v.pod(); pod.Status.Phase != corev1.PodRunning {
				t.Errorf("the pod of %s is %s (%s)", v.name, pod.Status.Phase, pod.Status.Reason)
			}
			v.awaitReady("GuestRunning")
		}
	}
}

// addressesAreFreed looks whether the IPAM plugin keeps addresses of pods only
// that exist.
func addressesAreFreed(t *testing.T) {
	t.Helper()
	err := poll(func() error {
		out, err := onNode(`cd /var/lib/cni/networks/pods && ls | grep -E '^[0-9.]+$' | sort`)
		if err != nil {
			return err
		}
		used := map[string]bool{}
		for _, pod := range get[corev1.PodList](t, "pods", "-A").Items {
			used[pod.Status.PodIP] = true
		}
		var errs []error
		for _, address := range strings.Fields(out) {
			if !used[address] {
				errs = append(errs, fmt.Errorf("address %s is kept for no pod", address))
			}
		}
		return errors.Join(errs...)
	})
	if err != nil {
		t.Error(err)
	}
}
