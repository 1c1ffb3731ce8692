package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// patience is how long a test waits for what must happen, before it says that it hangs. It proves no bound: beside other
// tests and builds, what takes seconds on a quiet machine takes minutes. Where kubectl itself waits, for a deletion or a
// condition, it has 10 minutes.
const patience = testkit.Patience

// commandTimeout bounds every command that has no timeout of its own.
const commandTimeout = patience + time.Minute

// output runs a command and returns what it printed; its error holds what it
// complained of.
func output(stdin, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	// What it started must not hold the pipes open.
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("run %s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := output("", "kubectl", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// apply applies manifests from text. It asks again where virt-api was too busy for the API server, and where another
// test has made the same object of the cluster at this moment: kubectl found none, and would create it.
func apply(t *testing.T, namespace, manifests string) {
	t.Helper()
	// kubectl 1.31 takes a manifest that begins with a brace for JSON, though it is YAML.
	manifests = "---\n" + manifests
	var refused error
	err := poll(func() error {
		_, err := output(manifests, "kubectl", "-n", namespace, "apply", "-f", "-")
		again := err != nil && (strings.Contains(err.Error(), "failed calling webhook") ||
			strings.Contains(err.Error(), "(AlreadyExists)"))
		if err != nil && !again {
			refused, err = err, nil
		}
		return err
	})
	if err := errors.Join(err, refused); err != nil {
		t.Fatal(err)
	}
}

// may waits until the API server has heard of a right that was just given.
func may(t *testing.T, namespace, as string, what ...string) {
	t.Helper()
	err := poll(func() error {
		_, err := output("", "kubectl", append([]string{"-n", namespace, as, "auth", "can-i", "--quiet"}, what...)...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// get decodes what kubectl gets.
func get[T any](t *testing.T, args ...string) *T {
	t.Helper()
	object, err := getObject[T](args...)
	if err != nil {
		t.Fatal(err)
	}
	return object
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// namespace makes a namespace for the test. When the test ends, its VMs are
// deleted, and were it to have failed, all that is known of them is logged
// first.
func namespace(t *testing.T, labels ...string) string {
	t.Helper()
	name := fmt.Sprintf("%.40s-%05d", notInNames.ReplaceAllString(strings.ToLower(t.Name()), "-"), time.Now().UnixMicro()%100000)
	if err := makeNamespace(name, labels); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			diagnose(t, name)
		}
		if err := errors.Join(deleteVMs(name), deleteObject("/api/v1/namespaces", name)); err != nil {
			t.Error(err)
		}
	})
	return name
}

// poll asks until there is no error any more, and returns the last one if its patience ends.
func poll(ask func() error) error { return pollFor(patience, ask) }

// pollFor is poll with another bound.
func pollFor(timeout time.Duration, ask func() error) error {
	deadline := time.Now().Add(timeout)
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for {
		asked := time.Now() // before the question, which may take long
		err := ask()
		if err == nil || asked.After(deadline) {
			return err
		}
		<-tick.C
	}
}

// diagnose logs what one would look at first.
func diagnose(t *testing.T, namespace string) {
	show := func(title, name string, args ...string) string {
		out, err := output("", name, args...)
		if err != nil {
			out += err.Error()
		}
		t.Logf("== %s\n%s", title, out)
		return out
	}
	show("VMs and VMIs in "+namespace, "kubectl", "-n", namespace, "get", "vm,vmi", "-o", "yaml")
	show("events", "kubectl", "-n", namespace, "get", "events", "--sort-by=.metadata.creationTimestamp")
	show("pods", "kubectl", "-n", namespace, "get", "pods", "-o", "wide")
	names, _ := output("", "kubectl", "-n", namespace, "get", "pods", "-l", "kubevirt.io=virt-launcher", "-o", "name")
	for _, pod := range strings.Fields(names) {
		show("log of "+pod, "kubectl", "-n", namespace, "logs", "--tail=60", pod)
	}
	show("log of virt-controller", "kubectl", "-n", "kubevirt", "logs", "--tail=30", "deployment/virt-controller")
	show("log of virt-handler", "kubectl", "-n", "kubevirt", "logs", "--tail=30", "daemonset/virt-handler")
	processes, err := nodeProcesses()
	if err != nil {
		t.Log(err)
	}
	for _, p := range processes {
		if p.isQEMU() {
			t.Logf("== QEMU %d on the node\n%s", p.PID, p.shell())
		}
	}
}
