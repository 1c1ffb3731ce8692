package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// datagramManifest is a pod that echoes UDP, and hands the program that does so
// to guests.
const datagramManifest = `
apiVersion: v1
kind: Pod
metadata: {name: datagram}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: echo
    image: ` + clientImage + `
    imagePullPolicy: Never
    command: [datagram, echo, "5000"]
  - name: program
    image: ` + clientImage + `
    imagePullPolicy: Never
    command: [busybox, nc, -ll, -p, "8081", -e, busybox, cat, /bin/datagram]
`

// datagramPod makes the pod and returns its address.
func datagramPod(t *testing.T, ns string) string {
	t.Helper()
	apply(t, ns, datagramManifest)
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/datagram", "--timeout=600s")
	return get[corev1.Pod](t, "-n", ns, "pod", "datagram").Status.PodIP
}

// echoDatagrams lets the guest echo UDP on ports 5000 to 5002, and returns its shell.
func (v vmi) echoDatagrams(pod string) *transcript {
	v.t.Helper()
	v.log().shows(`tiny: eth0`)
	shell := v.shell()
	if out, status := shell.run("nc " + pod + " 8081 </dev/null >/datagram && chmod +x /datagram"); status != 0 {
		v.t.Fatalf("get the program into the guest: %s (%d)", out, status)
	}
	shell.run("{ /datagram echo 5000 5001 5002 & }")
	return shell
}

// askGuest sends a datagram from the pod to the guest and back.
func askGuest(ns, address string, port, size int) error {
	_, err := output("", "kubectl", "-n", ns, "exec", "datagram", "-c", "echo", "--", "datagram", "ask", address, fmt.Sprint(port), fmt.Sprint(size))
	return err
}

// askPod sends a datagram from the guest to the pod and back.
func askPod(shell *transcript, pod string, size int) error {
	if out, status := shell.run(fmt.Sprintf("/datagram ask %s 5000 %d", pod, size)); status != 0 {
		return fmt.Errorf("%d bytes: %s (%d)", size, out, status)
	}
	return nil
}

// TestGuestReachesAndIsReachedByUDP: UDP to a guest from a pod on the ports that are listed, all
// without a list, and from a guest to a pod.
func TestGuestReachesAndIsReachedByUDP(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	listed := create(t, ns, tiny("listed", ports(7), func(s *v1.VirtualMachineInstanceSpec) {
		nic := &s.Domain.Devices.Interfaces[0]
		nic.Ports = append(nic.Ports, v1.Port{Port: 5000, Protocol: "UDP"}, v1.Port{Port: 5001, Protocol: "UDP"}, v1.Port{Port: 5002, Protocol: "TCP"})
	}))
	bridge := create(t, ns, tiny("bridge", bridged))
	pod := datagramPod(t, ns)
	for _, guest := range []struct {
		vmi     vmi
		reached map[int]bool
	}{
		{listed, map[int]bool{5000: true, 5001: true, 5002: false}},
		{bridge, map[int]bool{5000: true, 5001: true, 5002: true}},
	} {
		address := guest.vmi.await(v1.Running).Status.Interfaces[0].IP
		shell := guest.vmi.echoDatagrams(pod)
		if err := askPod(shell, pod, 100); err != nil {
			t.Errorf("from guest %s to a pod: %v", guest.vmi.name, err)
		}
		if err := poll(func() error { return askGuest(ns, address, 5000, 100) }); err != nil {
			t.Errorf("guest %s does not listen: %v", guest.vmi.name, err)
		}
		for port, want := range guest.reached {
			err := askGuest(ns, address, port, 100)
			if want && err != nil { // a datagram may get lost
				err = poll(func() error { return askGuest(ns, address, port, 100) })
			}
			if (err == nil) != want {
				t.Errorf("from a pod to port %d of guest %s: %v, want an answer: %t", port, guest.vmi.name, err, want)
			}
		}
	}
}

// TestLargestPacketsGoToAndFromGuests: the largest packets of the pod network, and none larger, go to and
// from guests.
func TestLargestPacketsGoToAndFromGuests(t *testing.T) {
	for _, mtu := range []int{1400, 9000} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) { lookAtMTU(t, mtu) })
	}
}

func lookAtMTU(t *testing.T, mtu int) {
	ns := namespace(t)
	setPodMTU(t, ns, mtu)
	guests := []vmi{create(t, ns, tiny("masquerade")), create(t, ns, tiny("bridge", bridged))}
	pod := datagramPod(t, ns)
	// IP and UDP headers take 28 bytes (RFC 791, 768).
	largest := mtu - 28
	for _, v := range guests {
		address := v.await(v1.Running).Status.Interfaces[0].IP
		v.log().shows(fmt.Sprintf("tiny: eth0 .* mtu %d", mtu))
		shell := v.echoDatagrams(pod)
		for from, ask := range map[string]func(size int) error{
			"a pod":     func(size int) error { return askGuest(ns, address, 5000, size) },
			"the guest": func(size int) error { return askPod(shell, pod, size) },
		} {
			// The guest's program may not listen yet.
			if err := poll(func() error { return ask(largest) }); err != nil {
				t.Errorf("%s, from %s: %v", v.name, from, err)
			}
			if err := ask(largest + 1); err == nil || !strings.Contains(err.Error(), "message too long") {
				t.Errorf("%s, from %s: a packet larger than the MTU: %v", v.name, from, err)
			}
		}
		// The other end's segments are as large as the MTU announced.
		if out, status := shell.run("nc " + pod + " 8081 </dev/null | cmp - /datagram"); status != 0 {
			t.Errorf("%s: the program came otherwise the second time: %s", v.name, out)
		}
	}
}

// setPodMTU gives the pods that are made from now on an MTU, until the test ends.
func setPodMTU(t *testing.T, ns string, mtu int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(filepath.Dir(os.Getenv("KUBECONFIG")), "*", "cni", "10-pods.conflist"))
	if err != nil || len(files) != 1 {
		t.Fatalf("find the node's CNI configuration: %v, %v", files, err)
	}
	old, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { replaceFile(t, files[0], old) })
	var list map[string]any
	if err := json.Unmarshal(old, &list); err != nil {
		t.Fatal(err)
	}
	list["plugins"].([]any)[0].(map[string]any)["mtu"] = mtu
	changed, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	replaceFile(t, files[0], changed)
	// containerd reads it again a moment later.
	err = poll(func() error {
		kubectl(t, "-n", ns, "delete", "pod", "datagram", "--ignore-not-found", "--timeout=600s")
		datagramPod(t, ns)
		out := kubectl(t, "-n", ns, "exec", "datagram", "-c", "echo", "--", "busybox", "cat", "/sys/class/net/eth0/mtu")
		if strings.TrimSpace(out) != fmt.Sprint(mtu) {
			return fmt.Errorf("a pod's MTU is %s, want %d", out, mtu)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func replaceFile(t *testing.T, name string, content []byte) {
	t.Helper()
	// In the same folder, but with no name that the CNI looks for.
	next := filepath.Join(filepath.Dir(name), ".next")
	if err := os.WriteFile(next, content, 0o600); err != nil {
		t.Error(err)
	}
	if err := os.Rename(next, name); err != nil {
		t.Error(err)
	}
}
