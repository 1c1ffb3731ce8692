package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// newerLauncher is another name of the launcher's image.
const newerLauncher = "localhost/kubeqemu-e2e/virt-launcher:newer"

// renameLauncher gives virt-launcher's image another name on both nodes, and has virt-controller make pods of that name until the test ends.
func renameLauncher(t *testing.T, image string) {
	t.Helper()
	ctr, err := exec.LookPath("ctr")
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"1", "2"} {
		if _, err := output("", "cluster", "enter", "--name", os.Getenv(clusterVariable), "--node", node, "--", ctr, "-n", "k8s.io", "images", "tag", "--force", image, newerLauncher); err != nil {
			t.Fatal(err)
		}
	}
	use := func(image string) error {
		_, err := output("", "kubectl", "-n", "kubevirt", "set", "env", "deployment/virt-controller", "LAUNCHER_IMAGE="+image)
		if err == nil {
			_, err = output("", "kubectl", "-n", "kubevirt", "rollout", "status", "--timeout=180s", "deployment/virt-controller")
		}
		return err
	}
	t.Cleanup(func() {
		if err := use(image); err != nil {
			t.Error(err)
		}
	})
	if err := use(newerLauncher); err != nil {
		t.Fatal(err)
	}
}

// TestWorkloadUpdate: a guest keeps its launcher when virt-controller has another image, until the KubeVirt object says that guests move. Then the guest
// moves once.
func TestWorkloadUpdate(t *testing.T) {
	newSecondNode(t)
	ns := namespace(t)
	m := createVM(t, ns, "kept", v1.RunStrategyAlways)
	uid := m.runs("")
	m.log().shows(3*time.Minute, "tiny: eth0")
	old := m.pod()
	image := old.Spec.Containers[0].Image
	if got := m.get().Status.LauncherContainerImageVersion; got != image {
		t.Errorf("the status says that the launcher has image %q, and its pod has %q", got, image)
	}
	renameLauncher(t, image)
	strategy := func(methods string) error {
		_, err := output("", "kubectl", "-n", "kubevirt", "patch", "kubevirt", "kubevirt", "--type=merge", "--patch", `{"spec":{"workloadUpdateStrategy":{"workloadUpdateMethods":`+methods+`}}}`)
		return err
	}
	t.Cleanup(func() {
		if err := strategy("null"); err != nil {
			t.Error(err)
		}
	})
	if s := m.get().Status.MigrationState; s != nil {
		t.Errorf("the guest moves, and nobody has said so: %+v", s)
	}
	if err := strategy(`["LiveMigrate"]`); err != nil {
		t.Fatal(err)
	}
	err := poll(4*time.Minute, func() error {
		s := m.get().Status.MigrationState
		if s == nil || !s.Completed {
			return fmt.Errorf("the guest has not moved yet: %+v", s)
		}
		if s.Failed {
			return errors.New(s.FailureReason)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if pod := m.pod(); pod.Name == old.Name || pod.Spec.Containers[0].Image != newerLauncher || pod.Spec.NodeName == old.Spec.NodeName {
		t.Errorf("the guest is in pod %s of image %s on %s", pod.Name, pod.Spec.Containers[0].Image, pod.Spec.NodeName)
	}
	moves := get[v1.VirtualMachineInstanceMigrationList](t, "-n", ns, "vmim").Items
	if len(moves) != 1 || moves[0].Annotations[v1.WorkloadUpdateMigrationAnnotation] != old.Name || moves[0].EffectivePriority() != v1.PrioritySystemMaintenance {
		t.Errorf("the migrations are %+v", moves)
	}
	if m.uid() != uid {
		t.Error("the guest was restarted")
	}
}
