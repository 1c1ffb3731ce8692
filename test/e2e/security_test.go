package e2e

import (
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// maxLauncherRSS is what an idle virt-launcher may have, in KiB. The budget of the bench is 8 MiB, as a median on a
// quiet machine. Beside other tests the kernel maps some pages more of the program.
const maxLauncherRSS = 8<<10 + 256

// TestLauncherRunsRestricted: the launcher runs where the restricted Pod Security Standard
// is enforced, and it and QEMU can do nothing.
func TestLauncherRunsRestricted(t *testing.T) {
	t.Parallel()
	ns := namespace(t, "pod-security.kubernetes.io/enforce=restricted")
	v := create(t, ns, tiny("guest", bootsKernel, cloudInit("#cloud-config\n")))
	v.await(v1.Running)
	v.log().shows(`tiny: eth0`)

	spec := v.pod().Spec
	if spec.AutomountServiceAccountToken == nil || *spec.AutomountServiceAccountToken {
		t.Error("a token is mounted into the launcher pod")
	}
	if spec.HostNetwork || spec.HostPID || spec.HostIPC {
		t.Error("the launcher pod has a namespace of the host's")
	}
	for _, volume := range spec.Volumes {
		if volume.HostPath != nil || volume.Projected != nil || volume.Secret != nil {
			t.Errorf("the launcher pod has the volume %+v", volume)
		}
	}
	for _, c := range append(spec.InitContainers, spec.Containers...) {
		s := c.SecurityContext
		if s == nil || s.Capabilities == nil || len(s.Capabilities.Add) > 0 || len(s.Capabilities.Drop) != 1 || s.Capabilities.Drop[0] != "ALL" {
			t.Errorf("container %s has capabilities: %+v", c.Name, s)
		}
	}
	launcher, qemu := v.launcher(), v.qemu()
	for name, p := range map[string]nodeProcess{"virt-launcher": launcher, "QEMU": qemu} {
		have := procStatus(t, p)
		for field, want := range map[string]string{"CapPrm": "0000000000000000", "CapEff": "0000000000000000", "CapBnd": "0000000000000000",
			"Seccomp": "2", "NoNewPrivs": "1", "Uid": "107\t107\t107\t107"} {
			if have[field] != want {
				t.Errorf("%s of %s is %q, want %q", field, name, have[field], want)
			}
		}
	}
	found, err := onNode(`find "/proc/$1/root/run" "/proc/$1/root/var/run" -name "*token*" -o -name serviceaccount`, strconv.Itoa(launcher.PID))
	if found != "" {
		t.Errorf("the launcher sees %s (%v)", found, err)
	}
	rss, err := strconv.Atoi(strings.TrimSuffix(procStatus(t, launcher)["VmRSS"], " kB"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("virt-launcher, idle: %d KiB RSS", rss)
	if rss > maxLauncherRSS {
		t.Errorf("virt-launcher has %d KiB RSS, the budget is %d", rss, maxLauncherRSS)
	}
}

func handlerPod(t *testing.T) string {
	t.Helper()
	pods := get[corev1.PodList](t, "-n", "kubevirt", "pods", "-l", "kubevirt.io=virt-handler")
	if len(pods.Items) != 1 {
		t.Fatalf("%d pods of virt-handler", len(pods.Items))
	}
	return pods.Items[0].Name
}
