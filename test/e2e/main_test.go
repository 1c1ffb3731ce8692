// Package e2e drives Kubeqemu on a real cluster with real guests, through
// kubectl as a user would, and looks at the node beneath.
//
// It needs what `make cluster images` builds, and brings up a cluster of its
// own. For work on the tests themselves:
//
//	KUBEQEMU_E2E_KEEP=1        use the cluster if it is up, and leave it up
//	KUBEQEMU_E2E_CLUSTER=NAME  the cluster's name (default e2e)
//	KUBEQEMU_E2E_NODES=2       what some tests need (default 1)
//	KUBEQEMU_E2E_IPS=dual      the address families: ipv4, dual or ipv6 (default ipv4)
//	KUBEQEMU_E2E_OWN_CPUS=1    kubelets that give pods CPUs of their own
//	KUBEQEMU_E2E_KUBERNETES=1.31  an older Kubernetes, which `cluster build --release 1.31` made
//	KUBEQEMU_E2E_EMULATE=1.34  an API server that emulates an older release: without image volumes
//	KUBEQEMU_E2E_LONG=1        outages of minutes, a hundred cycles
package e2e

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/hugepagetest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.list").Value.String() != "" {
		os.Exit(m.Run())
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	c, err := newCluster()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	code := 1
	baseline, err := c.up()
	if err == nil {
		code = m.Run()
		err = awaitNode(baseline)
	}
	err = errors.Join(err, c.down(code != 0 || err != nil))
	if c.lent > 0 {
		err = errors.Join(err, hugepagetest.Change(2<<20, -c.lent))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	return code
}

// cluster is the one-machine Kubernetes that the tests run on. Once it is up,
// the environment names it: PATH has kubectl and cluster, KUBECONFIG is set.
type cluster struct {
	repository string
	name       string
	nodes      string
	ips        string
	keep       bool
	lent       int // huge pages
	started    time.Time
}

// clusterVariable names the cluster, for the tests and for who runs them.
const clusterVariable = "KUBEQEMU_E2E_CLUSTER"

// nodesVariable is how many nodes the cluster has.
const nodesVariable = "KUBEQEMU_E2E_NODES"

// ipsVariable is the address families of the cluster, as `cluster up` takes them.
const ipsVariable = "KUBEQEMU_E2E_IPS"

// emulateVariable is the release of Kubernetes that the API server emulates, as `cluster up` takes it.
const emulateVariable = "KUBEQEMU_E2E_EMULATE"

// kubernetesVariable is the release of Kubernetes that the cluster is of, as `cluster build --release` takes it; empty
// for today's.
const kubernetesVariable = "KUBEQEMU_E2E_KUBERNETES"

// kubernetes returns the folder of the programs of that release.
func (c *cluster) kubernetes() string {
	if release := os.Getenv(kubernetesVariable); release != "" {
		return c.output("bin-" + release)
	}
	return c.output("bin")
}

// withoutImageVolumes reports whether the cluster has no image volumes.
func withoutImageVolumes() bool {
	return os.Getenv(emulateVariable) != "" || os.Getenv(kubernetesVariable) != ""
}

func newCluster() (*cluster, error) {
	repository, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	c := &cluster{repository: repository, name: os.Getenv(clusterVariable), nodes: os.Getenv(nodesVariable), ips: cmp.Or(os.Getenv(ipsVariable), "ipv4"), keep: os.Getenv("KUBEQEMU_E2E_KEEP") == "1", started: time.Now()}
	if c.name == "" {
		c.name = "e2e"
	}
	if c.nodes == "" {
		c.nodes = "1"
	}
	bin := c.output("bin")
	programs := []string{filepath.Join(bin, "cluster"), filepath.Join(c.kubernetes(), "kubectl")}
	for _, needed := range append(c.images(), programs...) {
		if _, err := os.Stat(needed); err != nil {
			return nil, fmt.Errorf("find what the tests need (run `make cluster images` first): %w", err)
		}
	}
	return c, errors.Join(
		os.Setenv("PATH", c.kubernetes()+":"+bin+":"+os.Getenv("PATH")),
		os.Setenv("KUBECONFIG", c.output("cluster", c.name, "kubeconfig")),
		os.Setenv(clusterVariable, c.name))
}

func (c *cluster) output(elem ...string) string {
	return filepath.Join(append([]string{c.repository, "_output"}, elem...)...)
}

func (c *cluster) images() []string {
	var files []string
	for _, name := range []string{"virt-components", "virt-launcher", "tiny-virtio-container-disk", "tiny-container-disk", "debian-container-disk"} {
		files = append(files, c.output("images", name+".tar"))
	}
	return files
}

func (c *cluster) say(format string, args ...any) {
	fmt.Printf("e2e: [%3.0fs] %s\n", time.Since(c.started).Seconds(), fmt.Sprintf(format, args...))
}

// up brings the cluster up with Kubeqemu installed, and returns what its node
// is like then.
func (c *cluster) up() (snapshot, error) {
	if !c.keep {
		// What an earlier run that was killed left.
		if _, err := output("", "cluster", "down", "--name", c.name); err != nil {
			return nil, err
		}
	}
	c.say("bringing up cluster %q", c.name)
	up := []string{"up", "--name", c.name, "--nodes", c.nodes, "--ips", c.ips, "--bin", c.kubernetes()}
	if release := os.Getenv(emulateVariable); release != "" {
		up = append(up, "--emulate", release)
	}
	if os.Getenv(ownCPUsVariable) == "1" {
		up = append(up, "--own-cpus")
		// The kubelet offers the pages that are there when it starts.
		if err := hugepagetest.Change(2<<20, hugePages); err != nil {
			return nil, err
		}
		c.lent = hugePages
	}
	if _, err := output("", "cluster", up...); err != nil {
		return nil, err
	}
	c.say("loading images")
	folder, err := os.MkdirTemp("", "kubeqemu-e2e-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	packed, err := packImages(folder)
	if err != nil {
		return nil, err
	}
	load := append([]string{"load-image", "--name", c.name}, append(c.images(), packed...)...)
	if _, err := output("", "cluster", load...); err != nil {
		return nil, err
	}
	if err := c.install(); err != nil {
		return nil, err
	}
	c.say("ready")
	return settledNode()
}

// notYet is a taint by which Kubeqemu's control plane comes to the first node: tests take the second one away. The control plane tolerates a
// cordoned node.
const notYet = "e2e.example.com/later"

func (c *cluster) install() (err error) {
	c.say("kubectl apply -k config/datavolumes")
	var commands [][]string
	if c.nodes == "2" {
		commands = append(commands, []string{"taint", "node", secondName, notYet + "=:NoSchedule"})
		defer func() {
			_, untainted := output("", "kubectl", "taint", "node", secondName, notYet+"-")
			err = errors.Join(err, untainted)
		}()
	}
	commands = append(commands, [][]string{
		{"apply", "-k", filepath.Join(c.repository, "config", "datavolumes")},
		{"wait", "--for=condition=established", "--timeout=600s", "crd/kubevirts.kubevirt.io"},
		// The machine's KVM may not work.
		{"apply", "-f", filepath.Join(c.repository, "config", "samples", "kubevirt-emulation.yaml")},
	}...)
	if c.keep {
		// The images of the same tag may be new ones.
		commands = append(commands, []string{"-n", "kubevirt", "rollout", "restart", "deployment/virt-controller", "daemonset/virt-handler"},
			// It ends seconds after the next one is there, which would be seen on the node.
			[]string{"-n", "kubevirt", "delete", "pod", "-l", "kubevirt.io=virt-api"})
	}
	commands = append(commands,
		[]string{"-n", "kubevirt", "rollout", "status", "--timeout=600s", "deployment/virt-controller"},
		[]string{"-n", "kubevirt", "rollout", "status", "--timeout=600s", "deployment/virt-api"},
		[]string{"-n", "kubevirt", "rollout", "status", "--timeout=600s", "daemonset/virt-handler"})
	for _, args := range commands {
		if _, err := output("", "kubectl", args...); err != nil {
			pods, _ := output("", "kubectl", "-n", "kubevirt", "describe", "pods")
			return fmt.Errorf("install Kubeqemu: %w\n%s", err, pods)
		}
	}
	if _, err := output(storageClass, "kubectl", "apply", "-f", "-"); err != nil {
		return fmt.Errorf("make the storage class of the tests' volumes: %w", err)
	}
	return nil
}

// down takes the cluster down; `cluster down` fails if anything is left of it,
// and `cluster check` looks again.
func (c *cluster) down(failed bool) error {
	if c.keep {
		c.say("leaving cluster %q up: export KUBECONFIG=%s", c.name, os.Getenv("KUBECONFIG"))
		return nil
	}
	c.say("taking cluster %q down", c.name)
	args := []string{"down", "--name", c.name}
	if failed {
		args = append(args, "--keep-logs")
		c.say("logs are kept in %s", c.output("cluster", c.name, "logs"))
	}
	_, err := output("", "cluster", args...)
	_, left := output("", "cluster", "check", "--name", c.name)
	return errors.Join(err, left)
}
