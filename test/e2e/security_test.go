package e2e

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// maxLauncherRSS is the budget of an idle virt-launcher, in KiB.
const maxLauncherRSS = 8 << 10

// TestRestricted: the launcher runs where the restricted Pod Security Standard
// is enforced, and it and QEMU can do nothing.
func TestRestricted(t *testing.T) {
	t.Parallel()
	ns := namespace(t, "pod-security.kubernetes.io/enforce=restricted")
	v := create(t, ns, tiny("guest", cloudInit("#cloud-config\n")))
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

// TestHandlerRights: virt-handler's account writes the status of VMIs of the
// node that its token names, takes them no further than Running, and little
// else.
func TestHandlerRights(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	v := create(t, ns, tiny("guest"))
	node := v.await(v1.Running).Status.NodeName
	const account = "system:serviceaccount:kubevirt:virt-handler"
	// kubectl patch reads before it writes, which virt-handler has no need of.
	kubectl(t, "-n", ns, "create", "role", "read-status", "--verb=get", "--resource=virtualmachineinstances.kubevirt.io/status")
	kubectl(t, "-n", ns, "create", "rolebinding", "read-status", "--role=read-status", "--serviceaccount=kubevirt:virt-handler")
	may(t, ns, "--as="+account, "get", "virtualmachineinstances.kubevirt.io", "--subresource=status")
	as := func(node string) []string {
		args := []string{"--as=" + account}
		if node != "" {
			args = append(args, "--as-user-extra=authentication.kubernetes.io/node-name="+node)
		}
		return args
	}
	const harmless = `{"status":{"runtimeUser":107,"interfaces":[]}}`
	for name, c := range map[string]struct {
		args    []string
		patch   string
		refusal string // empty: allowed
	}{
		"no node":          {as(""), harmless, "kubevirt-handler-own-node"},
		"another node":     {as("other-node"), harmless, "of its own node"},
		"an empty node":    {as(" "), harmless, "of its own node"},
		"move":             {as(node), `{"status":{"nodeName":"other-node"}}`, "may not move"},
		"unbind":           {as(node), `{"status":{"nodeName":null}}`, "may not move"},
		"end":              {as(node), `{"status":{"phase":"Succeeded"}}`, "never back and never to its end"},
		"back":             {as(node), `{"status":{"phase":"Scheduled"}}`, "never back and never to its end"},
		"another pod":      {as(node), `{"status":{"activePods":{"00000000-0000-4000-8000-000000000000":"` + node + `"}}}`, "which pods"},
		"pod's addresses":  {as(node), `{"status":{"launcherPods":null}}`, "which addresses"},
		"pod taken away":   {as(node), `{"status":{"activePods":null}}`, "which pods"},
		"another size":     {as(node), `{"status":{"volumeStatus":[{"name":"root","persistentVolumeClaimInfo":{"capacity":{"storage":"1Pi"}}}]}}`, "what a VirtualMachineInstance's volumes are"},
		"token of no node": {withToken(t, "no-node"), harmless, "names no node"},
		"own node":         {as(node), harmless, ""},
		"token of its pod": {withToken(t, "pod", "--bound-object-kind=Pod", "--bound-object-name="+handlerPod(t)), harmless, ""},
	} {
		args := append([]string{"-n", ns, "patch", "vmi", v.name, "--subresource=status", "--type=merge", "--patch", c.patch}, c.args...)
		_, err := output("", "kubectl", args...)
		switch {
		case c.refusal == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.refusal != "" && (err == nil || !strings.Contains(err.Error(), c.refusal)):
			t.Errorf("%s: %v, want to be refused: %s", name, err, c.refusal)
		}
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

// withToken are kubectl's arguments for using a token of virt-handler's, and
// nothing but that: a client certificate would come first.
func withToken(t *testing.T, name string, bound ...string) []string {
	t.Helper()
	token := strings.TrimSpace(kubectl(t, append([]string{"-n", "kubevirt", "create", "token", "virt-handler"}, bound...)...))
	admin, err := os.ReadFile(os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, admin, 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "--kubeconfig", file, "config", "set-credentials", "handler", "--token="+token)
	kubectl(t, "--kubeconfig", file, "config", "set-context", "--current", "--user=handler")
	return []string{"--kubeconfig", file}
}
