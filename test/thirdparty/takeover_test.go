//go:build long

package thirdparty

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// TestTakeoverFromCDIAndBack: DataVolumes go from CDI to Kubeqemu and back, as docs/datavolumes.md says. No claim is made anew, and
// every VM boots from its disk each time.
func TestTakeoverFromCDIAndBack(t *testing.T) {
	p := newPlace(t, "takeover")
	p.apply(webServer)
	p.kubectl("wait", "--for=condition=Ready", "--timeout=2m", "pod/web")
	http := `source: {http: {url: "http://` + p.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}") + `/tiny.qcow2"}}`
	p.apply(vm("first", http))
	p.boots("first")
	claims := p.claims()
	t.Logf("with CDI: %s", p.memory())

	p.deploy("config/datavolumes")
	p.filler("False", "CDIInstalled")
	p.boots("first")

	// CDI's operator goes first: it would make the other deployments anew, and delete the kinds together with the CDI object.
	p.shell(`kubectl -n cdi delete deployment cdi-operator --cascade=foreground --timeout=2m
kubectl -n cdi delete deployments --all --cascade=foreground --timeout=2m
kubectl patch cdi cdi --type=merge -p '{"metadata":{"finalizers":null}}'
kubectl delete cdi cdi --cascade=orphan
kubectl delete validatingwebhookconfigurations,mutatingwebhookconfigurations,apiservices -l cdi.kubevirt.io
kubectl delete namespace cdi
kubectl apply --server-side --force-conflicts -k config/datavolumes/crd`)
	p.deploy("config/datavolumes")
	p.filler("True", "FillsDataVolumes")
	p.apply(vm("second", http))
	p.boots("second")
	t.Logf("without CDI: %s", p.memory())
	p.restarts("first")
	p.keeps(claims)
	claims = p.claims()

	// CDI's operator installs nothing where kinds of CDI are, unless its ConfigMap says that it has begun to.
	p.shell(`kubectl create namespace cdi
kubectl apply -f _output/third-party/cdi-operator.yaml
kubectl apply -f test/thirdparty/cdi.yaml
kubectl apply -f - <<END
apiVersion: v1
kind: ConfigMap
metadata:
  name: cdi-config
  namespace: cdi
  labels: {operator.cdi.kubevirt.io: ""}
  ownerReferences:
  - {apiVersion: cdi.kubevirt.io/v1beta1, kind: CDI, name: cdi, uid: $(kubectl get cdi cdi -o jsonpath={.metadata.uid}), controller: true, blockOwnerDeletion: true}
END
kubectl wait cdi/cdi --for=condition=Available --timeout=5m`)
	p.filler("False", "CDIInstalled")
	p.apply(vm("third", http))
	p.boots("third")
	if made := p.kubectl("get", "persistentvolumeclaim", "third-root", "-o", `jsonpath={.metadata.labels.app\.kubernetes\.io/managed-by}`); made == "kubeqemu" {
		t.Errorf("the claim of the third VM's disk is managed by %q", made)
	}
	p.restarts("first")
	p.restarts("second")
	p.keeps(claims)
	p.kubectl("delete", "vm", "--all", "--timeout=4m")
}

// shell runs commands as a user would, in the repository.
func (p place) shell(script string) {
	p.Helper()
	cmd := exec.CommandContext(p.Context(), "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		p.Fatalf("%s: %v\n%s", script, err, out)
	}
}

func (p place) deploy(overlay string) {
	p.Helper()
	p.shell("OVERLAY=" + overlay + " TIMEOUT=3m config/deploy.sh up")
}

// filler waits for what the KubeVirt object says of who fills DataVolumes.
func (p place) filler(status, reason string) {
	p.Helper()
	p.until(func() error {
		got := p.kubectl("-n", "kubevirt", "get", "kubevirt", "kubevirt", "-o", `jsonpath={range .status.conditions[?(@.type=="DataVolumesFilled")]}{.status} {.reason} {.message}{end}`)
		if !strings.HasPrefix(got, status+" "+reason+" ") {
			return fmt.Errorf("the condition DataVolumesFilled is %q, want %s, %s", got, status, reason)
		}
		return nil
	})
}

// claims are the names and UIDs of the claims.
func (p place) claims() string {
	p.Helper()
	return p.kubectl("get", "persistentvolumeclaims", "-o", `jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.spec.volumeName}{"\n"}{end}`)
}

// keeps looks whether claims are there still.
func (p place) keeps(claims string) {
	p.Helper()
	now := p.claims()
	for claim := range strings.Lines(claims) {
		if !strings.Contains(now, strings.TrimSpace(claim)) {
			p.Errorf("the claim %s is not there any more; there are\n%s", claim, now)
		}
	}
}

// restarts has a VM's guest boot again.
func (p place) restarts(vm string) {
	p.Helper()
	before := p.kubectl("get", "vmi", vm, "-o", "jsonpath={.metadata.uid}")
	p.kubectl("delete", "vmi", vm, "--timeout=2m")
	p.until(func() error {
		if now, err := run("", "-n", p.namespace, "get", "vmi", vm, "-o", "jsonpath={.metadata.uid}"); err != nil || now == before {
			return fmt.Errorf("the VMI of VM %s is %s still (%v)", vm, now, err)
		}
		return nil
	})
	p.boots(vm)
}

// memory is the memory of what fills disks on the node, and of virt-controller: the proportional set size, in MiB.
func (p place) memory() string {
	p.Helper()
	out, err := exec.CommandContext(p.Context(), "cluster", "enter", "--name", "third-party", "--", "sh", "-c",
		`for p in /proc/[0-9]*; do name=$(tr '\0' '\n' < $p/cmdline 2>/dev/null | head -n 1); case $name in
*/cdi-*|*/virt-controller|*/virt-importer|virt-controller) echo "${name##*/} $(awk '/^Pss:/{print int($2/1024)}' $p/smaps_rollup) MiB";; esac; done; true`).Output()
	if err != nil {
		p.Fatal(err)
	}
	return strings.Join(strings.Split(strings.TrimSpace(string(out)), "\n"), ", ")
}
