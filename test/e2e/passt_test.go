package e2e

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// passtFolder is the kubelet's folder with the profile, on the node.
var passtFolder = filepath.Dir(filepath.Join("/var/lib/kubelet/seccomp", v1.PasstProfile))

// passtProfile is the profile that is shipped. At the test's end no node has the profile.
func passtProfile(t *testing.T, nodes ...string) string {
	t.Helper()
	if on, err := os.ReadFile("/sys/module/apparmor/parameters/enabled"); err == nil && strings.TrimSpace(string(on)) == "Y" {
		t.Skip("THIS MACHINE HAS APPARMOR, WITH WHICH NO NODE OFFERS PASST: NOTHING OF PASST IS TESTED")
	}
	profile, err := os.ReadFile("../../config/passt/passt.json")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, node := range nodes {
			onNodeNamed(node, `rm -rf "$1"`, passtFolder)
		}
	})
	return string(profile)
}

// passtNode puts a text in place of a node's profile of passt, and waits until the node's label says so.
func passtNode(t *testing.T, node, profile, label string) {
	t.Helper()
	if _, err := onNodeNamed(node, `mkdir -p "$1" && printf %s "$2" >"$1/passt.json"`, passtFolder, profile); err != nil {
		t.Fatal(err)
	}
	err := poll(func() error {
		if got := get[corev1.Node](t, "node", node).Labels[v1.PasstLabel]; got != label {
			return fmt.Errorf("the node's label is %q, want %q", got, label)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// byPasst has passt connect the guest, with some TCP ports and one of UDP.
func byPasst(s *v1.VirtualMachineInstanceSpec) {
	nic := &s.Domain.Devices.Interfaces[0]
	nic.Masquerade, nic.PasstBinding = nil, &v1.InterfacePasstBinding{}
	nic.Ports = []v1.Port{{Port: 7}, {Port: 5000, Protocol: "UDP"}}
}

// TestPasst: a guest that passt connects reaches a pod and a Service, and is reached by TCP and UDP, and through the pod's loopback. It starts only on
// a node with the very profile that is shipped. passt's container has the profile, and no other container of the pod.
func TestPasst(t *testing.T) {
	ns := namespace(t, "pod-security.kubernetes.io/enforce=restricted")
	clients := namespace(t)
	apply(t, clients, clientManifest)
	profile := passtProfile(t, firstName)
	v := create(t, ns, tiny("passt", byPasst))
	v.awaitCondition(v1.ConditionPodScheduled, v1.ReasonUnschedulable, "config/passt/passt.json", v1.PasstLabel, "masquerade")
	passtNode(t, firstName, strings.Replace(profile, "SCMP_ACT_ERRNO", "SCMP_ACT_ALLOW", 1), "false")
	passtNode(t, firstName, profile, "true")
	v.await(v1.Running)

	pod := v.pod()
	nic := v.get().Spec.Domain.Devices.Interfaces[0].Name
	container := layout.PasstContainer(nic)
	for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
		if own := c.SecurityContext.SeccompProfile; (own != nil) != (c.Name == container) {
			t.Errorf("container %s has the profile %+v", c.Name, own)
		}
	}
	kubectl(t, "-n", clients, "wait", "--for=condition=Ready", "pod/client", "--timeout=600s")
	status := v.get().Status
	if got := status.Interfaces[0]; got.IP != pod.Status.PodIP || got.MAC == "" || got.QueueCount != 1 {
		t.Errorf("status.interfaces is %+v, and the pod has %s", status.Interfaces, pod.Status.PodIP)
	}
	if c := v.condition(v1.ConditionLiveMigratable); c.Status != "True" {
		t.Errorf("LiveMigratable: %+v", c)
	}
	v.log().shows(`tiny: eth0 ` + pod.Status.PodIP + `/`)
	if err := poll(func() error { return echoes(clients, pod.Status.PodIP, 7) }); err != nil {
		t.Errorf("from a pod: %v", err)
	}
	if err := nodeEchoes(pod.Status.PodIP, 7); err != nil {
		t.Errorf("from the node: %v", err)
	}
	if err := echoes(clients, pod.Status.PodIP, 9999); err == nil {
		t.Error("a port that is not listed is reached")
	}
	shell := v.shell()
	for _, address := range []string{get[corev1.Pod](t, "-n", clients, "pod", "client").Status.PodIP + " 8080", serviceIP(t, clients, "client") + " 80"} {
		out, status := shell.run("echo to-and-fro | nc -w 5 " + address)
		if status != 0 || strings.TrimSpace(out) != "to-and-fro" {
			t.Errorf("from the guest to %s: %q (%d)", address, out, status)
		}
	}
	echo := datagramPod(t, clients)
	shell = v.echoDatagrams(echo)
	for _, size := range []int{1, 1400, 1472} { // the program asks for no fragments, and the pod's MTU is 1500
		if err := poll(func() error { return askGuest(clients, pod.Status.PodIP, 5000, size) }); err != nil {
			t.Errorf("a datagram of %d bytes to the guest: %v", size, err)
		}
		if err := askPod(shell, echo, size); err != nil {
			t.Errorf("a datagram from the guest: %v", err)
		}
	}
	if err := askGuest(clients, pod.Status.PodIP, 5001, 10); err == nil {
		t.Error("a port of UDP that is not listed is reached")
	}
	loopback(t, ns, pod.Name)
	// A restricted namespace admits a tenant's pod with a Localhost profile. A policy of Kubeqemu refuses passt's profile.
	if out, err := output(profiledPod(), "kubectl", "-n", ns, "apply", "-f", "-"); err == nil || !strings.Contains(err.Error(), "only virt-controller gives pods the seccomp profile of passt") {
		t.Errorf("a tenant's pod with the profile: %q, %v", out, err)
	}

	v.node(`kill -KILL "$1"`, v.passt())
	v.awaitCondition(v1.ConditionNetworkFailed, v1.ReasonPasstEnded, ": "+nic+" (", container)
	v.delete()
}

// TestMigrationPasst: a guest that passt connects goes to another node and back. A Service and a probe reach the guest before and after each move, and the
// guest reaches a pod. The move to another node also brings back a network whose passt was killed.
func TestMigrationPasst(t *testing.T) {
	newSecondNode(t)
	ns := namespace(t)
	apply(t, ns, clientManifest)
	profile := passtProfile(t, firstName, secondName)
	for _, node := range []string{firstName, secondName} {
		passtNode(t, node, profile, "true")
	}
	kubectl(t, "cordon", secondName)
	t.Cleanup(func() { kubectl(t, "uncordon", secondName) })
	v := create(t, ns, tiny("open", byPasst, func(s *v1.VirtualMachineInstanceSpec) {
		nic := &s.Domain.Devices.Interfaces[0]
		nic.Ports = append(nic.Ports, v1.Port{Port: 9999})
		s.ReadinessProbe = &v1.Probe{PeriodSeconds: 1, Handler: v1.Handler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(7)}}}
	}))
	v.await(v1.Running)
	kubectl(t, "uncordon", secondName)
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/client", "--timeout=600s")
	v.log().shows(`tiny: eth0 ` + v.pod().Status.PodIP + `/`)
	service, pod := serviceIP(t, ns, "guest"), get[corev1.Pod](t, "-n", ns, "pod", "client").Status.PodIP
	serves := func() {
		t.Helper()
		kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "vmi/"+v.name, "--timeout=600s")
		if err := poll(func() error { return echoes(ns, service, 80) }); err != nil {
			t.Errorf("by the Service: %v", err)
		}
		if got, want := v.get().Status.Interfaces[0].IP, v.pod().Status.PodIP; got != want {
			t.Errorf("status.interfaces says %s, and the pod has %s", got, want)
		}
		out, status := v.shell().run("echo to-and-fro | nc -w 5 " + pod + " 8080")
		if status != 0 || strings.TrimSpace(out) != "to-and-fro" {
			t.Errorf("from the guest: %q (%d)", out, status)
		}
	}
	serves()
	for i, to := range []string{secondName, firstName} {
		v.migrate(fmt.Sprint("move-", i), nil).ends(v1.MigrationSucceeded)
		if now := v.get(); now.Status.NodeName != to {
			t.Fatalf("the guest is on %s", now.Status.NodeName)
		}
		serves()
	}
	v.node(`kill -KILL "$1"`, v.passt())
	v.awaitCondition(v1.ConditionNetworkFailed, v1.ReasonPasstEnded)
	v.migrate("mends", nil).ends(v1.MigrationSucceeded)
	serves()
	if c := v.condition(v1.ConditionNetworkFailed); c.Status == "True" {
		t.Errorf("after a move to another passt: %+v", c)
	}
	v.delete()
}

// passt is the process on the node that connects the VMI's guest.
func (v vmi) passt() string {
	v.t.Helper()
	uid := strings.ReplaceAll(string(v.pod().UID), "-", "[-_]")
	out, err := onNode(`for p in /proc/[0-9]*; do grep -qs "` + uid + `" $p/cgroup && [ "$(cat $p/comm)" = passt ] && echo ${p#/proc/}; done; true`)
	if out = strings.TrimSpace(out); err != nil || out == "" || strings.Contains(out, "\n") {
		v.t.Fatalf("find passt: %q (%v)", out, err)
	}
	return out
}

// loopback reaches the guest through the pod's loopback, as kubectl port-forward does.
func loopback(t *testing.T, ns, pod string) {
	t.Helper()
	forward := exec.Command("kubectl", "-n", ns, "port-forward", "pod/"+pod, "17007:7")
	if err := forward.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { forward.Process.Kill(); forward.Wait() }()
	if err := poll(func() error { return localEchoes("127.0.0.1:17007") }); err != nil {
		t.Errorf("by kubectl port-forward: %v", err)
	}
}

// localEchoes asks an echo server for bytes.
func localEchoes(address string) error {
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	got := make([]byte, 5)
	if _, err = conn.Write([]byte("hello")); err == nil {
		_, err = io.ReadFull(conn, got)
	}
	if err == nil && string(got) != "hello" {
		err = fmt.Errorf("%s echoes %q", address, got)
	}
	return err
}

// profiledPod is a pod of a tenant's that asks for passt's profile, and for no more than the restricted Pod Security Standard lets a pod have.
func profiledPod() string {
	return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"profiled"},"spec":{"securityContext":{"runAsNonRoot":true,"runAsUser":1000,
"seccompProfile":{"type":"Localhost","localhostProfile":"kubeqemu/./passt.json"}},"containers":[{"name":"a","image":"` + clientImage + `","command":["busybox","sleep","1"],
"securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}}}]}}`
}
