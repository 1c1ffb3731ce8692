package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// changed is a tiny VMI with a JSON merge patch (RFC 7386), written as YAML,
// applied to its spec.
func changed(t *testing.T, name, patch string) []byte {
	t.Helper()
	base, err := json.Marshal(tiny(name))
	if err != nil {
		t.Fatal(err)
	}
	change, err := yaml.YAMLToJSON([]byte("{metadata: {labels: {app: refused}}, spec: {" + patch + "}}"))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	object, err := jsonpatch.MergePatch(base, change)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return object
}

// stopAPI takes virt-api away. The returned function brings it back; the test's
// end does so too.
func stopAPI(t *testing.T) (start func()) {
	t.Helper()
	scale := func(replicas string) error {
		_, err := output("", "kubectl", "-n", "kubevirt", "scale", "deployment/virt-api", "--replicas="+replicas)
		return err
	}
	start = func() {
		err := scale("1")
		if err == nil {
			_, err = output("", "kubectl", "-n", "kubevirt", "rollout", "status", "--timeout=600s", "deployment/virt-api")
		}
		if err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(start)
	if err := scale("0"); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "-n", "kubevirt", "wait", "--for=delete", "pod", "-l", "kubevirt.io=virt-api", "--timeout=600s")
	return start
}

// manyMistakes is a patch of a VMI's spec that the schema lets pass.
const manyMistakes = `domain: {memory: {guest: "1"}, devices: {disks: [{name: none}, {name: root, disk: {bus: sata, readonly: true}}]}}`

// past grants virt-controller, which virt-api is not asked about, to make VMIs
// in a namespace, and returns kubectl's argument for being it.
func past(t *testing.T, namespace string) string {
	t.Helper()
	kubectl(t, "-n", namespace, "create", "role", "past", "--verb=create,get", "--resource=virtualmachineinstances.kubevirt.io")
	kubectl(t, "-n", namespace, "create", "rolebinding", "past", "--role=past", "--serviceaccount=kubevirt:virt-controller")
	may(t, namespace, asController, "create", "virtualmachineinstances.kubevirt.io")
	return asController
}

// TestVMIsGoOnWithoutVirtAPI: without virt-api, VMIs go on, end and are deleted, the
// controllers' own are made and checked by them, and nobody else notices; what
// is refused is new VMIs of users, which says who does not answer.
func TestVMIsGoOnWithoutVirtAPI(t *testing.T) {
	ns := namespace(t)
	stays, deleted, dies := create(t, ns, tiny("stays")), create(t, ns, tiny("deleted", grace(30))), create(t, ns, tiny("dies"))
	for _, v := range []vmi{stays, deleted, dies} {
		v.await(v1.Running)
	}
	as := past(t, ns)
	before := stays.qemu()
	start := stopAPI(t)

	text, err := json.Marshal(tiny("refused"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := output(string(text), "kubectl", "-n", ns, "create", "-f", "-"); err == nil || !strings.Contains(err.Error(), "virtualmachineinstances-mutator.kubevirt.io") {
		t.Errorf("a new VMI: %v, want an error that names the webhook", err)
	}
	kubectl(t, "-n", ns, "label", "vmi", stays.name, "team=blue")
	kubectl(t, "-n", ns, "annotate", "vmi", stays.name, "note=x")
	signal(t, "KILL", dies.qemu())
	if reason := dies.await(v1.Failed).Status.Reason; reason != "QEMUExited" {
		t.Errorf("reason %q, want QEMUExited", reason)
	}
	if took := deleted.delete(); took > 40*time.Second {
		t.Errorf("deletion took %s", took)
	}
	// What our own controllers make is not asked about, and refused by them.
	text, err = json.Marshal(tiny("made"))
	if err != nil {
		t.Fatal(err)
	}
	bad := string(changed(t, "bad", manyMistakes))
	if _, err := output(string(text)+"\n---\n"+bad, "kubectl", "-n", ns, "create", "-f", "-", as); err != nil {
		t.Fatal(err)
	}
	vmi{t, ns, "made"}.await(v1.Running)
	refused := vmi{t, ns, "bad"}
	if reason := refused.await(v1.Failed).Status.Reason; reason != "InvalidSpec" {
		t.Errorf("reason %q, want InvalidSpec", reason)
	}
	// Others' pods and namespaces. The deletion of these Kubernetes itself holds up
	// while an APIService does not answer, for it cannot ask what is in them.
	apply(t, ns, clientManifest)
	kubectl(t, "-n", ns, "wait", "--for=condition=Ready", "pod/client", "--timeout=600s")
	kubectl(t, "-n", ns, "delete", "pod", "client", "--wait=false")
	kubectl(t, "create", "namespace", ns+"-gone")
	apply(t, ns+"-gone", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}}`)
	kubectl(t, "delete", "namespace", ns+"-gone", "--wait=false")
	if now := stays.qemu(); now.PID != before.PID || now.Start != before.Start {
		t.Errorf("QEMU is %d, was %d", now.PID, before.PID)
	}

	start()
	create(t, ns, tiny("later")).await(v1.Running)
	kubectl(t, "wait", "--for=delete", "namespace/"+ns+"-gone", "--timeout=600s")
}

// TestAPIRestarted: a restart of virt-api loses no create: the next one answers, with its certificate, before the last
// one goes.
func TestAPIRestarted(t *testing.T) {
	ns := namespace(t)
	text, err := json.Marshal(tiny("dry"))
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	failed := make(chan error, 1)
	go func() {
		defer close(failed)
		created := 0
		turns := time.NewTicker(200 * time.Millisecond) // more kubectls would leave virt-api, which starts, no CPU
		defer turns.Stop()
		for ; ; <-turns.C {
			select {
			case <-stop:
				if created < 5 {
					failed <- fmt.Errorf("%d creates: the test checks nothing", created)
				}
				return
			default:
			}
			if _, err := output(string(text), "kubectl", "-n", ns, "create", "--dry-run=server", "-f", "-"); err != nil {
				failed <- fmt.Errorf("after %d creates: %w", created, err)
				return
			}
			created++
		}
	}()
	kubectl(t, "-n", "kubevirt", "rollout", "restart", "deployment/virt-api")
	kubectl(t, "-n", "kubevirt", "rollout", "status", "--timeout=600s", "deployment/virt-api")
	kubectl(t, "-n", "kubevirt", "wait", "--for=delete", "pod", "-l", "kubevirt.io=virt-api", "--field-selector=metadata.name!="+apiPod(t), "--timeout=600s")
	close(stop)
	if err := <-failed; err != nil {
		t.Errorf("during a restart: %v", err)
	}
}

// apiPod is the newest pod of virt-api.
func apiPod(t *testing.T) string {
	t.Helper()
	newest := corev1.Pod{}
	for _, pod := range get[corev1.PodList](t, "-n", "kubevirt", "pods", "-l", "kubevirt.io=virt-api").Items {
		if newest.Name == "" || newest.CreationTimestamp.Before(&pod.CreationTimestamp) {
			newest = pod
		}
	}
	return newest.Name
}
