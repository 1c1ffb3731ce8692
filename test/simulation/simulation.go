// Package simulation runs Kubeqemu's components, as they are shipped, against a real API
// server and nodes that are made up. Images, containers and QEMU, which take the time and
// the memory of a real node, are left out.
package simulation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/test/apiserver"
)

// patience bounds every wait for one thing.
const patience = time.Minute

// Options of a Cluster.
type Options struct {
	// Repository is its root. `make cluster` has built the API server there.
	Repository string
	// Programs is the folder of virt-controller, virt-handler and virt-api.
	Programs string
	// Folder is an empty folder for all files.
	Folder string
	// DataVolumes has virt-controller fill DataVolumes.
	DataVolumes bool
}

// Cluster is an API server with what config/default brings, but for the components, which
// are started one by one.
type Cluster struct {
	Server *apiserver.Server
	// Client is the administrator's.
	Client client.Client
	// Audit is what the API server was asked to write.
	Audit *Audit

	options Options
	scheme  *runtime.Scheme
	token   string // of an account that may read metrics
	closers []io.Closer
}

// Start starts the API server. Close ends all that was started.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	c := &Cluster{options: o, scheme: runtime.NewScheme()}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	policy := c.file("audit-policy.yaml")
	c.Audit = &Audit{path: c.file("audit.log")}
	err := errors.Join(scheme.AddToScheme(c.scheme), v1.AddToScheme(c.scheme), os.WriteFile(policy, []byte(auditPolicy), 0o600))
	if err != nil {
		return err
	}
	c.Server, err = apiserver.Run(filepath.Join(c.options.Repository, "_output", "bin"), c.options.Folder,
		"--audit-policy-file="+policy, "--audit-log-path="+c.Audit.path, "--audit-log-maxsize=10000")
	if err == nil {
		c.Client, err = client.New(c.Server.Config, client.Options{Scheme: c.scheme})
	}
	if err != nil {
		return err
	}
	return c.install(ctx)
}

// install applies what config/default has, but for the components.
func (c *Cluster) install(ctx context.Context) error {
	paths := []string{c.config("default", "namespace.yaml"), c.config("crd"), c.config("rbac"), c.config("samples", "kubevirt-emulation.yaml")}
	if c.options.DataVolumes {
		paths = append(paths, c.config("datavolumes", "crd"), c.config("datavolumes", "objects"))
	}
	objects, err := apiserver.Read(paths...)
	if err == nil {
		err = c.Server.Apply(ctx, objects...)
	}
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		{"create", "serviceaccount", "default"}, // kube-controller-manager's work
		{"create", "serviceaccount", "scraper"},
		{"create", "clusterrolebinding", "scraper", "--clusterrole=kubevirt-metrics-reader", "--serviceaccount=default:scraper"},
	} {
		if _, err := c.Server.Try("", args...); err != nil {
			return err
		}
	}
	token, err := c.Server.Try("", "create", "token", "scraper")
	c.token = strings.TrimSpace(token)
	return errors.Join(err, ctx.Err())
}

func (c *Cluster) file(name string) string { return filepath.Join(c.options.Folder, name) }

func (c *Cluster) config(elem ...string) string {
	return filepath.Join(append([]string{c.options.Repository, "config"}, elem...)...)
}

// Close ends all that was started, the last first.
func (c *Cluster) Close() error {
	var failed error
	for _, closer := range slices.Backward(c.closers) {
		failed = errors.Join(failed, closer.Close())
	}
	c.closers = nil
	if c.Server != nil {
		c.Server.Close()
	}
	return failed
}

// addNode makes a Node object.
func (c *Cluster) addNode(ctx context.Context, name string) error {
	if err := c.Client.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		return fmt.Errorf("create node %s: %w", name, err)
	}
	return nil
}

// Poll asks again and again, for so long, until the answer is nil.
func Poll(ctx context.Context, timeout time.Duration, ask func() error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(timeout); ; {
		err := ask()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
}
