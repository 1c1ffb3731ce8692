package apiserver

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// Install applies the CRDs and the rights of config/default.
func (s *Server) Install() {
	s.t.Helper()
	s.Kubectl("create", "namespace", "kubevirt")
	s.Kubectl("apply", "--server-side", "-k", "../../config/crd")
	s.Kubectl("apply", "--server-side", "-k", "../../config/rbac")
	s.Kubectl("wait", "--for=condition=established", "--timeout=60s", "crd", "--all")
}

// Plane is an API server with the CRDs and the rights of config/default, and
// virt-controllers that run some of the reconcilers.
type Plane struct {
	*Server
	Client client.WithWatch
	scheme *runtime.Scheme
	kinds  []string
}

// NewPlane starts an API server. The kinds are names for kubectl. Shows awaits rows of the
// first kind. A test that fails shows the objects of all kinds.
func NewPlane(t testing.TB, kinds []string, types ...func(*runtime.Scheme) error) *Plane {
	t.Helper()
	p := &Plane{Server: Start(t), scheme: runtime.NewScheme(), kinds: kinds}
	p.Install()
	for _, add := range append(types, scheme.AddToScheme) {
		if err := add(p.scheme); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if p.Client, err = client.NewWithWatch(p.Config, client.Options{Scheme: p.scheme}); err != nil {
		t.Fatal(err)
	}
	return p
}

// Control starts a virt-controller, with its own rights, and ends it with the test.
func (p *Plane) Control(setup func(ctrl.Manager) error) {
	p.t.Helper()
	ctrl.SetLogger(logr.Discard())
	mgr, err := ctrl.NewManager(p.As("system:serviceaccount:kubevirt:virt-controller", "system:serviceaccounts", "system:serviceaccounts:kubevirt"),
		ctrl.Options{Scheme: p.scheme, Metrics: server.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: ptr.To(true)}})
	if err == nil {
		err = setup(mgr)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			p.t.Errorf("run virt-controller: %v", err)
		}
	})
	p.t.Cleanup(func() { cancel(); ended.Wait() })
}

// Shows waits until kubectl shows a row of DESIRED, CURRENT and READY for the object tiny.
func (p *Plane) Shows(want string) {
	p.t.Helper()
	p.Until(func() string {
		columns := strings.Fields(strings.Split(p.Kubectl("get", p.kinds[0], "tiny"), "\n")[1])
		return strings.Join(columns[1:len(columns)-1], " ")
	}, func(got string) bool { return got == want })
}

// Until asks until the answer is right.
func (p *Plane) Until(ask func() string, right func(string) bool) {
	p.t.Helper()
	var got string
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if got = ask(); right(got) {
			return
		}
	}
	p.t.Fatalf("the last answer was %q\n%s", got, p.Kubectl("get", strings.Join(append(p.kinds, "events"), ","), "-o", "wide"))
}

// Said waits for an event of each reason.
func (p *Plane) Said(reasons ...string) {
	p.t.Helper()
	for _, reason := range reasons {
		p.Until(func() string { return p.Kubectl("get", "events", "--field-selector=reason="+reason, "-o", "name") }, func(s string) bool { return s != "" })
	}
}

// Made counts the objects of a kind that are made from now on.
func (p *Plane) Made(kind client.ObjectList) func() int {
	p.t.Helper()
	w, err := p.Client.Watch(context.Background(), kind, client.InNamespace("default"))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(w.Stop)
	var made atomic.Int64
	go func() {
		for e := range w.ResultChan() {
			if e.Type == watch.Added {
				made.Add(1)
			}
		}
	}()
	return func() int { return int(made.Load()) }
}
