package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// clientManifest is a pod that serves TCP echo on port 8080, and from which
// guests are reached; and a Service for each side.
const clientManifest = `
apiVersion: v1
kind: Pod
metadata: {name: client, labels: {app: client}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: client
    image: ` + clientImage + `
    imagePullPolicy: Never
    command: [busybox, nc, -ll, -p, "8080", -e, busybox, cat]
---
apiVersion: v1
kind: Service
metadata: {name: client}
spec:
  selector: {app: client}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: guest}
spec:
  selector: {vmi.kubevirt.io/id: open}
  ports: [{port: 80, targetPort: 9999}]
`

// TestGuestReachesAndIsReachedByTCP: TCP to a guest from a pod, and from a guest to a pod and a
// Service.
func TestGuestReachesAndIsReachedByTCP(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	apply(t, ns, clientManifest)
	open, listed := create(t, ns, tiny("open", bootsKernel)), create(t, ns, tiny("listed", bootsKernel, ports(7)))
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/client", "--timeout=600s")
	for _, v := range []vmi{open, listed} {
		v.await(v1.Running)
		v.log().shows(`tiny: eth0`)
	}
	openIP, listedIP := open.get().Status.Interfaces[0].IP, listed.get().Status.Interfaces[0].IP

	for _, target := range []struct {
		address string
		port    int
	}{{openIP, 7}, {openIP, 9999}, {listedIP, 7}, {serviceIP(t, ns, "guest"), 80}} {
		// A Service's rules come a moment after it.
		if err := poll(func() error { return echoes(ns, target.address, target.port) }); err != nil {
			t.Errorf("from a pod: %v", err)
		}
	}
	if err := echoes(ns, listedIP, 9999); err == nil {
		t.Error("a port that is not listed is reached")
	}

	for name, v := range map[string]vmi{"open": open, "listed": listed} {
		shell := v.shell()
		for _, address := range []string{get[corev1.Pod](t, "-n", ns, "pod", "client").Status.PodIP + " 8080", serviceIP(t, ns, "client") + " 80"} {
			out, status := shell.run("echo to-and-fro | nc -w 5 " + address)
			if status != 0 || strings.TrimSpace(out) != "to-and-fro" {
				t.Errorf("from guest %s to %s: %q (%d)", name, address, out, status)
			}
		}
	}
}

func serviceIP(t *testing.T, namespace, name string) string {
	t.Helper()
	return get[corev1.Service](t, "-n", namespace, "service", name).Spec.ClusterIP
}

// echoes asks the client pod to talk to an echo server.
func echoes(namespace, address string, port int) error {
	out, err := output("to-and-fro\n", "kubectl", "-n", namespace, "exec", "-i", "client", "--", "busybox", "nc", "-w", "3", address, fmt.Sprint(port))
	if err == nil && out != "to-and-fro\n" {
		err = fmt.Errorf("echo of %s:%d is %q", address, port, out)
	}
	return err
}
