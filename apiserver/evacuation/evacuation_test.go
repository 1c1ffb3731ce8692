package evacuation

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const uid = types.UID("0a1b2c3d-0000-4000-8000-000000000001")

// guest is a VMI that runs on node1, whose eviction asks that it be brought elsewhere.
func guest() *v1.VirtualMachineInstance {
	return &v1.VirtualMachineInstance{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1.GroupVersion.String(), Kind: "VirtualMachineInstance"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", UID: uid, ResourceVersion: "7"},
		Spec:       v1.VirtualMachineInstanceSpec{Architecture: "amd64", EvictionStrategy: ptr.To(v1.EvictionStrategyExternal)},
		Status: v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: "node1",
			LauncherPods: []v1.LauncherPod{{Name: v1.LauncherPodName("vm", uid, v1.FirstPod), UID: "pod"}, {Name: v1.LauncherPodName("vm", uid, "m"), UID: "target"}},
			ActivePods:   map[types.UID]string{"pod": "node1", "target": "node2"}},
	}
}

func strategy(s v1.EvictionStrategy) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.EvictionStrategy = &s }
}

// TestOnlyTheGuestsPodTriggersEvacuation: only the pod where the guest is asks the guest to leave. While the guest migrates, neither of its pods is
// evicted.
func TestOnlyTheGuestsPodTriggersEvacuation(t *testing.T) {
	const triggered, migrates = "Eviction triggered evacuation", "migrates between two pods"
	first, target := v1.LauncherPodName("vm", uid, v1.FirstPod), v1.LauncherPodName("vm", uid, "m")
	under := func(decision v1.MigrationDecision) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m", SourcePod: first, TargetPod: target, SourceNode: "node1", TargetNode: "node2", Decision: decision}
		}
	}
	arrived := func(vmi *v1.VirtualMachineInstance) {
		under(v1.DecisionTarget)(vmi)
		vmi.Status.NodeName, vmi.Status.LauncherPod = "node2", target
	}
	for name, c := range map[string]struct {
		pod  string
		edit func(*v1.VirtualMachineInstance)
		want string // empty if the pod may be evicted
	}{
		"its pod":                         {first, func(*v1.VirtualMachineInstance) {}, triggered},
		"None":                            {first, strategy(v1.EvictionStrategyNone), ""},
		"no strategy":                     {first, func(vmi *v1.VirtualMachineInstance) { vmi.Spec.EvictionStrategy = nil }, ""},
		"the guest has ended":             {first, func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Succeeded }, ""},
		"the VMI is being deleted":        {first, func(vmi *v1.VirtualMachineInstance) { vmi.DeletionTimestamp = ptr.To(metav1.Now()) }, ""},
		"no node yet":                     {first, func(vmi *v1.VirtualMachineInstance) { vmi.Status.NodeName, vmi.Status.ActivePods = "", nil }, ""},
		"the pod is not known":            {"virt-launcher-vm-0000000000", func(*v1.VirtualMachineInstance) {}, ""},
		"a pod where the guest is not":    {target, func(*v1.VirtualMachineInstance) {}, ""},
		"the source of a migration":       {first, under(""), triggered},
		"the target of a migration":       {target, under(""), migrates},
		"the target that was decided for": {target, under(v1.DecisionTarget), migrates},
		"the target that has the guest":   {target, arrived, triggered},
		"the source that was left":        {first, arrived, migrates},
		"the target, on the same node": {target, func(vmi *v1.VirtualMachineInstance) {
			under("")(vmi)
			vmi.Status.ActivePods["target"] = "node1"
		}, migrates},
		"the source that was left, on the same node": {first, func(vmi *v1.VirtualMachineInstance) {
			under(v1.DecisionTarget)(vmi)
			vmi.Status.LauncherPod, vmi.Status.ActivePods["target"] = target, "node1"
		}, migrates},
		"the source that was left on the same node, after the end": {first, func(vmi *v1.VirtualMachineInstance) {
			under(v1.DecisionTarget)(vmi)
			vmi.Status.LauncherPod, vmi.Status.ActivePods["target"], vmi.Status.MigrationState.Completed = target, "node1", true
		}, ""},
		"None, the target": {target, func(vmi *v1.VirtualMachineInstance) { under("")(vmi); strategy(v1.EvictionStrategyNone)(vmi) }, ""},
		"a target of earlier": {target, func(vmi *v1.VirtualMachineInstance) {
			under(v1.DecisionSource)(vmi)
			vmi.Status.MigrationState.Completed = true
		}, ""},
	} {
		for _, external := range []bool{true, false} {
			s := &apiServer{t: t, vmi: guest(), nodes: []corev1.Node{node("node1"), node("node2")}}
			if !external {
				strategy(v1.EvictionStrategyLiveMigrate)(s.vmi)
			}
			c.edit(s.vmi)
			err := s.guard().Evict(t.Context(), Eviction{Pod: types.NamespacedName{Namespace: "ns", Name: c.pod}, Trusted: true})
			if c.want == "" && err != nil || c.want != "" && (!apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s, External: %v: said %v, want %q", name, external, err, c.want)
			}
		}
	}
}

// node is a node that takes guests.
func node(name string, edits ...func(*corev1.Node)) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.SchedulableLabel: "true", "kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", "pool": "guests"}}}
	for _, edit := range edits {
		edit(&n)
	}
	return n
}

func cordoned(n *corev1.Node) { n.Spec.Unschedulable = true }

func tainted(effect corev1.TaintEffect) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "own", Effect: effect}} }
}

// TestGuestToBeMovedStaysUntilItHasMoved: a guest that is to move stays until it has moved. It is ended where it cannot move, and its strategy
// permits that or there is no other node.
func TestGuestToBeMovedStaysUntilItHasMoved(t *testing.T) {
	const triggered, not = `Eviction triggered evacuation of VMI "ns/vm"`, "not live-migratable: "
	bridged := func(vmi *v1.VirtualMachineInstance) {
		vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default", Bridge: &v1.InterfaceBridge{}}}
	}
	selects := func(name string) func(*v1.VirtualMachineInstance) {
		return func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": name}
		}
	}
	failed := func(vmi *v1.VirtualMachineInstance) {
		vmi.Status.EvacuationNodeName = "node1"
		vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m", Completed: true, Failed: true, FailureReason: "no room"}
	}
	one, two := node("node1", cordoned), []corev1.Node{node("node1", cordoned), node("node2")}
	for name, c := range map[string]struct {
		nodes    []corev1.Node
		edit     func(*v1.VirtualMachineInstance)
		stranger bool
		dry      bool
		// said is for LiveMigrate and for LiveMigrateIfPossible; empty if the pod may be evicted.
		said, possible string
		marks          bool
	}{
		"to another node":               {nodes: two, said: triggered, possible: triggered, marks: true},
		"a dry run":                     {nodes: two, dry: true, said: triggered, possible: triggered},
		"a stranger":                    {nodes: two, stranger: true, said: "evictionStrategy is LiveMigrate", possible: "evictionStrategy is LiveMigrateIfPossible"},
		"a stranger, the only node":     {nodes: []corev1.Node{one}, stranger: true, said: "only an account", possible: "only an account"},
		"the only node":                 {nodes: []corev1.Node{one}},
		"another that is cordoned":      {nodes: []corev1.Node{one, node("node2", cordoned)}},
		"another that is tainted":       {nodes: []corev1.Node{one, node("node2", tainted(corev1.TaintEffectNoSchedule))}},
		"another that ends pods":        {nodes: []corev1.Node{one, node("node2", tainted(corev1.TaintEffectNoExecute))}},
		"another that is not liked":     {nodes: []corev1.Node{one, node("node2", tainted(corev1.TaintEffectPreferNoSchedule))}, said: triggered, possible: triggered, marks: true},
		"another that is deleted":       {nodes: []corev1.Node{one, node("node2", func(n *corev1.Node) { n.DeletionTimestamp = ptr.To(metav1.Now()) })}},
		"another whose handler is away": {nodes: []corev1.Node{one, node("node2", func(n *corev1.Node) { n.Labels[v1.SchedulableLabel] = "false" })}, said: triggered, possible: triggered, marks: true},
		"another that has no handler":   {nodes: []corev1.Node{one, node("node2", func(n *corev1.Node) { delete(n.Labels, v1.SchedulableLabel) })}},
		"another that has a fault": {nodes: []corev1.Node{one, node("node2", func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute}}
		})}, said: triggered, possible: triggered, marks: true},
		"another of another processor": {nodes: []corev1.Node{one, node("node2", func(n *corev1.Node) { n.Labels["kubernetes.io/arch"] = "arm64" })}},
		"another outside of the pool":  {nodes: []corev1.Node{one, node("node2", func(n *corev1.Node) { delete(n.Labels, "pool") })}},
		"the only node, not cordoned":  {nodes: []corev1.Node{node("node1")}, said: triggered, possible: triggered, marks: true},
		"its node is gone":             {nodes: []corev1.Node{node("node2")}, said: triggered, possible: triggered, marks: true},
		"a stranger, it cannot move":   {nodes: two, stranger: true, edit: bridged, said: "only an account"},
		"a stranger, asked to leave":   {nodes: two, stranger: true, edit: failed, said: "only an account", possible: "only an account"},
		"another on the second page":   {nodes: []corev1.Node{one, node("node2", cordoned), node("node3")}, said: triggered, possible: triggered, marks: true},
		"a taint that it tolerates": {nodes: []corev1.Node{one, node("node2", tainted(corev1.TaintEffectNoSchedule))}, said: triggered, possible: triggered, marks: true,
			edit: func(vmi *v1.VirtualMachineInstance) {
				vmi.Spec.Tolerations = []corev1.Toleration{{Key: "own", Operator: corev1.TolerationOpExists}}
			}},
		"it wants its node":       {nodes: two, edit: selects("node1")},
		"it wants the other":      {nodes: two, edit: selects("node2"), said: triggered, possible: triggered, marks: true},
		"it cannot move":          {nodes: two, edit: bridged, said: not},
		"it cannot move anywhere": {nodes: []corev1.Node{one}, edit: bridged},
		"it does not run yet":     {nodes: two, edit: func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Scheduled }},
		"it moves, and the node is cordoned": {nodes: []corev1.Node{one, node("node2", cordoned)}, said: triggered, possible: triggered, marks: true,
			edit: func(vmi *v1.VirtualMachineInstance) {
				vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m"}
			}},
		"it moves to another pod there, and the node is cordoned": {nodes: []corev1.Node{one},
			edit: func(vmi *v1.VirtualMachineInstance) {
				vmi.Status.MigrationState, vmi.Status.ActivePods["target"] = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m"}, "node1"
			}},
		"it moves, and no node takes its target pod": {nodes: []corev1.Node{one},
			edit: func(vmi *v1.VirtualMachineInstance) {
				vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m"}
				delete(vmi.Status.ActivePods, "target")
			}},
		"it moves to another pod there, and there is another node": {nodes: two, said: triggered, possible: triggered, marks: true,
			edit: func(vmi *v1.VirtualMachineInstance) {
				vmi.Status.MigrationState, vmi.Status.ActivePods["target"] = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m"}, "node1"
			}},
		"its last migration failed": {nodes: two, said: "Evacuation in progress: " + triggered + ": its last migration failed: no room", possible: "no room", edit: failed},
	} {
		for strategy, said := range map[v1.EvictionStrategy]string{v1.EvictionStrategyLiveMigrate: c.said, v1.EvictionStrategyLiveMigrateIfPossible: c.possible} {
			s := &apiServer{t: t, vmi: guest(), nodes: c.nodes}
			s.vmi.Spec.EvictionStrategy = &strategy
			if c.edit != nil {
				c.edit(s.vmi)
			}
			err := s.guard().Evict(t.Context(), Eviction{Pod: types.NamespacedName{Namespace: "ns", Name: s.vmi.LauncherPod()}, Trusted: !c.stranger, DryRun: c.dry})
			if said == "" && err != nil || said != "" && (!apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), said)) {
				t.Errorf("%s, %s: said %v, want %q", name, strategy, err, said)
			}
			if marked := strings.Join(s.patches, "\n") == marking; marked != c.marks {
				t.Errorf("%s, %s: wrote %s", name, strategy, s.patches)
			}
			if c.stranger && (s.looks > 0 || err != nil && (strings.Contains(err.Error(), "bridged") || strings.Contains(err.Error(), "no room"))) {
				t.Errorf("%s, %s: a stranger learns of the nodes or of the VMI: %v", name, strategy, err)
			}
		}
	}
}

// apiServer has one VMI, and takes patches of its status.
type apiServer struct {
	t *testing.T

	mu      sync.Mutex
	vmi     *v1.VirtualMachineInstance // or nil
	down    bool
	prunes  bool // its kind has no evacuationNodeName
	changes int  // how often the VMI still changes before a patch
	patches []string
	nodes   []corev1.Node
	looks   int // how often the nodes were listed
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	fail := func(err *apierrors.StatusError) {
		w.WriteHeader(int(err.ErrStatus.Code))
		err.ErrStatus.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		_ = json.NewEncoder(w).Encode(err.ErrStatus)
	}
	resource := v1.GroupVersion.WithResource(instances).GroupResource()
	switch path := "/apis/kubevirt.io/v1/namespaces/ns/virtualmachineinstances/vm"; {
	case r.Method == http.MethodGet && r.URL.Path == "/api/v1/nodes":
		s.looks++
		s.page(w, r)
	case r.Method == http.MethodGet && strings.HasPrefix(r.URL.Path, "/api/v1/nodes/"):
		s.looks++
		i := slices.IndexFunc(s.nodes, func(n corev1.Node) bool { return "/api/v1/nodes/"+n.Name == r.URL.Path })
		if i < 0 {
			fail(apierrors.NewNotFound(corev1.Resource("nodes"), r.URL.Path))
			return
		}
		n := s.nodes[i]
		n.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
		_ = json.NewEncoder(w).Encode(n)
	case s.down:
		fail(apierrors.NewInternalError(io.ErrUnexpectedEOF))
	case s.vmi == nil:
		fail(apierrors.NewNotFound(resource, "vm"))
	case r.Method == http.MethodGet && r.URL.Path == path:
		_ = json.NewEncoder(w).Encode(s.vmi)
	case r.Method == http.MethodPatch && r.URL.Path == path+"/status" && r.Header.Get("Content-Type") == string(types.MergePatchType):
		body, err := io.ReadAll(r.Body)
		if err != nil {
			s.t.Error(err)
		}
		if s.changes > 0 {
			s.changes--
			fail(apierrors.NewConflict(resource, "vm", io.ErrUnexpectedEOF))
			return
		}
		s.patches = append(s.patches, string(body)+r.URL.RawQuery)
		patched := s.vmi.DeepCopy()
		if patched.Status.EvacuationNodeName = ""; !s.prunes && !strings.Contains(string(body), "null") {
			patched.Status.EvacuationNodeName = s.vmi.Status.NodeName
		}
		_ = json.NewEncoder(w).Encode(patched)
	default:
		s.t.Errorf("%s %s", r.Method, r.URL)
		w.WriteHeader(http.StatusNotFound)
	}
}

// page answers with one node of those that a selector names, and says that there are more.
func (s *apiServer) page(w http.ResponseWriter, r *http.Request) {
	selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		s.t.Error(err)
		return
	}
	list := corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
	var wanted []corev1.Node
	for _, n := range s.nodes {
		if selector.Matches(labels.Set(n.Labels)) {
			wanted = append(wanted, n)
		}
	}
	at, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	if at < len(wanted) {
		list.Items = wanted[at : at+1]
	}
	if at+1 < len(wanted) {
		list.Continue = strconv.Itoa(at + 1)
	}
	_ = json.NewEncoder(w).Encode(list)
}

func (s *apiServer) guard() *Guard {
	s.t.Helper()
	server := httptest.NewServer(s)
	s.t.Cleanup(server.Close)
	g, err := New(&rest.Config{Host: server.URL}, func() *v1.KubeVirtConfiguration {
		return &v1.KubeVirtConfiguration{DeveloperConfiguration: &v1.DeveloperConfiguration{NodeSelectors: map[string]string{"pool": "guests"}}}
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return g
}

const marking = `{"metadata":{"resourceVersion":"7","uid":"0a1b2c3d-0000-4000-8000-000000000001"},"status":{"evacuationNodeName":"node1"}}`

func TestEvictionMarksTheVMI(t *testing.T) {
	first := v1.LauncherPodName("vm", uid, v1.FirstPod)
	const triggered, progress = `Eviction triggered evacuation of VMI "ns/vm"`, `Evacuation in progress: `
	for name, c := range map[string]struct {
		down    bool
		prunes  bool
		changes int // how often the VMI changes before it is written
		edit    func(*v1.VirtualMachineInstance)
		pod     string
		trusted bool
		dry     bool
		said    string // "" if the pod may be evicted
		patches string
	}{
		"asked to leave":           {trusted: true, said: triggered, patches: marking},
		"a dry run":                {trusted: true, dry: true, said: triggered},
		"asked already":            {trusted: true, edit: func(vmi *v1.VirtualMachineInstance) { vmi.Status.EvacuationNodeName = "node1" }, said: progress + triggered},
		"asked to leave another":   {trusted: true, edit: func(vmi *v1.VirtualMachineInstance) { vmi.Status.EvacuationNodeName = "node9" }, said: triggered, patches: marking},
		"nobody says who asks":     {said: "only an account that may evict pods in all namespaces"},
		"None":                     {trusted: true, edit: strategy(v1.EvictionStrategyNone)},
		"no launcher's name":       {trusted: true, pod: "virt-api-1", down: true},
		"no such VMI":              {trusted: true, edit: func(vmi *v1.VirtualMachineInstance) { *vmi = v1.VirtualMachineInstance{} }},
		"an older kind":            {trusted: true, prunes: true, said: "the API server does not keep it", patches: marking},
		"changed twice":            {trusted: true, changes: 2, said: triggered, patches: marking},
		"keeps changing":           {trusted: true, changes: attempts, said: "VMI ns/vm keeps changing: try again"},
		"the API server is broken": {trusted: true, down: true, said: "get VMI ns/vm"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &apiServer{t: t, vmi: guest(), down: c.down, prunes: c.prunes, changes: c.changes}
			if c.edit != nil {
				c.edit(s.vmi)
			}
			if s.vmi.Name == "" {
				s.vmi = nil
			}
			pod := first
			if c.pod != "" {
				pod = c.pod
			}
			err := s.guard().Evict(t.Context(), Eviction{Pod: types.NamespacedName{Namespace: "ns", Name: pod}, Trusted: c.trusted, DryRun: c.dry})
			if c.said == "" && err != nil || c.said != "" && (err == nil || !strings.Contains(err.Error(), c.said)) {
				t.Errorf("said %v, want %q", err, c.said)
			}
			if err != nil && !c.down && !c.prunes && !apierrors.IsTooManyRequests(err) {
				t.Errorf("kubectl drain gives up after %v", err)
			}
			if got := strings.Join(s.patches, "\n"); got != c.patches {
				t.Errorf("wrote %s, want %s", got, c.patches)
			}
		})
	}
}

func TestCancelTakesTheMarkOffTheVMI(t *testing.T) {
	const removing = `{"metadata":{"resourceVersion":"7","uid":"0a1b2c3d-0000-4000-8000-000000000001"},"status":{"evacuationNodeName":null}}`
	for name, c := range map[string]struct {
		asked, node string
		dryRun      []string
		said        string
		patches     string
	}{
		"taken back":            {asked: "node1", patches: removing},
		"of this node":          {asked: "node1", node: "node1", patches: removing},
		"a dry run":             {asked: "node1", dryRun: []string{"All"}, patches: removing + "dryRun=All"},
		"asked nothing":         {},
		"of another node":       {asked: "node1", node: "node2", said: `the VMI is not asked to leave node "node2", but "node1"`},
		"asked nothing, a node": {node: "node2", said: `the VMI is not asked to leave node "node2"`},
	} {
		t.Run(name, func(t *testing.T) {
			s := &apiServer{t: t, vmi: guest()}
			s.vmi.Status.EvacuationNodeName = c.asked
			err := s.guard().Cancel(t.Context(), s.vmi, c.node, c.dryRun)
			if c.said == "" && err != nil || c.said != "" && (!apierrors.IsConflict(err) || !strings.Contains(err.Error(), c.said)) {
				t.Errorf("said %v, want %q", err, c.said)
			}
			if got := strings.Join(s.patches, "\n"); got != c.patches {
				t.Errorf("wrote %s, want %s", got, c.patches)
			}
		})
	}
}
