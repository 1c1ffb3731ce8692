package series

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

func TestMain(m *testing.M) { golden.Main(m, "testdata/*.golden") }

// collects is a collector of what a function sends.
type collects func(chan<- prometheus.Metric)

func (collects) Describe(chan<- *prometheus.Desc)         {}
func (send collects) Collect(to chan<- prometheus.Metric) { send(to) }

// exposition is what a scraper would read.
func exposition(t *testing.T, from prometheus.Gatherer) string {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			t.Fatal(err)
		}
	}
	return text.String()
}

// scraped compares what a scraper would read with a file of testdata.
func scraped(t *testing.T, name string, from prometheus.Gatherer) {
	t.Helper()
	got := exposition(t, from)
	golden.Compare(t, "testdata/"+name, got)
	lint(t, got)
}

// kubeVirts are names that promlint dislikes and that are KubeVirt's.
var kubeVirts = map[string]string{
	"kubevirt_vm_starting_status_last_transition_timestamp_seconds":    `counter metrics should have "_total" suffix`,
	"kubevirt_vm_running_status_last_transition_timestamp_seconds":     `counter metrics should have "_total" suffix`,
	"kubevirt_vm_migrating_status_last_transition_timestamp_seconds":   `counter metrics should have "_total" suffix`,
	"kubevirt_vm_non_running_status_last_transition_timestamp_seconds": `counter metrics should have "_total" suffix`,
	"kubevirt_vmi_migration_data_total_bytes":                          `non-counter metrics should not have "_total" suffix`,
	"kubevirt_vm_error_status_last_transition_timestamp_seconds":       `counter metrics should have "_total" suffix`,
}

func lint(t *testing.T, text string) {
	t.Helper()
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Error(err)
	}
	for _, p := range problems {
		if kubeVirts[p.Metric] != p.Text {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

func instance() *v1.VirtualMachineInstance {
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "web", UID: "1234",
		// The latter two would be one label.
		Labels:      map[string]string{"app.kubernetes.io/name": "web", "a.b": "first", "a-b": "second"},
		Annotations: map[string]string{"vm.kubevirt.io/os": "debian12", "kubevirt.io/cluster-instancetype-name": "small"}}}
	d := &vmi.Spec.Domain
	d.CPU = &v1.CPU{Cores: 2}
	d.Memory = &v1.Memory{Guest: ptr.To(resource.MustParse("512Mi"))}
	d.Devices.Disks = []v1.Disk{{Name: "root"}, {Name: "data"}}
	d.Devices.Interfaces = []v1.Interface{{Name: "default"}, {Name: "other"}}
	vmi.Spec.Networks = []v1.Network{{Name: "default", Pod: &v1.PodNetwork{}}, {Name: "other", Multus: &v1.MultusNetwork{NetworkName: "lan"}}}
	vmi.Status = v1.VirtualMachineInstanceStatus{NodeName: "node-1", Phase: v1.Running, Machine: &v1.Machine{Type: "pc-q35-7.2"},
		Memory:     &v1.MemoryStatus{MemoryOverhead: ptr.To(resource.MustParse("290Mi"))},
		ActivePods: map[types.UID]string{"5678": "node-1"}, Interfaces: []v1.NetworkInterfaceStatus{{Name: "default", IP: "10.0.0.7"},
			// Without IPAM the address is the guest's word, which may be another each time.
			{Name: "other", IP: "192.168.1.50", IPAM: ptr.To(false)},
			// What the guest's agent says, which would be one series twice.
			{IP: "172.17.0.1", InterfaceName: "docker0", InfoSource: "guest-agent"}, {IP: "172.17.0.1", InterfaceName: "docker0", InfoSource: "guest-agent"}}}
	return vmi
}

// TestVMIStats: every number is in its series, and of what a launcher says
// nothing but numbers.
func TestVMIStats(t *testing.T) {
	n := ptr.To[uint64]
	stats := &control.Stats{
		CPU:      &control.CPUStats{User: 12_500_000_000, System: 2_500_000_000},
		VCPUs:    []control.VCPUStats{{Time: 5_000_000_000, Delay: 1_000_000, Wait: n(7_000_000)}, {Time: 6_000_000_000}, {Time: 1}}, // the third is none
		Resident: 200 << 20, Own: &control.OwnMemory{QEMU: 20 << 20, Launcher: 9 << 20}, Balloon: n(512 << 20),
		Guest: &control.GuestMemory{Available: n(500 << 20), Unused: n(300 << 20), Usable: n(400 << 20), Cached: n(50 << 20), SwapIn: n(1), SwapOut: n(2), MajorFaults: n(3)},
		Disks: []control.DiskStats{
			{Name: "root", Read: control.IOStats{Operations: 10, Bytes: 40960, Time: 5_000_000}, Write: control.IOStats{Operations: 20, Bytes: 81920, Time: 50_000_000}, Flush: control.IOStats{Operations: 3, Time: 9_000_000}},
			{Name: "root", Read: control.IOStats{Operations: 99}}, {Name: "data"}, {Name: "evil{}\n"}},
		NICs: []control.NICStats{
			{Name: "default", Receive: control.TrafficStats{Bytes: 1000, Packets: 10, Errors: 1, Dropped: 2}, Transmit: control.TrafficStats{Bytes: 2000, Packets: 20, Errors: 3, Dropped: 4}},
			{Name: "default"}, {Name: "evil"}},
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collects(func(to chan<- prometheus.Metric) {
		s := NewVMIStats()
		s.Send(to, instance(), stats)
		// One of which nothing is known, with labels of its own.
		another := instance()
		another.Name, another.Labels = "empty", nil
		s.Send(to, another, &control.Stats{})
	}))
	scraped(t, "vmistats.golden", registry)
}

func TestVMILabelsAreBounded(t *testing.T) {
	vmi := instance()
	for i := range 1000 {
		vmi.Labels[strings.Repeat("x", i%60+1)+string(rune('a'+i%26))] = "v"
	}
	if n := len(vmiLabels(vmi)); n != 2*(3+maxVMILabels) {
		t.Errorf("the series of a VMI have %d labels", n/2)
	}
}

func TestSeriesOfVMsAndVMIs(t *testing.T) {
	ended := instance()
	ended.Name, ended.Status.Phase = "ended", v1.Succeeded
	fresh := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "fresh"}}
	vm := v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "web", CreationTimestamp: metav1.Unix(1700000000, 0)}}
	vm.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "small"}
	vm.Spec.Template.ObjectMeta.Annotations = map[string]string{"vm.kubevirt.io/workload": "server"}
	vm.Status.PrintableStatus = v1.VirtualMachineStatusRunning
	vm.Status.Conditions = []v1.VirtualMachineInstanceCondition{{Type: v1.ConditionReady, Status: metav1.ConditionTrue, LastTransitionTime: metav1.Unix(1700000100, 0)}}
	crashing := v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "team-b", Name: "crashing", CreationTimestamp: metav1.Unix(1700000001, 0)}}
	crashing.Status.PrintableStatus = v1.VirtualMachineStatusCrashLoopBackOff
	objects := &Objects{Log: logr.Discard(), PodName: func(vmi *v1.VirtualMachineInstance) string { return "virt-launcher-" + vmi.Name },
		List: func(context.Context) ([]v1.VirtualMachine, []v1.VirtualMachineInstance, error) {
			return []v1.VirtualMachine{vm, crashing}, []v1.VirtualMachineInstance{*instance(), *ended, *fresh}, nil
		}}
	registry := prometheus.NewRegistry()
	registry.MustRegister(objects)
	scraped(t, "objects.golden", registry)
}

func TestPhaseTransitionTimes(t *testing.T) {
	registry := prometheus.NewRegistry()
	phases := NewPhases(registry)
	start := time.Unix(1700000000, 0)
	vmi := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(start)}}
	enter := func(p v1.VirtualMachineInstancePhase, after time.Duration) {
		before := vmi.DeepCopy()
		vmi.Status.SetPhase(p, metav1.NewTime(start.Add(after)))
		phases.Observe(before, vmi)
		phases.Observe(vmi, vmi) // nothing new
	}
	enter(v1.Pending, -time.Second) // by another clock
	enter(v1.Scheduling, time.Second)
	enter(v1.Scheduled, 3*time.Second)
	enter(v1.Running, 4*time.Second)
	vmi.DeletionTimestamp = ptr.To(metav1.NewTime(start.Add(100 * time.Second)))
	enter(v1.Succeeded, 107*time.Second)
	scraped(t, "phases.golden", registry)
}
