package e2e

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// release is a version of the product's source: of what is here, or of a commit
// before it.
type release struct {
	folder string
	// tag of its images.
	tag string
}

var present = release{folder: filepath.Join("..", ".."), tag: "dev"}

// older lays out the source of a commit and gives the node the images that are
// built of it.
func older(t *testing.T, commit string) release {
	t.Helper()
	r := release{folder: t.TempDir(), tag: "older-" + commit}
	// No worktree: an archive leaves nothing behind in the repository. What both
	// versions have in common, QEMU and its libraries, is not made twice.
	script := `set -o pipefail
		git -C "$1" -c tar.umask=0022 archive --format=tar "$2" | tar -xC "$3"
		mkdir -p "$3"/_output/cache
		cp -a "$1"/_output/cache/launcher-root{,.key} "$3"/_output/cache/
		ln -s "$(realpath "$1"/_output/cache/debs)" "$3"/_output/cache/debs`
	if out, err := output("", "bash", "-ec", script, "bash", present.folder, commit, r.folder); err != nil {
		t.Fatalf("lay out the source of %s; a clone without its history (git fetch --unshallow) cannot be tested: %v%s", commit, err, out)
	}
	build := exec.Command(filepath.Join(r.folder, "config", "images", "build.sh"), "launcher", "components")
	build.Env = append(os.Environ(), "TAG="+r.tag)
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the images of %s: %v\n%s", commit, err, text)
	}
	// An older commit may build other images than this one.
	images, err := filepath.Glob(filepath.Join(r.folder, "_output", "images", "virt-*.tar"))
	if err != nil || len(images) == 0 {
		t.Fatalf("find the images of %s: %d of them: %v", commit, len(images), err)
	}
	if _, err := output("", "cluster", append([]string{"load-image", "--name", os.Getenv(clusterVariable)}, images...)...); err != nil {
		t.Fatal(err)
	}
	return r
}

// deploy runs the release's `make deploy` (up) or `make undeploy` (down).
func (r release) deploy(command string, environment ...string) (string, error) {
	return output("", "env", append(environment, "TAG="+r.tag, filepath.Join(r.folder, "config", "deploy.sh"), command)...)
}

// chart makes the release's Helm chart, and returns its folder.
func (r release) chart(t *testing.T) string {
	t.Helper()
	chart := filepath.Join(t.TempDir(), "kubeqemu")
	manifests := kubectl(t, "kustomize", filepath.Join(r.folder, "config", "default"))
	if _, err := output(manifests, "go", "-C", filepath.Join(r.folder, "tools"), "run", "./chart", "--source", "../config/chart", "--output", chart); err != nil {
		t.Fatal(err)
	}
	return chart
}

func helm(t *testing.T, args ...string) {
	t.Helper()
	if _, err := exec.LookPath("helm"); err != nil {
		t.Fatalf("find Helm (run `make helm` first): %v", err)
	}
	if _, err := output("", "helm", append(args, "--wait", "--timeout=10m")...); err != nil {
		t.Fatal(err)
	}
}

// reinstall brings back what the tests' cluster had at first: it fills DataVolumes.
func reinstall(t *testing.T) {
	t.Helper()
	if _, err := present.deploy("up", "OVERLAY=config/datavolumes"); err != nil {
		t.Error(err)
	}
}

// uninstall removes whatever is installed, with its VMs; the test's end brings
// the present version back.
func uninstall(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		reinstall(t)
		permitEmulation(t)
	})
	out, err := present.deploy("down", "FORCE=1")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out, "Kubeqemu is removed") {
		t.Errorf("make undeploy says\n%s", out)
	}
	for _, left := range [][]string{
		{"get", "crd,apiservices,clusterroles,clusterrolebindings,validatingwebhookconfigurations,mutatingwebhookconfigurations,validatingadmissionpolicies", "-l", "kubevirt.io", "-o", "name"},
		{"get", "namespaces", "kubevirt", "--ignore-not-found", "-o", "name"},
		{"get", "nodes", "-l", "kubevirt.io/schedulable", "-o", "name"},
	} {
		if out := kubectl(t, left...); out != "" {
			t.Errorf("make undeploy left\n%s", out)
		}
	}
}

func permitEmulation(t *testing.T) {
	t.Helper()
	sample := filepath.Join(present.folder, "config", "samples", "kubevirt-emulation.yaml")
	if _, err := output("", "kubectl", "apply", "-f", sample); err != nil {
		t.Error(err)
	}
}

// firstContract is the commit that TestUpgrade's history begins with: the first
// version whose contract the versions after it keep to.
const firstContract = "3640811f"

// TestUpgrade: an older version with a VM that runs is replaced by the present
// one, which goes on with the very same QEMU, in the launcher of the older
// version, and can do with it what that launcher knows. So does a VMI whose pod
// was made before and that starts after.
func TestUpgrade(t *testing.T) {
	for _, stage := range []struct {
		name, commit     string
		install, upgrade func(*testing.T, release)
	}{
		// The first version of the contract between virt-handler and virt-launcher.
		{name: "make deploy", commit: firstContract, install: byMake, upgrade: byMake},
		{name: "helm upgrade", commit: firstContract, install: byHelm("install"), upgrade: byHelm("upgrade")},
	} {
		t.Run(stage.name, func(t *testing.T) {
			old := older(t, stage.commit)
			uninstall(t)
			stage.install(t, old)
			permitEmulation(t)
			ns := namespace(t)
			m := createVM(t, ns, "guest", v1.RunStrategyAlways)
			waiting := m.waits(old)
			uid := m.runs("")
			qemu, image := m.qemu(), "virt-launcher:"+old.tag
			shell := m.shell()
			m.in(shell, "echo before the upgrade > /before")
			if got := m.pod().Spec.Containers[0].Image; !strings.HasSuffix(got, image) {
				t.Fatalf("the launcher's image is %s, want %s", got, image)
			}

			stage.upgrade(t, present)
			schemasArePresent(t)
			if now := m.qemu(); now.PID != qemu.PID || now.Start != qemu.Start {
				t.Errorf("after the upgrade the guest's QEMU is %d, and was %d", now.PID, qemu.PID)
			}
			if now := m.uid(); now != uid || !strings.HasSuffix(m.pod().Spec.Containers[0].Image, image) {
				t.Errorf("after the upgrade the VMI is %s, and was %s", now, uid)
			}
			m.is(v1.VirtualMachineStatusRunning)
			m.awaitReady("GuestRunning")
			if got := m.in(shell, "cat /before"); got != "before the upgrade" {
				t.Errorf("the console that was open before: %q", got)
			}
			waiting.startsLate(image)
			m.obeys()
			if got := m.pod().Spec.Containers[0].Image; !strings.HasSuffix(got, "virt-launcher:"+present.tag) {
				t.Errorf("after a restart the launcher's image is %s", got)
			}
			kubectl(t, "-n", ns, "delete", "vm", m.name, "--timeout=600s")
		})
	}
}

// heldBack is the label of a node that a VM waits for.
const heldBack = "e2e.kubeqemu.test/upgraded"

// waits makes a VMI beside m whose pod no node takes yet.
func (m vm) waits(old release) vmi {
	m.t.Helper()
	waiting := create(m.t, m.namespace, tiny("waiting", func(s *v1.VirtualMachineInstanceSpec) {
		s.NodeSelector = map[string]string{heldBack: old.tag}
	}))
	waiting.awaitCondition(v1.ConditionPodScheduled, "Unschedulable")
	return waiting
}

// startsLate: the VMI's pod was made before the upgrade, with a launcher that does
// not know all that the present version has of a machine; its guest runs in it.
func (v vmi) startsLate(image string) {
	v.t.Helper()
	label := v.get().Spec.NodeSelector[heldBack]
	v.t.Cleanup(func() { kubectl(v.t, "label", "nodes", "--all", heldBack+"-") })
	kubectl(v.t, "label", "nodes", "--all", heldBack+"="+label)
	v.await(v1.Running)
	v.awaitCondition(v1.ConditionReady, v1.ReasonGuestRunning)
	if got := v.pod().Spec.Containers[0].Image; !strings.HasSuffix(got, image) {
		v.t.Errorf("the launcher of a VMI that started after the upgrade is %s, want %s", got, image)
	}
	v.delete()
}

func byMake(t *testing.T, r release) {
	t.Helper()
	if out, err := r.deploy("up"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func byHelm(command string) func(*testing.T, release) {
	return func(t *testing.T, r release) {
		t.Helper()
		if command == "install" {
			// The release's record; the objects are the cluster's.
			t.Cleanup(func() {
				if _, err := output("", "kubectl", "-n", "default", "delete", "secret", "-l", "owner=helm,name=kubeqemu"); err != nil {
					t.Error(err)
				}
			})
		}
		helm(t, command, "kubeqemu", r.chart(t), "--namespace", "default", "--set", "image.tag="+r.tag)
	}
}

// schemasArePresent looks whether the cluster's kinds are those of the present
// version.
func schemasArePresent(t *testing.T) {
	t.Helper()
	if out, err := output("", "kubectl", "diff", "-k", filepath.Join(present.folder, "config", "crd")); err != nil {
		t.Errorf("the kinds are not this version's: %v\n%s", err, out)
	}
}

// obeys: the guest of an older launcher does what that launcher knows, and ends
// when it is asked to.
func (m vm) obeys() {
	m.t.Helper()
	uid := m.uid()
	shell := m.attach("virtualmachineinstances", "console").prompt()
	m.asked(http.StatusOK, "", "", "virtualmachineinstances", "pause", nil)
	m.is(v1.VirtualMachineStatusPaused)
	m.asked(http.StatusOK, "", "", "virtualmachineinstances", "unpause", nil)
	m.is(v1.VirtualMachineStatusRunning)
	if got := m.in(shell, "cat /before"); got != "before the upgrade" {
		m.t.Errorf("the console through virt-api: %q", got)
	}
	m.does("restart", nil)
	m.runs(uid)
}
