package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// asController makes kubectl virt-controller: a policy lets nobody else make
// what is made here, so this is how one finds out what holds without it.
const asController = "--as=system:serviceaccount:kubevirt:virt-controller"

// impostor is a copy of a launcher pod under another name: with virt-launcher,
// which speaks the control protocol, its labels and a slot.
func impostor(of *corev1.Pod, name string, owners ...metav1.OwnerReference) *corev1.Pod {
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: of.Labels, Annotations: of.Annotations, OwnerReferences: owners},
		Spec:       *of.Spec.DeepCopy(),
	}
	pod.Spec.NodeName = ""
	pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](0)
	return pod
}

// liar is an impostor that says at once that its guest went down in order.
func liar(of *corev1.Pod, name string, owners ...metav1.OwnerReference) *corev1.Pod {
	pod := impostor(of, name, owners...)
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		c.Image, c.ImagePullPolicy, c.Args, c.StartupProbe, c.ReadinessProbe, c.LivenessProbe = clientImage, corev1.PullNever, nil, nil, nil, nil
		c.Command = []string{"busybox", "sh", "-c", `echo '{"reason":"GuestShutdown"}' >/dev/termination-log`}
	}
	return pod
}

// makePod creates a pod, as whom the arguments say.
func makePod(t *testing.T, namespace string, pod *corev1.Pod, args ...string) error {
	t.Helper()
	text, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	_, err = output(string(text), "kubectl", append([]string{"-n", namespace, "create", "-f", "-"}, args...)...)
	return err
}

// mustMakePod creates a pod as virt-controller.
func mustMakePod(t *testing.T, namespace string, pod *corev1.Pod) {
	t.Helper()
	if err := makePod(t, namespace, pod, asController); err != nil {
		t.Fatal(err)
	}
}

// controlledBy is what makes a VMI a pod's controller.
func controlledBy(name string, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachineInstance", Name: name, UID: uid, Controller: ptr.To(true)}
}

// connected waits until virt-handler says that a pod's launcher said hello.
func connected(t *testing.T, namespace, pod string) {
	t.Helper()
	err := poll(func() error {
		log, err := output("", "kubectl", "-n", "kubevirt", "logs", "daemonset/virt-handler", "--since=5m")
		if err == nil && !strings.Contains(log, fmt.Sprintf(`"launcher connected","pod":"%s/%s"`, namespace, pod)) {
			err = fmt.Errorf("virt-handler does not know the launcher in pod %s", pod)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// tenant makes a user who may edit a namespace, and returns kubectl's argument
// for being him.
func tenant(t *testing.T, namespace string) string {
	t.Helper()
	kubectl(t, "-n", namespace, "create", "rolebinding", "tenant", "--clusterrole=edit", "--user=tenant-of-"+namespace)
	as := "--as=tenant-of-" + namespace
	may(t, namespace, as, "create", "pods")
	return as
}

// TestForgedPod: pods that pretend to be a VMI's launcher change nothing, even
// where they get slots.
func TestForgedPod(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	v := create(t, ns, tiny("victim"))
	v.await(v1.Running)
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "vmi/victim", "--timeout=600s") // the last its launcher says
	before, genuine := v.get(), v.pod()
	unchanged := func(when string) {
		t.Helper()
		// Not the conditions: the real launcher may be silent for a while.
		now, was := v.get().Status, before.Status
		if now.Phase != was.Phase || now.NodeName != was.NodeName || now.Reason != was.Reason || !equality.Semantic.DeepEqual(now.ActivePods, was.ActivePods) ||
			!equality.Semantic.DeepEqual(now.Interfaces, was.Interfaces) || !equality.Semantic.DeepEqual(now.PhaseTransitionTimestamps, was.PhaseTransitionTimestamps) {
			t.Errorf("%s changed the VMI's status from\n%+v\nto\n%+v", when, was, now)
		}
	}
	name := func(hash string) string { return "virt-launcher-victim-" + hash }
	mustMakePod(t, ns, impostor(genuine, name("0000000000")))
	mustMakePod(t, ns, liar(genuine, name("1111111111"), controlledBy("victim", "00000000-0000-4000-8000-000000000000")))
	mustMakePod(t, ns, liar(genuine, name("2222222222"), controlledBy("victim", before.UID)))
	mustMakePod(t, ns, liar(genuine, name("3333333333")))
	connected(t, ns, name("0000000000"))
	for _, hash := range []string{"2222222222", "3333333333"} {
		kubectl(t, "-n", ns, "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/"+name(hash), "--timeout=600s")
	}
	unchanged("a forged pod that ran, or ended,")
	v.qemu() // the only one

	for _, hash := range []string{"0000000000", "1111111111", "2222222222", "3333333333"} {
		kubectl(t, "-n", ns, "delete", "pod", name(hash), "--ignore-not-found", "--timeout=600s")
	}
	// What the controllers make of it, they have made once they have served another VMI.
	other := create(t, ns, tiny("other"))
	other.await(v1.Running)
	unchanged("the deletion of a forged pod")

	// The end that the forged pods told must not become the VMI's.
	signal(t, "KILL", v.qemu())
	if reason := v.await(v1.Failed).Status.Reason; reason != "QEMUExited" {
		t.Errorf("reason is %q, want QEMUExited", reason)
	}
}

// stopController takes virt-controller away. The returned function brings it
// back; the test's end does so too.
func stopController(t *testing.T) (start func()) {
	t.Helper()
	scale := func(replicas string) error {
		_, err := output("", "kubectl", "-n", "kubevirt", "scale", "deployment/virt-controller", "--replicas="+replicas)
		return err
	}
	start = func() {
		err := scale("1")
		if err == nil {
			_, err = output("", "kubectl", "-n", "kubevirt", "rollout", "status", "--timeout=600s", "deployment/virt-controller")
		}
		if err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(start)
	if err := scale("0"); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "-n", "kubevirt", "wait", "--for=delete", "pod", "-l", "kubevirt.io=virt-controller", "--timeout=600s")
	return start
}

// TestLauncherNameTaken: a pod that has the launcher's very name before
// virt-controller made the launcher is not served, even with a slot and
// virt-launcher in it. The VMI says what is in its way, and starts once it is gone.
func TestLauncherNameTaken(t *testing.T) {
	ns := namespace(t)
	donor := create(t, ns, tiny("donor"))
	donor.await(v1.Running)
	genuine := donor.pod()
	donor.delete()

	start := stopController(t)
	v := create(t, ns, tiny("victim"))
	uid := v.get().UID
	forged := impostor(genuine, v1.LauncherPodName(v.name, uid, v1.FirstPod))
	if err := makePod(t, ns, forged, tenant(t, ns)); err == nil || !strings.Contains(err.Error(), "only virt-controller makes pods") {
		t.Errorf("a tenant makes the launcher: %v", err)
	}
	mustMakePod(t, ns, forged)
	connected(t, ns, forged.Name)

	start()
	v.awaitCondition(v1.ConditionSynchronized, "FailedCreate", forged.Name, "is in the way; delete it")
	status := v.get().Status
	if status.Phase != v1.Pending || status.NodeName != "" || len(status.ActivePods) > 0 || len(status.Interfaces) > 0 {
		t.Errorf("the forged pod changed the VMI's status to %+v", status)
	}
	all, err := nodeProcesses()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.isQEMU() && slices.Contains(p.Args, string(uid)) {
			t.Errorf("the forged pod was served: %s", p.shell())
		}
	}
	log := kubectl(t, "-n", ns, "logs", forged.Name)
	if strings.Contains(log, `"preparing"`) {
		t.Errorf("the forged pod was told to start:\n%s", log)
	}

	kubectl(t, "-n", ns, "delete", "pod", forged.Name, "--timeout=600s")
	v.await(v1.Running)
	if pod := v.pod(); !metav1.IsControlledBy(pod, v.get()) {
		t.Errorf("the VMI runs in pod %s, which it does not control", pod.Name)
	}
	v.qemu()
}
