package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// ownCPUsVariable makes the kubelets give pods CPUs of their own.
const ownCPUsVariable = "KUBEQEMU_E2E_OWN_CPUS"

// allowedCPUs are where the threads of a process of the node may run, one line for each: the thread's name and its CPUs.
func allowedCPUs(t *testing.T, p nodeProcess) map[string]string {
	t.Helper()
	out, err := onNode(`for task in /proc/"$1"/task/*; do
	echo "$(sed -n 's/^Name:\t//p' "$task/status" | tr ' ' _) $(sed -n 's/^Cpus_allowed_list:\t//p' "$task/status")"
done`, strconv.Itoa(p.PID))
	if err != nil {
		t.Fatal(err)
	}
	threads := map[string]string{}
	for line := range strings.Lines(out) {
		if name, cpus, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			threads[name] = cpus
		}
	}
	return threads
}

// TestDedicatedCPUs: a guest with dedicated CPUs runs on a CPU that no other process of the node's pods may use, and QEMU's vCPU thread
// stays there. A guest that needs more CPUs than the node can give away waits.
func TestDedicatedCPUs(t *testing.T) {
	if os.Getenv(ownCPUsVariable) != "1" {
		t.Fatalf("the test needs a kubelet that gives pods CPUs of their own: %s=1 (make e2e-own-cpus)", ownCPUsVariable)
	}
	err := poll(2*time.Minute, func() error {
		labels := theNode(t).Labels
		if labels[v1.CPUManagerLabel] != "true" || labels[v1.OldCPUManagerLabel] != "true" {
			return fmt.Errorf("the node has the labels %v", labels)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ns := namespace(t)
	shares := create(t, ns, tiny("shares"))
	v := create(t, ns, tiny("dedicated", func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.CPU = &v1.CPU{Cores: 1, DedicatedCPUPlacement: true}
	}))
	v.await(v1.Running)
	v.log().expect(4*time.Minute, "tiny: up")
	shares.await(v1.Running)
	if pod := v.pod(); pod.Status.QOSClass != corev1.PodQOSGuaranteed {
		t.Errorf("the pod's quality of service is %s", pod.Status.QOSClass)
	}
	threads := allowedCPUs(t, v.qemu())
	vcpu := ""
	for name, cpus := range threads {
		if strings.HasPrefix(name, "CPU_0/") {
			vcpu = cpus
		}
	}
	if vcpu == "" || strings.ContainsAny(vcpu, ",-") {
		t.Fatalf("the guest's CPU may run on CPUs %q; QEMU's threads: %v", vcpu, threads)
	}
	for name, cpus := range threads {
		if cpus != vcpu {
			t.Errorf("the thread %s may run on CPUs %s, and the pod has CPU %s", name, cpus, vcpu)
		}
	}
	// The kubelet takes the CPU from pods that were there before, every ten seconds.
	err = poll(time.Minute, func() error {
		for name, cpus := range allowedCPUs(t, shares.qemu()) {
			if strings.Contains(cpus, vcpu) || strings.Contains(cpus, "-") {
				return fmt.Errorf("the thread %s of the other guest may run on CPUs %s, among them the one that is not its own", name, cpus)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	more := create(t, ns, tiny("isolated", func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.CPU = &v1.CPU{Cores: 1, DedicatedCPUPlacement: true, IsolateEmulatorThread: true}
	}))
	more.awaitCondition(v1.ConditionPodScheduled, "Unschedulable", "cpu")
}
