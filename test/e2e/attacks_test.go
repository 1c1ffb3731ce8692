package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// podOfNeighbour is how long a neighbour's VM may wait for its pod, whatever a tenant does.
const podOfNeighbour = 5 * time.Second

// placeOfLauncher is how long a launcher that stands still may hold a place among the migrations: the time for a guest
// of less than a GiB, a minute in which the launcher should have ended the migration, two minutes in which it should
// give up, and what a busy machine takes.
const placeOfLauncher = 10 * time.Minute

// neighbour is who has VMs beside an attacker.
type neighbour struct {
	namespace string
	made      int
}

// starts makes a VM, and waits until its guest runs. Its pod has to be there in time.
func (n *neighbour) starts(t *testing.T) {
	t.Helper()
	n.made++
	name := fmt.Sprintf("vm-%d", n.made)
	m := createVM(t, n.namespace, name, v1.RunStrategyAlways, bootsKernel)
	m.runs("")
	took := m.pod().CreationTimestamp.Sub(m.machine().CreationTimestamp.Time)
	t.Logf("VM %s has its pod after %s", name, took)
	if took > podOfNeighbour {
		t.Errorf("VM %s has its pod after %s, want %s at most", name, took, podOfNeighbour)
	}
	kubectl(t, "-n", n.namespace, "delete", "vm", name, "--timeout=600s")
}

// attacker has the role edit in a namespace.
type attacker struct {
	t         *testing.T
	namespace string
	as        string
}

// tries runs kubectl as the attacker.
func (a attacker) tries(stdin string, args ...string) (string, error) {
	return output(stdin, "kubectl", append([]string{"-n", a.namespace, a.as}, args...)...)
}

// refused runs kubectl as the attacker, and wants a refusal with words in it.
func (a attacker) refused(words, stdin string, args ...string) {
	a.t.Helper()
	out, err := a.tries(stdin, args...)
	if err == nil || !strings.Contains(err.Error(), words) {
		a.t.Errorf("kubectl %s: %.2000v %.2000s, want it refused with %q", strings.Join(args, " "), err, out, words)
	}
}

// floods creates objects of a template in which %d is the number.
func (a attacker) floods(count int, template string) {
	a.t.Helper()
	objects := make([]string, count)
	for i := range objects {
		objects[i] = strings.ReplaceAll(template, "%d", fmt.Sprint(i))
	}
	for len(objects) > 0 {
		some := objects[:min(len(objects), 100)]
		objects = objects[len(some):]
		list := `{"apiVersion":"v1","kind":"List","items":[` + strings.Join(some, ",") + "]}"
		if _, err := a.tries(list, "create", "--validate=false", "-f", "-"); err != nil {
			a.t.Errorf("create %d objects: %.2000v", count, err)
		}
	}
}

// vmiSpec is the spec of a VMI as JSON.
func vmiSpec(t *testing.T, object *v1.VirtualMachineInstance) string {
	t.Helper()
	text, err := json.Marshal(object.Spec)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestAttacksHarmNoNeighbour: what a tenant with the role edit in one namespace, and a node that was taken, try is
// refused, or bounded. Beside it a neighbour's VMs go on starting.
func TestAttacksHarmNoNeighbour(t *testing.T) {
	n := &neighbour{namespace: namespace(t)}
	n.starts(t)
	for _, attack := range []struct {
		name string
		try  func(a attacker, n *neighbour)
	}{
		{"older version", createdByPatch},
		{"copies without a pod", copiesWithoutAPod},
		{"replicas", replicasWithoutBound},
		{"vms that cannot start", vmsThatCannotStart},
		{"datavolumes that wait", dataVolumesThatWait},
		{"deletions", deletionsByTheHundred},
		{"long lists", longLists},
		{"closed namespace", closedNamespace},
		{"forwarded port", forwardedPort},
		{"reserved keys", reservedKeys},
		{"migrations without an end", migrationsWithoutAnEnd},
	} {
		t.Run(attack.name, func(t *testing.T) {
			ns := namespace(t)
			attack.try(attacker{t, ns, tenant(t, ns)}, n)
			n.starts(t)
		})
	}
}

// createdByPatch: the right to patch is not the right to create, at any version.
func createdByPatch(a attacker, _ *neighbour) {
	kubectl(a.t, "-n", a.namespace, "create", "role", "patches", "--verb=get,patch", "--resource=virtualmachines.kubevirt.io")
	kubectl(a.t, "-n", a.namespace, "create", "rolebinding", "patches", "--role=patches", "--user=patcher-of-"+a.namespace)
	patcher := attacker{a.t, a.namespace, "--as=patcher-of-" + a.namespace}
	may(a.t, a.namespace, patcher.as, "patch", "virtualmachines.kubevirt.io")
	for _, version := range []string{"v1", "v1alpha3"} {
		manifest := strings.Replace(manifestOf(a.t, "made", v1.RunStrategyHalted), `"kubevirt.io/v1"`, `"kubevirt.io/`+version+`"`, 1)
		patcher.refused("cannot create", manifest, "apply", "--server-side", "--validate=false", "-f", "-")
	}
	if made := kubectl(a.t, "-n", a.namespace, "get", "vm", "-o", "name"); made != "" {
		a.t.Errorf("there is %s", made)
	}
}

// copiesWithoutAPod: DataVolumes whose importers are refused leave no pod in the namespace of their source.
func copiesWithoutAPod(a attacker, n *neighbour) {
	golden := namespace(a.t)
	provision(a.t, golden)
	url := serve(a.t, golden, "web", 0)
	if err := dataVolume(golden, "golden", `{"source":{"http":{"url":"`+url+`/disk/tiny.qcow2"}},"storage":{"storageClassName":"e2e-dynamic","resources":{"requests":{"storage":"256Mi"}}}}`); err != nil {
		a.t.Fatal(err)
	}
	ready(a.t, golden, "golden")
	mayCopy(a.t, golden, "tenant", "{apiGroup: rbac.authorization.k8s.io, kind: User, name: tenant-of-"+a.namespace+"}")
	may(a.t, golden, a.as, "create", "datavolumes.cdi.kubevirt.io", "--subresource=source")
	may(a.t, a.namespace, a.as, "create", "datavolumes.cdi.kubevirt.io")
	kubectl(a.t, "-n", a.namespace, "create", "quota", "none", "--hard=pods=0")
	provision(a.t, a.namespace)
	a.floods(50, `{"apiVersion":"cdi.kubevirt.io/v1beta1","kind":"DataVolume","metadata":{"name":"copy-%d","annotations":{"cdi.kubevirt.io/storage.bind.immediate.requested":""}},
"spec":{"source":{"pvc":{"namespace":"`+golden+`","name":"golden"}},"storage":{"storageClassName":"e2e-dynamic"}}}`)
	n.starts(a.t)
	if err := poll(func() error {
		said, err := output("", "kubectl", "-n", a.namespace, "get", "datavolumes", "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Running")].message}`)
		if err == nil && strings.Count(said, "exceeded quota") < 50 {
			err = fmt.Errorf("of 50 DataVolumes %d say that the quota refuses their importers: %.500s", strings.Count(said, "exceeded quota"), said)
		}
		return err
	}); err != nil {
		a.t.Error(err)
	}
	noSourcePods(a.t, golden)
	// A refusal that the status tells is logged once.
	log := kubectl(a.t, "-n", "kubevirt", "logs", "deployment/virt-controller", "--since=10m")
	if lines := strings.Count(log, a.namespace+"/copy-") + strings.Count(log, `"namespace":"`+a.namespace+`"`); lines > 2*50 {
		a.t.Errorf("virt-controller wrote %d lines of 50 refused DataVolumes", lines)
	}
}

// replicasWithoutBound: a ReplicaSet or pool has a bound, and makes few members that do not start.
func replicasWithoutBound(a attacker, n *neighbour) {
	template := `{"metadata":{"labels":{"member":"true"}},"spec":` + vmiSpec(a.t, tiny("member", bootsKernel, inNowhere)) + "}"
	replicas := func(count string) string {
		return `{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstanceReplicaSet","metadata":{"name":"many"},"spec":{"replicas":` + count +
			`,"selector":{"matchLabels":{"member":"true"}},"template":` + template + "}}"
	}
	a.refused("should be less than or equal to 1000", replicas("2147483647"), "create", "-f", "-")
	if _, err := a.tries(replicas("1000"), "create", "-f", "-"); err != nil {
		a.t.Fatal(err)
	}
	a.refused("should be less than or equal to 1000", "", "scale", "vmirs", "many", "--replicas=2147483647")
	kubectl(a.t, "-n", a.namespace, "wait", "--for=jsonpath={.status.replicas}=8", "--timeout=600s", "vmirs/many")
	for range 2 {
		n.starts(a.t)
		if made := strings.Fields(kubectl(a.t, "-n", a.namespace, "get", "vmi", "-o", "name")); len(made) != 8 {
			a.t.Errorf("a ReplicaSet of 1000 whose members do not start has made %d, want 8", len(made))
		}
	}
	kubectl(a.t, "-n", a.namespace, "delete", "vmirs", "many", "--timeout=600s")
}

// vmsThatCannotStart: VMs with as many templates of DataVolumes as can be, of which each may not be copied.
func vmsThatCannotStart(a attacker, n *neighbour) {
	manifest := manifestOf(a.t, "vm-%d", v1.RunStrategyAlways, bootsKernel, func(s *v1.VirtualMachineInstanceSpec) {
		for i := range v1.MaxDataVolumeTemplates {
			name := fmt.Sprintf("disk-%d", i)
			s.Domain.Devices.Disks = append(s.Domain.Devices.Disks, v1.Disk{Name: name})
			s.Volumes = append(s.Volumes, v1.Volume{Name: name, DataVolume: &v1.DataVolumeSource{Name: "vm-%d-" + name}})
		}
	})
	var templates []string
	for i := range v1.MaxDataVolumeTemplates {
		templates = append(templates, fmt.Sprintf(`{"metadata":{"name":"vm-%%d-disk-%d"},"spec":{"storage":{"resources":{"requests":{"storage":"1Gi"}}},"source":{"pvc":{"namespace":"kube-system","name":"golden"}}}}`, i))
	}
	const strategy = `"runStrategy":"Always"`
	a.floods(100, strings.Replace(manifest, strategy, strategy+`,"dataVolumeTemplates":[`+strings.Join(templates, ",")+"]", 1))
	for range 3 {
		n.starts(a.t)
	}
	kubectl(a.t, "-n", a.namespace, "delete", "vm", "--all", "--timeout=600s")
}

// dataVolumesThatWait: DataVolumes whose source is not there.
func dataVolumesThatWait(a attacker, n *neighbour) {
	may(a.t, a.namespace, a.as, "create", "datavolumes.cdi.kubevirt.io")
	a.floods(500, `{"apiVersion":"cdi.kubevirt.io/v1beta1","kind":"DataVolume","metadata":{"name":"wait-%d"},
"spec":{"source":{"pvc":{"namespace":"`+a.namespace+`","name":"none"}},"storage":{"resources":{"requests":{"storage":"1Gi"}}}}}`)
	for range 3 {
		n.starts(a.t)
	}
}

// deletionsByTheHundred: VMIs that no node takes are made, and all deleted.
func deletionsByTheHundred(a attacker, n *neighbour) {
	a.floods(742, `{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance","metadata":{"name":"vmi-%d"},"spec":`+
		vmiSpec(a.t, tiny("vmi", bootsKernel, inNowhere))+"}")
	if _, err := a.tries("", "delete", "vmi", "--all", "--wait=false"); err != nil {
		a.t.Error(err)
	}
	for range 3 {
		n.starts(a.t)
	}
}

// longLists: lists of a hundred thousand empty items are refused before the API server looks at each.
func longLists(a attacker, n *neighbour) {
	items := strings.TrimSuffix(strings.Repeat("{},", 100_000), ",")
	manifest := manifestOf(a.t, "long", v1.RunStrategyHalted)
	long := strings.Replace(manifest, `"disks":[`, `"disks":[`+items+",", 1)
	if long == manifest {
		a.t.Fatalf("the manifest has no disks: %s", manifest)
	}
	began := time.Now()
	a.refused("spec.template.spec.domain.devices.disks", long, "create", "--validate=false", "-f", "-")
	took := time.Since(began)
	a.t.Logf("the refusal took %s", took)
	if took > 20*time.Second {
		a.t.Errorf("the refusal took %s", took)
	}
	n.starts(a.t)
}

// closedNamespace: expand-spec tells a tenant nothing of a namespace that is closed to them.
func closedNamespace(a attacker, _ *neighbour) {
	closed := namespace(a.t)
	apply(a.t, closed, `{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"there","labels":{"instancetype.kubevirt.io/default-instancetype":"closed-secret"}},
"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`)
	ask := func(claim string, as ...string) string {
		manifest := manifestOf(a.t, "asks", v1.RunStrategyHalted, func(s *v1.VirtualMachineInstanceSpec) {
			s.Domain.Memory = nil
			s.Domain.Devices.Disks = append(s.Domain.Devices.Disks, v1.Disk{Name: "data"})
			s.Volumes = append(s.Volumes, v1.Volume{Name: "data", DataVolume: &v1.DataVolumeSource{Name: "data"}})
		})
		const strategy = `"runStrategy":"Halted"`
		template := `{"metadata":{"name":"data"},"spec":{"storage":{},"source":{"pvc":{"namespace":"` + closed + `","name":"` + claim + `"}}}}`
		manifest = strings.Replace(manifest, strategy, strategy+`,"instancetype":{"inferFromVolume":"data"},"dataVolumeTemplates":[`+template+"]", 1)
		path := "/apis/subresources.kubevirt.io/v1/namespaces/" + a.namespace + "/expand-vm-spec"
		out, err := output(manifest, "kubectl", append([]string{"replace", "--raw", path, "-f", "-"}, as...)...)
		return strings.ReplaceAll(fmt.Sprint(out, err), claim, "CLAIM")
	}
	// Who may read the claim is told of an instancetype with the label's name.
	if told := ask("there"); !strings.Contains(told, "closed-secret") {
		a.t.Errorf("an administrator is told: %s", told)
	}
	there, missing := ask("there", a.as), ask("missing", a.as)
	if there != missing || !strings.Contains(there, "is not found") || strings.Contains(there, "closed-secret") {
		a.t.Errorf("of a claim that is there: %s\nof one that is not: %s", there, missing)
	}
}

// forwardedPort: a node that was taken writes a stranger's address for its guest. virt-api forwards no port there.
func forwardedPort(a attacker, n *neighbour) {
	m := createVM(a.t, a.namespace, "lure", v1.RunStrategyAlways, bootsKernel)
	m.runs("")
	url := serve(a.t, n.namespace, "web", 0)
	address, port, _ := strings.Cut(strings.TrimPrefix(url, "http://"), ":")
	node := m.get().Status.NodeName
	handler := ""
	for _, pod := range get[corev1.PodList](a.t, "-n", "kubevirt", "pods", "-l", "kubevirt.io=virt-handler").Items {
		if pod.Spec.NodeName == node {
			handler = pod.Name
		}
	}
	if handler == "" {
		a.t.Fatalf("node %s has no virt-handler", node)
	}
	worker := newCaller(a.t, token(a.t, "kubevirt", "virt-handler", "--bound-object-kind=Pod", "--bound-object-name="+handler))
	status := "/apis/kubevirt.io/v1/namespaces/" + a.namespace + "/virtualmachineinstances/lure/status"
	patch := fmt.Sprintf(`{"status":{"interfaces":[{"name":"default","ipAddress":%q,"ipAddresses":[%[1]q]}]}}`, address)
	// virt-handler writes the right address again, so the lie may be gone before virt-api looks.
	if err := poll(func() error {
		if code, answer := worker.call(http.MethodPatch, status, patch); code != http.StatusOK {
			return fmt.Errorf("write a stranger's address: %d %s", code, answer)
		}
		conn, _, err := dial(a.t, "", m.path("virtualmachineinstances", "portforward/"+port))
		if err == nil {
			defer conn.Close()
			conn.WriteMessage(websocket.BinaryMessage, []byte("GET / HTTP/1.0\r\n\r\n"))
			conn.SetReadDeadline(time.Now().Add(5 * time.Second))
			if _, message, err := conn.ReadMessage(); err == nil {
				a.t.Errorf("another namespace's pod answers: %q", message)
				return nil
			}
			return errors.New("the guest's own port was asked")
		}
		code, answer := ask(a.t, configOf(a.t, ""), http.MethodGet, m.path("virtualmachineinstances", "portforward/"+port), nil)
		if code == http.StatusOK || !strings.Contains(answer.Message, "launcher pod") {
			return fmt.Errorf("a port of the stranger's address: %d %s, want a refusal that names the launcher pod", code, answer.Message)
		}
		a.t.Logf("a port of the stranger's address: %s", answer.Message)
		return nil
	}); err != nil {
		a.t.Error(err)
	}
}

// reservedKeys: labels and annotations that components and runtimes obey do not reach VMI and pod.
func reservedKeys(a attacker, _ *neighbour) {
	const label = `"kubevirt.io/vm":"keys"`
	plain := manifestOf(a.t, "keys", v1.RunStrategyAlways, bootsKernel)
	manifest := strings.Replace(plain, label,
		`"kubevirt.io/vm":"keys","kubevirt.io/nodeName":"x","kubevirt.io/created-by":"x"},"annotations":{"container.apparmor.security.beta.kubernetes.io/compute":"unconfined","io.kubernetes.cri-o.userns-mode":"auto"`, 1)
	if manifest == plain {
		a.t.Fatalf("the manifest has no %s: %s", label, plain)
	}
	if _, err := a.tries(manifest, "create", "-f", "-"); err != nil {
		a.t.Fatal(err)
	}
	m := vm{vmi{t: a.t, namespace: a.namespace, name: "keys"}}
	m.runs("")
	pod := m.pod()
	for key, value := range pod.Annotations {
		if strings.Contains(key, "apparmor") || strings.Contains(key, "cri-o") {
			a.t.Errorf("the pod has the annotation %s: %s", key, value)
		}
	}
	for key, value := range pod.Labels {
		if value == "x" {
			a.t.Errorf("the pod has the label %s: %s", key, value)
		}
	}
	for key, value := range m.get().Labels {
		if value == "x" {
			a.t.Errorf("the VMI has the label %s: %s", key, value)
		}
	}
}

// migrationsWithoutAnEnd: a tenant may not change a launcher's image. Launchers that stand still while their guests move
// take both places of their node, and hold them no longer than their guests' sizes and the policy allow: a neighbour's guest moves then.
// The test, and no tenant, begins the migrations and stops the launchers.
func migrationsWithoutAnEnd(a attacker, n *neighbour) {
	second := newSecondNode(a.t)
	policy(a.t, a.namespace, "bandwidthPerMigration: 2Mi")
	a.t.Cleanup(func() { output("", "kubectl", "delete", "migrationpolicy", a.namespace) })
	moved, _ := second.starts(n.namespace, "moves", bootsKernel)
	var tenants []vm
	for i := range (*v1.MigrationConfiguration)(nil).Outbound() {
		m, _ := second.starts(a.namespace, fmt.Sprintf("still-%d", i), bootsKernel)
		a.refused("containers of a launcher pod", "", "set", "image", "pod/"+m.pod().Name, "compute=mine:v1")
		m.log().shows("tiny: eth0") // its memory is no longer empty
		tenants = append(tenants, m)
	}
	var still []moving
	for _, m := range tenants {
		s := m.moves(m.name)
		launcher := process(a.t, s.pod(s.state.SourcePod), "virt-launcher")
		a.t.Cleanup(func() { _ = syscall.Kill(launcher, syscall.SIGCONT) })
		if err := syscall.Kill(launcher, syscall.SIGSTOP); err != nil {
			a.t.Fatal(err)
		}
		still = append(still, s)
	}
	stopped := time.Now()
	mine := moved.migrate("moves", nil)
	mine.waits()
	n.starts(a.t)
	mine.ends(v1.MigrationSucceeded)
	took := time.Since(stopped)
	a.t.Logf("a neighbour's guest has moved %s after the launchers were stopped", took)
	if took > placeOfLauncher {
		a.t.Errorf("a neighbour's guest has moved after %s, want %s at most", took, placeOfLauncher)
	}
	for _, s := range still {
		a.t.Logf("a tenant's migration failed because %q", s.migration.ends(v1.MigrationFailed).FailureReason)
	}
	kubectl(a.t, "-n", n.namespace, "delete", "vm", "moves", "--timeout=600s")
}
