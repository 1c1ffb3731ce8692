package evacuation

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		Spec:       v1.VirtualMachineInstanceSpec{EvictionStrategy: ptr.To(v1.EvictionStrategyExternal)},
		Status: v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: "node1",
			LauncherPods: []v1.LauncherPod{{Name: v1.LauncherPodName("vm", uid, v1.FirstPod), UID: "pod"}, {Name: v1.LauncherPodName("vm", uid, "m"), UID: "target"}},
			ActivePods:   map[types.UID]string{"pod": "node1", "target": "node2"}},
	}
}

func strategy(s v1.EvictionStrategy) func(*v1.VirtualMachineInstance) {
	return func(vmi *v1.VirtualMachineInstance) { vmi.Spec.EvictionStrategy = &s }
}

func TestNodeToLeave(t *testing.T) {
	first, target := v1.LauncherPodName("vm", uid, v1.FirstPod), v1.LauncherPodName("vm", uid, "m")
	for name, c := range map[string]struct {
		pod  string
		edit func(*v1.VirtualMachineInstance)
		want string
	}{
		"External":                      {first, func(*v1.VirtualMachineInstance) {}, "node1"},
		"None":                          {first, strategy(v1.EvictionStrategyNone), ""},
		"LiveMigrateIfPossible":         {first, strategy(v1.EvictionStrategyLiveMigrateIfPossible), ""},
		"no strategy":                   {first, func(vmi *v1.VirtualMachineInstance) { vmi.Spec.EvictionStrategy = nil }, ""},
		"the guest has ended":           {first, func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Succeeded }, ""},
		"the VMI is being deleted":      {first, func(vmi *v1.VirtualMachineInstance) { vmi.DeletionTimestamp = ptr.To(metav1.Now()) }, ""},
		"no node yet":                   {first, func(vmi *v1.VirtualMachineInstance) { vmi.Status.NodeName, vmi.Status.ActivePods = "", nil }, ""},
		"the pod is not known":          {"virt-launcher-vm-0000000000", func(*v1.VirtualMachineInstance) {}, ""},
		"a pod where the guest is not":  {target, func(*v1.VirtualMachineInstance) {}, ""},
		"the guest came to another pod": {target, func(vmi *v1.VirtualMachineInstance) { vmi.Status.NodeName = "node2" }, "node2"},
	} {
		vmi := guest()
		c.edit(vmi)
		if got := nodeToLeave(vmi, c.pod); got != c.want {
			t.Errorf("%s: asked to leave %q, want %q", name, got, c.want)
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
			patched.Status.EvacuationNodeName = "node1"
		}
		_ = json.NewEncoder(w).Encode(patched)
	default:
		s.t.Errorf("%s %s", r.Method, r.URL)
		w.WriteHeader(http.StatusNotFound)
	}
}

func (s *apiServer) guard() *Guard {
	s.t.Helper()
	server := httptest.NewServer(s)
	s.t.Cleanup(server.Close)
	g, err := New(&rest.Config{Host: server.URL})
	if err != nil {
		s.t.Fatal(err)
	}
	return g
}

const marking = `{"metadata":{"resourceVersion":"7","uid":"0a1b2c3d-0000-4000-8000-000000000001"},"status":{"evacuationNodeName":"node1"}}`

func TestEvict(t *testing.T) {
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

func TestCancel(t *testing.T) {
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

func TestTrusted(t *testing.T) {
	one, two := []byte("one"), []byte("two")
	for path, want := range map[string]bool{
		SecretPath(one): true, SecretPath(two): true, SecretPath([]byte("three")): false, Path: false, Path + "/": false, "/x" + SecretPath(one): false,
		SecretPath(one) + "/": false, SecretPath(one)[:len(SecretPath(one))-1]: false, "": false,
	} {
		if got := Trusted(path, [][]byte{one, two}); got != want {
			t.Errorf("%q is trusted: %v, want %v", path, got, want)
		}
	}
	if Trusted(SecretPath(nil), nil) || Trusted(SecretPath(one), nil) {
		t.Error("a path is trusted without keys")
	}
}
