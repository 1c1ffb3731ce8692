package apiserver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Shared is the API server of all tests of a package: to start one, and to make it know the kinds, takes
// longer than most tests. The first test that asks for it starts it, and Tests ends it.
type Shared struct {
	// Arguments are kube-apiserver's, besides its usual ones. The folder is there for what they name.
	// Nil is none.
	Arguments func(t *testing.T, folder string) []string
	// Install prepares the API server for all tests; nil for nothing.
	Install func(*Server) error

	once   sync.Once
	folder string
	server *Server
}

// Server returns the package's API server.
func (s *Shared) Server(t *testing.T) *Server {
	t.Helper()
	s.once.Do(func() { s.start(t) })
	if s.server == nil {
		t.Fatal("the package's API server did not start: see the first test that wanted it")
	}
	return s.server
}

func (s *Shared) start(t *testing.T) {
	t.Helper()
	ctrl.SetLogger(logr.Discard()) // once: tests that run beside each other have virt-controllers
	bin, err := binaries()
	if err == nil {
		// Not the test's folder, which goes with the test.
		s.folder, err = os.MkdirTemp("", "apiserver-")
	}
	if err != nil {
		t.Fatal(err)
	}
	var args []string
	if s.Arguments != nil {
		args = s.Arguments(t, s.folder)
	}
	server, err := Run(bin, s.folder, args...)
	if err == nil && s.Install != nil {
		if err = s.Install(server); err != nil {
			server.Close()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	s.server = server
}

// Tests makes the package's tests, such as *testing.M, end the API server when they have ended.
func (s *Shared) Tests(m interface{ Run() int }) interface{ Run() int } { return tests{s, m} }

type tests struct {
	shared *Shared
	m      interface{ Run() int }
}

func (t tests) Run() int {
	defer t.shared.end()
	return t.m.Run()
}

func (s *Shared) end() {
	if s.server != nil {
		s.server.Close()
	}
	if s.folder != "" {
		_ = os.RemoveAll(s.folder)
	}
}

// Installs returns what applies the rights of config/default, and of the CRDs those of the plural names; all
// without names. Each costs the API server CPU time.
func Installs(plurals ...string) func(*Server) error {
	return func(s *Server) error {
		crds, err := Read("../../config/crd")
		if err != nil {
			return err
		}
		rights, err := Read("../../config/default/namespace.yaml", "../../config/rbac")
		if err != nil {
			return err
		}
		if len(plurals) > 0 {
			crds = slices.DeleteFunc(crds, func(crd *unstructured.Unstructured) bool {
				plural, _, _ := strings.Cut(crd.GetName(), ".")
				return !slices.Contains(plurals, plural)
			})
			if len(crds) != len(plurals) {
				return fmt.Errorf("find the CRDs of %v: there are %d", plurals, len(crds))
			}
		}
		return s.Apply(context.Background(), append(crds, rights...)...)
	}
}

// Space is a namespace of an API server, for one test.
type Space struct {
	*Server
	Namespace string

	t          testing.TB
	kubeconfig string
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// Space makes a namespace for a test. It stays: no controller runs that could delete it.
func (s *Server) Space(t testing.TB) *Space {
	t.Helper()
	name := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(t.Name()), "-"), "-")
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: fmt.Sprintf("%.40s-", name)}}
	c, err := s.client()
	if err == nil {
		err = c.Create(t.Context(), namespace)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s.In(t, namespace.Name)
}

// In returns a namespace that is there, for a test.
func (s *Server) In(t testing.TB, namespace string) *Space {
	t.Helper()
	space := &Space{s, namespace, t, filepath.Join(t.TempDir(), "kubeconfig")}
	if err := s.writeKubeconfig(space.kubeconfig, namespace); err != nil {
		t.Fatal(err)
	}
	return space
}

// Kubeconfig returns the path of the administrator's kubeconfig, for work in the namespace.
func (s *Space) Kubeconfig() string { return s.kubeconfig }

// Try runs kubectl as the administrator, in the namespace.
func (s *Space) Try(stdin string, args ...string) (string, error) {
	return s.try(s.kubeconfig, stdin, args...)
}

// Kubectl is Try, and an error ends the test.
func (s *Space) Kubectl(args ...string) string {
	s.t.Helper()
	out, err := s.Try("", args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// Apply applies the objects of a text, as kubectl's server-side apply does, into the namespace.
func (s *Space) Apply(manifests string, options ...client.PatchOption) error {
	objects, err := Parse(manifests)
	if err != nil {
		return err
	}
	return s.applyAll(context.Background(), s.Namespace, objects, options...)
}

// MustApply is Apply, and an error ends the test.
func (s *Space) MustApply(manifests string, options ...client.PatchOption) {
	s.t.Helper()
	if err := s.Apply(manifests, options...); err != nil {
		s.t.Fatal(err)
	}
}
