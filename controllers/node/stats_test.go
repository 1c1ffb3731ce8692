package node

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
	"github.com/kubeqemu/kubeqemu/controllers/series"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// statsNode is a node whose VMIs have launchers that answer as a test wants.
type statsNode struct {
	t        *testing.T
	sessions *sessions.Set
	objects  []client.Object
	asked    map[string]*atomic.Int32
}

func newStatsNode(t *testing.T) *statsNode {
	return &statsNode{t: t, sessions: sessions.NewSet(testr.New(t), func(types.NamespacedName) {}), asked: map[string]*atomic.Int32{}}
}

// add adds a running VMI. Its launcher answers with the text; without one it
// does not answer.
func (n *statsNode) add(name, text string) {
	n.t.Helper()
	object := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
		Status: v1.VirtualMachineInstanceStatus{NodeName: "n1", Phase: v1.Running, ActivePods: map[types.UID]string{"p": "n1"}}}
	object.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "root"}}
	n.objects = append(n.objects, object)
	asked := &atomic.Int32{}
	n.asked[name] = asked
	ours, theirs := testkit.SocketPair(n.t)
	pod := types.NamespacedName{Namespace: "ns", Name: v1.LauncherPodName(name, types.UID(name), v1.FirstPod)}
	if !n.sessions.Add(&sessions.Session{Slot: name, Pod: pod, Commands: control.KnownCommands(), Client: control.NewClient(control.NewConn(ours), control.Limits{}, func(*control.Message) {})}) {
		n.t.Fatal("the session is not taken")
	}
	launcher := control.NewConn(theirs)
	n.t.Cleanup(func() { ours.Close(); theirs.Close() })
	go func() {
		for {
			m, err := launcher.Receive()
			if err != nil {
				return
			}
			asked.Add(1)
			if text != "" {
				launcher.Send(control.Message{ID: m.ID, Return: json.RawMessage(text)})
			}
		}
	}()
}

// scrape returns the values by name and VMI.
func (n *statsNode) scrape(patience time.Duration) map[string]float64 {
	n.t.Helper()
	registry := prometheus.NewRegistry()
	c := fake.NewClientBuilder().WithScheme(nodetest.Scheme(n.t)).WithObjects(n.objects...).Build()
	collector := NewStatsCollector(&Reconciler{Client: c, NodeName: "n1", Sessions: n.sessions}, testr.New(n.t))
	collector.patience = patience
	registry.MustRegister(collector)
	families, err := registry.Gather()
	if err != nil {
		n.t.Error(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			values[strings.TrimSpace(f.GetName()+" "+label(m, "name"))] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return values
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.Label {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

const aStatistic = `{"resident": 1048576, "disks": [{"name": "root", "read": {"operations": 7, "time": 1}, "write": {"operations": 0, "time": 0}, "flush": {"operations": 0, "time": 0}}]}`

// TestStatsCollector: a launcher that is silent, or says what it should not,
// keeps nobody from the others' numbers, and is counted.
func TestStatsCollector(t *testing.T) {
	testkit.Slower(t, statsPatience/10, func(patience time.Duration) error { return statsCollector(t, patience) })
}

// statsCollector returns an error if another number of launchers has answered in time.
func statsCollector(t *testing.T, patience time.Duration) error {
	t.Helper()
	n := newStatsNode(t)
	n.add("good", aStatistic)
	n.add("silent", "")
	n.add("older", `"text"`)
	n.add("flood", `{"disks": [`+strings.Repeat(`{},`, 100_000)+`{}]}`)
	n.add("newer", `{"resident": 1, "labels": {"namespace": "other"}}`) // says more than is known here
	n.add("negative", `{"resident": -1}`)
	scraped := make(chan map[string]float64, 1)
	go func() { scraped <- n.scrape(patience) }()
	values := testkit.Receive(t, scraped, "a scrape, which waits for nobody")
	for key := range values {
		if strings.HasPrefix(key, "kubevirt_vmi_memory_resident") && !strings.HasSuffix(key, " good") && !strings.HasSuffix(key, " newer") {
			t.Errorf("there is %s", key)
		}
	}
	if values["kubevirt_vmi_memory_resident_bytes good"] != 1<<20 || values["kubevirt_vmi_storage_iops_read_total good"] != 7 {
		return fmt.Errorf("the good launcher's numbers are %v", values)
	}
	if got := values["kubeqemu_vmi_stats_unanswered"]; got != 4 {
		return fmt.Errorf("%v launchers did not answer, want 4", got)
	}
	// Its answer is shared; who owes one is not asked again.
	n.scrape(patience)
	if good, silent := n.asked["good"].Load(), n.asked["silent"].Load(); good > 2 || silent != 1 {
		t.Errorf("two scrapes asked the good launcher %d times, and the silent one %d times", good, silent)
	}
	return nil
}

// TestStatsAreSharedByWhoWaits: who asks while another waits waits for the same answer.
func TestStatsAreSharedByWhoWaits(t *testing.T) {
	n := newStatsNode(t)
	n.add("good", aStatistic)
	launcher := n.sessions.Get(types.NamespacedName{Namespace: "ns", Name: v1.LauncherPodName("good", "good", v1.FirstPod)})
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if stats, err := launcher.Stats(t.Context()); err != nil || stats.Resident != 1<<20 {
				t.Errorf("%+v, %v", stats, err)
			}
		})
	}
	all.Wait()
	if asked := n.asked["good"].Load(); asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

// FuzzStats plays a launcher that says anything of what its VM uses: the series
// are those of the VMI, and no more.
func FuzzStats(f *testing.F) {
	f.Add([]byte(aStatistic))
	f.Add([]byte(`{"cpu":{"user":1,"system":18446744073709551615},"vcpus":[{"time":1,"delay":1,"wait":1},{}],"guest":{"available":1},"balloon":0}`))
	f.Add([]byte(`{"nics":[{"name":"default","receive":{"bytes":1}},{"name":"default"},{"name":"\u0000"}]}`))
	object := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm"}, Status: v1.VirtualMachineInstanceStatus{NodeName: "n1"}}
	object.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "root"}, {Name: "data"}}
	object.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default"}}
	const most = 13 + 3 + 2*8 + 10 // memory and CPU, one virtual CPU, two disks, one network card
	sent := series.NewVMIStats()
	f.Fuzz(func(t *testing.T, data []byte) {
		stats, err := sessions.ReadStats(data)
		if err != nil {
			return
		}
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(gathered(func(to chan<- prometheus.Metric) { sent.Send(to, object, stats) }))
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, family := range families {
			n += len(family.Metric)
			for _, m := range family.Metric {
				if drive := label(m, "drive"); drive != "" && drive != "root" && drive != "data" || label(m, "namespace") != "ns" {
					t.Fatalf("a series of %v", m.Label)
				}
			}
		}
		if n > most {
			t.Fatalf("%d series of one VMI: %s", n, fmt.Sprint(families))
		}
	})
}

type gathered func(chan<- prometheus.Metric)

func (gathered) Describe(chan<- *prometheus.Desc)      {}
func (g gathered) Collect(to chan<- prometheus.Metric) { g(to) }
