package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// multusKubeconfig is in a node's folder.
	multusKubeconfig = "multus.kubeconfig"
	// multusConfig comes before the cluster's own plugin: containerd takes the first file.
	multusConfig = "cni/00-multus.conflist"
	podsConfig   = "cni/10-pods.conflist"
)

// InstallMultus makes Multus's objects, and has containerd call Multus on every node. Multus calls
// the cluster's own plugin, and then those of the networks that a pod names.
func InstallMultus(ctx context.Context, dir string) error {
	state, plan, err := loadUp(dir)
	if err != nil {
		return err
	}
	if err := plan.multusObjects(ctx, state, "apply"); err != nil {
		return err
	}
	for _, n := range plan.Nodes {
		// Given as the path of a file, Multus 4.3 forgets the file's IPAM when a pod ends.
		pods, err := os.ReadFile(filepath.Join(plan.nodeDir(n), podsConfig))
		if err != nil {
			return err
		}
		text, err := render("multus.conflist", map[string]string{"Node": innerNode, "Pods": string(pods)})
		if err != nil {
			return err
		}
		file := filepath.Join(plan.nodeDir(n), multusConfig)
		// containerd looks at a file as soon as the file is there.
		if err := os.WriteFile(file+".new", text, 0o644); err != nil {
			return err
		}
		if err := os.Rename(file+".new", file); err != nil {
			return err
		}
	}
	return plan.awaitNetwork(ctx, state, "multus")
}

// RemoveMultus undoes InstallMultus. No pod may be left that Multus has connected to further
// networks.
func RemoveMultus(ctx context.Context, dir string) error {
	state, plan, err := loadUp(dir)
	if err != nil {
		return err
	}
	// The file goes first: with it, and without the rights, every pod of the node would fail.
	for _, n := range plan.Nodes {
		if err := os.Remove(filepath.Join(plan.nodeDir(n), multusConfig)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := plan.awaitNetwork(ctx, state, "pods"); err != nil {
		return err
	}
	for _, n := range plan.Nodes {
		if err := os.RemoveAll(filepath.Join(plan.nodeDir(n), "var-lib/cni/multus")); err != nil {
			return err
		}
	}
	return plan.multusObjects(ctx, state, "delete", "--ignore-not-found")
}

// multusObjects has kubectl do something with Multus's objects.
func (p Plan) multusObjects(ctx context.Context, state *State, verb string, args ...string) error {
	text, err := configFiles.ReadFile("config/multus.yaml")
	if err != nil {
		return err
	}
	file := p.file("multus.yaml")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return err
	}
	kubectl := func(args ...string) error {
		return runQuiet(exec.CommandContext(ctx, filepath.Join(state.Bin, "kubectl"), append([]string{"--kubeconfig", p.Kubeconfig()}, args...)...))
	}
	if err := kubectl(append([]string{verb, "-f", file}, args...)...); err != nil || verb != "apply" {
		return err
	}
	return kubectl("wait", "--for=condition=established", "--timeout=30s", "crd/network-attachment-definitions.k8s.cni.cncf.io")
}

// awaitNetwork waits until the containerd of every node has taken the configuration of a name.
func (p Plan) awaitNetwork(ctx context.Context, state *State, name string) error {
	for _, n := range p.Nodes {
		init, ok := state.process(n.Name)
		if !ok {
			return fmt.Errorf("find %s: it does not run", n.Name)
		}
		if err := poll(ctx, 20*time.Second, func() (bool, error) {
			return networkOf(ctx, init) == name, nil
		}); err != nil {
			return fmt.Errorf("wait for containerd of %s to use the network %q, not %q: %w", n.Name, name, networkOf(ctx, init), err)
		}
	}
	return nil
}

// networkOf returns the name of the network that a node's containerd connects pods to, beside lo.
func networkOf(ctx context.Context, init Process) string {
	conn, err := grpc.NewClient("unix://"+filepath.Join("/proc", strconv.Itoa(init.PID), "root", criSocket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return ""
	}
	defer conn.Close()
	status, err := cri.NewRuntimeServiceClient(conn).Status(ctx, &cri.StatusRequest{Verbose: true})
	if err != nil {
		return ""
	}
	var config struct {
		Networks []struct{ Config struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(status.Info["cniconfig"]), &config); err != nil {
		return ""
	}
	for _, n := range config.Networks {
		if n.Config.Name != "cni-loopback" {
			return n.Config.Name
		}
	}
	return ""
}
