package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestAdmissionRefuses: what the schema cannot know is said when it is applied,
// or would be applied, with the path of each thing that is wrong.
func TestAdmissionRefuses(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	for name, c := range beyondSchema {
		text := string(changed(t, name, c.patch))
		for how, args := range map[string][]string{
			"apply": {"apply"}, "server-side apply": {"apply", "--server-side"}, "create": {"create"}, "dry run": {"apply", "--dry-run=server"},
		} {
			_, err := output(text, "kubectl", append(args, "-n", ns, "-f", "-")...)
			for _, path := range c.paths {
				if err == nil || !strings.Contains(err.Error(), `VirtualMachineInstance "`+name+`" is invalid`) || !strings.Contains(err.Error(), path+":") {
					t.Errorf("%s, %s: %v, want an error that names %s", name, how, err, path)
				}
			}
		}
	}
	if left := kubectl(t, "-n", ns, "get", "vmi", "-o", "name"); left != "" {
		t.Errorf("of what is refused, this is there: %s", left)
	}
	second := `{"apiVersion":"kubevirt.io/v1","kind":"KubeVirt","metadata":{"name":"second","namespace":"%s"},"spec":{}}`
	for namespace, says := range map[string]string{"kubevirt": "already created", ns: `there is "kubevirt" in the namespace "kubevirt"`} {
		if _, err := output(fmt.Sprintf(second, namespace), "kubectl", "apply", "-f", "-"); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("a second KubeVirt in %s: %v, want %q", namespace, err, says)
		}
	}
}

// TestAdmissionDefaults: a VMI has its defaults as soon as it is created, and
// applying it once more changes nothing.
func TestAdmissionDefaults(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	manifest := plainManifest("plain", plainManifests["ephemeral"])
	created, err := output(manifest, "kubectl", "-n", ns, "create", "-f", "-", "-o", "json", "--dry-run=server")
	if err != nil {
		t.Fatal(err)
	}
	var made v1.VirtualMachineInstance
	if err := json.Unmarshal([]byte(created), &made); err != nil {
		t.Fatal(err)
	}
	d := made.Spec.Domain
	if d.CPU == nil || d.CPU.Sockets != 1 || d.Machine == nil || d.Machine.Type != "q35" || len(d.Devices.Interfaces) != 1 || len(made.Spec.Networks) != 1 {
		t.Errorf("as it is created: %s", created)
	}
	for _, way := range []struct {
		name string
		args []string
	}{{"server-side", []string{"--server-side"}}, {"client-side", nil}} {
		manifest := strings.ReplaceAll(manifest, "plain", way.name)
		apply := append([]string{"-n", ns, "apply", "-f", "-"}, way.args...)
		if _, err := output(manifest, "kubectl", apply...); err != nil {
			t.Fatal(err)
		}
		for _, when := range []string{"at once", "when it runs"} {
			if _, err := output(manifest, "kubectl", apply...); err != nil {
				t.Errorf("%s, applied once more %s: %v", way.name, when, err)
			}
			// The controllers may write between the two objects that are compared.
			if err := poll(func() error {
				diff, err := output(manifest, "kubectl", append([]string{"-n", ns, "diff", "-f", "-"}, way.args...)...)
				if err != nil {
					err = fmt.Errorf("%w\n%s", err, diff)
				}
				return err
			}); err != nil {
				t.Errorf("%s, applied once more %s, it would change: %v", way.name, when, err)
			}
			vmi{t, ns, way.name}.await(v1.Running)
		}
	}
}

// TestVMIUpdateRestricted: the spec is nobody's to change but our controllers',
// before it has a phase too, and so are some labels.
func TestVMIUpdateRestricted(t *testing.T) {
	start := stopController(t)
	ns := namespace(t)
	as := tenant(t, ns)
	v := create(t, ns, tiny("guest"))
	for patch, says := range map[string]string{
		`{"spec":{"hostname":"renamed"}}`:                      "update of VMI object is restricted",
		`{"metadata":{"labels":{"kubevirt.io/nodeName":"x"}}}`: "reserved kubevirt.io/ labels on a VMI object is prohibited: kubevirt.io/nodeName",
		`{"metadata":{"labels":{"team":"blue"}}}`:              "",
	} {
		_, err := output("", "kubectl", "-n", ns, "patch", "vmi", v.name, "--type=merge", "--patch", patch, as)
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", patch, err, says)
		}
	}
	start()
	v.await(v1.Running)
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

// TestWithoutAPI: without virt-api, VMIs go on, end and are deleted, the
// controllers' own are made and checked by them, and nobody else notices; what
// is refused is new VMIs of users, which says who does not answer.
func TestWithoutAPI(t *testing.T) {
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
	bad := string(changed(t, "bad", beyondSchema["many"].patch))
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

// TestWebhookCA: applying the installation once more keeps the CA that the
// webhooks were told of, whichever way; and after a restart of virt-api, and
// with a new CA, VMIs are created again at once.
func TestWebhookCA(t *testing.T) {
	ns := namespace(t)
	repository, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	bundles := func() string {
		t.Helper()
		var all []string
		for _, w := range get[admissionregistrationv1.MutatingWebhookConfiguration](t, "mutatingwebhookconfiguration", "virt-api").Webhooks {
			all = append(all, string(w.ClientConfig.CABundle))
		}
		for _, w := range get[admissionregistrationv1.ValidatingWebhookConfiguration](t, "validatingwebhookconfiguration", "virt-api").Webhooks {
			all = append(all, string(w.ClientConfig.CABundle))
		}
		return strings.Join(all, "\n")
	}
	before := bundles()
	if strings.Count(before, "BEGIN CERTIFICATE") < 3 {
		t.Fatalf("the webhooks have the bundles %s", before)
	}
	dryRun := func() error {
		text, err := json.Marshal(tiny("dry"))
		if err == nil {
			_, err = output(string(text), "kubectl", "-n", ns, "create", "--dry-run=server", "-f", "-")
		}
		return err
	}
	for _, args := range [][]string{{"apply"}, {"apply", "--server-side", "--force-conflicts"}, {"apply"}} {
		kubectl(t, append(args, "-f", filepath.Join(repository, "config", "api", "webhooks.yaml"))...)
		if after := bundles(); after != before {
			t.Errorf("%s changed the bundles to %s", args, after)
		}
		if err := dryRun(); err != nil {
			t.Error(err)
		}
	}

	// A restart loses no create: the next one answers before the last one goes.
	stop := make(chan struct{})
	failed := make(chan error, 1)
	go func() {
		created := 0
		for {
			select {
			case <-stop:
				if created < 5 {
					failed <- fmt.Errorf("%d creates: the test checks nothing", created)
				}
				close(failed)
				return
			default:
			}
			if err := dryRun(); err != nil {
				failed <- fmt.Errorf("after %d creates: %w", created, err)
				close(failed)
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

	kubectl(t, "-n", "kubevirt", "patch", "secret", "virt-api-ca", "--type=json", "--patch", `[{"op":"remove","path":"/data"}]`)
	if err := poll(func() error {
		if bundles() == before {
			return errors.New("the webhooks have the old CA")
		}
		return dryRun()
	}); err != nil {
		t.Error(err)
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
