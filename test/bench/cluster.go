package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const (
	// installNamespace is where Kubeqemu's own pods are.
	installNamespace = "kubevirt"
	// benchNamespace is where the bench's pods and VMIs are.
	benchNamespace = "bench"
	launcherImage  = "localhost/kubeqemu/virt-launcher:dev"
	tinyImage      = "localhost/kubeqemu/tiny-virtio-container-disk:dev"
)

// command runs a program and returns what it printed. The error holds what the program wrote
// to stderr.
func command(ctx context.Context, stdin []byte, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	// A cluster on its way up takes itself down when it is asked to end.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	// A child of the program must not hold the pipes open for longer.
	cmd.WaitDelay = 15 * time.Second
	if err := cmd.Run(); err != nil {
		said := bytes.TrimSpace(stderr.Bytes())
		return stdout.String(), fmt.Errorf("run %s %s: %w: %s", name, strings.Join(args, " "), err, said)
	}
	return stdout.String(), nil
}

// kubectl works in the bench's namespace.
func kubectl(ctx context.Context, args ...string) (string, error) {
	return command(ctx, nil, "kubectl", append([]string{"-n", benchNamespace}, args...)...)
}

// clusterUp brings up a cluster with Kubeqemu. It first removes what is left of a run that was
// killed.
func (b *bench) clusterUp(ctx context.Context) error {
	if _, err := command(ctx, nil, "kubectl", "get", "namespace", benchNamespace); b.keep && err == nil {
		return nil
	}
	b.say("bringing up cluster %q", b.cluster)
	images, err := filepath.Glob(b.output("images", "virt-*.tar"))
	if err != nil {
		return err
	}
	images = append(images, b.output("images", "tiny-virtio-container-disk.tar"))
	for _, args := range [][]string{
		{"cluster", "down", "--name", b.cluster},
		{"cluster", "up", "--name", b.cluster},
		append([]string{"cluster", "load-image", "--name", b.cluster}, images...),
		{"kubectl", "apply", "-k", filepath.Join(b.repository, "config", "default")},
		// Without emulation, a node whose KVM does not work has no slots.
		{"kubectl", "apply", "-f", filepath.Join(b.repository, "config", "samples", "kubevirt-emulation.yaml")},
		{"kubectl", "create", "namespace", benchNamespace},
		{"kubectl", "-n", installNamespace, "rollout", "status", "--timeout=90s", "deployment"},
		{"kubectl", "-n", installNamespace, "rollout", "status", "--timeout=90s", "daemonset"},
	} {
		if _, err := command(ctx, nil, args[0], args[1:]...); err != nil {
			return fmt.Errorf("bring up the cluster: %w", err)
		}
	}
	return nil
}

// clusterDown also works after an interrupt, and fails if anything is left.
func (b *bench) clusterDown() error {
	if b.keep {
		return nil
	}
	b.say("taking cluster %q down", b.cluster)
	_, err := command(context.Background(), nil, "cluster", "down", "--name", b.cluster)
	_, left := command(context.Background(), nil, "cluster", "check", "--name", b.cluster)
	return errors.Join(err, left)
}

// kube returns a client of the cluster that can watch.
func (r *run) kube() client.WithWatch {
	config, scheme := r.access()
	return must(client.NewWithWatch(config, client.Options{Scheme: scheme}))
}

// access returns what a client of the cluster needs.
func (r *run) access() (*rest.Config, *runtime.Scheme) {
	config, err := clientcmd.BuildConfigFromFlags("", r.output("cluster", r.cluster, "kubeconfig"))
	check(err, "read kubeconfig")
	scheme := runtime.NewScheme()
	check(errors.Join(corev1.AddToScheme(scheme), v1.AddToScheme(scheme)))
	return config, scheme
}

// pods returns the pods of a namespace.
func (r *run) pods(from client.Reader, namespace string) []corev1.Pod {
	var pods corev1.PodList
	check(from.List(r, &pods, client.InNamespace(namespace)), "list pods")
	return pods.Items
}

// podOfVMI returns the pod of the only VMI.
func (r *run) podOfVMI(kube client.Reader) corev1.Pod {
	pods := r.pods(kube, benchNamespace)
	if len(pods) != 1 {
		fail("find the VMI's pod: there are %d pods", len(pods))
	}
	return pods[0]
}

// vmis returns the VMIs of a namespace, and how many of them run.
func (r *run) vmis(from client.Reader, namespace string) (all []v1.VirtualMachineInstance, running int) {
	var vmis v1.VirtualMachineInstanceList
	check(from.List(r, &vmis, client.InNamespace(namespace)), "list VMIs")
	for _, vmi := range vmis.Items {
		if vmi.Status.Phase == v1.Running {
			running++
		}
		if vmi.IsFinal() {
			fail("VMI %s has ended: %s %+v", vmi.Name, vmi.Status.Phase, vmi.Status.Conditions)
		}
	}
	return vmis.Items, running
}

// apply is what users do: kubectl apply.
func apply(ctx context.Context, object any) error {
	manifest, err := json.Marshal(object)
	if err == nil {
		_, err = command(ctx, manifest, "kubectl", "apply", "-f", "-")
	}
	return err
}

// removeAfter has all objects of a kind deleted at the end of the run or turn, and waits until they, and all pods, are
// gone.
func (r *run) removeAfter(kind string) {
	r.after(func() error {
		_, err := kubectl(r, "delete", kind, "--all", "--timeout=90s")
		if err == nil {
			_, err = kubectl(r, "wait", "--for=delete", "pod", "--all", "--timeout=90s")
		}
		return err
	})
}
