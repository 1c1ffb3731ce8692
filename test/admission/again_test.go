package admission

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/apiserver/serving"
	"github.com/kubeqemu/kubeqemu/controllers/kubevirt"
	testserver "github.com/kubeqemu/kubeqemu/test/apiserver"
)

// plainGuest is of the shape of KubeVirt's examples of plain VMIs: it has no interface, and an empty machine type.
const plainGuest = `
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {name: %s, labels: {special: plain}}
spec:
  domain:
    devices:
      disks:
      - {name: containerdisk, disk: {bus: virtio}}
    machine: {type: ""}
    resources: {requests: {memory: 128Mi}}
  terminationGracePeriodSeconds: 0
  volumes:
  - {name: containerdisk, containerDisk: {image: "image:v1"}}
`

// appliedByKubectl: a VMI that kubectl applies once more does not change, neither at once nor when virt-controller and
// virt-handler have written into it.
func (s *testServer) appliedByKubectl(t *testing.T) {
	controller := s.as(controllerAccount)
	r := s.instances(controller)
	for name, how := range map[string][]string{"server-side": {"--server-side"}, "client-side": nil} {
		manifest := fmt.Sprintf(plainGuest, name)
		apply := slices.Concat([]string{"apply", "-f", "-"}, how)
		if _, err := s.plane.Try(manifest, apply...); err != nil {
			t.Fatal(err)
		}
		again := func(when string) {
			t.Helper()
			if _, err := s.plane.Try(manifest, apply...); err != nil {
				t.Errorf("%s, applied once more %s: %v", name, when, err)
			}
			if diff, err := s.plane.Try(manifest, slices.Concat([]string{"diff", "-f", "-"}, how)...); err != nil {
				t.Errorf("%s, applied once more %s, it would change: %v\n%s", name, when, err, diff)
			}
		}
		again("at once")
		of := &v1.VirtualMachineInstance{}
		s.poll("virt-controller has a pod for it", func() error {
			key := types.NamespacedName{Namespace: "default", Name: name}
			_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
			if err := errors.Join(err, s.admin.Get(t.Context(), key, of)); err != nil {
				return err
			}
			if of.Spec.Domain.Firmware == nil || of.Spec.Domain.Firmware.UUID == "" || of.Status.Phase == "" {
				return fmt.Errorf("it has the firmware %+v and the phase %q", of.Spec.Domain.Firmware, of.Status.Phase)
			}
			return nil
		})
		of.Status.SetPhase(v1.Running, metav1.Now())
		of.Status.NodeName = "n1"
		if err := controller.Status().Update(t.Context(), of); err != nil {
			t.Fatal(err)
		}
		again("when it runs")
	}
}

// bundles are the CAs that the webhooks are told of.
func (s *testServer) bundles(t *testing.T) string {
	t.Helper()
	var all []string
	key := types.NamespacedName{Name: serving.WebhooksName}
	mutating := &admissionregistrationv1.MutatingWebhookConfiguration{}
	validating := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := errors.Join(s.admin.Get(t.Context(), key, mutating), s.admin.Get(t.Context(), key, validating)); err != nil {
		t.Fatal(err)
	}
	for _, w := range mutating.Webhooks {
		all = append(all, string(w.ClientConfig.CABundle))
	}
	for _, w := range validating.Webhooks {
		all = append(all, string(w.ClientConfig.CABundle))
	}
	return strings.Join(all, "\n")
}

// webhooksApplied: applying the installation once more keeps the CA that the webhooks were told of, whichever way.
func (s *testServer) webhooksApplied(t *testing.T) {
	before := s.bundles(t)
	if strings.Count(before, "BEGIN CERTIFICATE") < 3 {
		t.Fatalf("the webhooks have the bundles %s", before)
	}
	objects, err := testserver.Read(webhooks)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, o := range reached(objects) {
		manifest, err := yaml.Marshal(o.Object) // kubectl 1.31 reads one object of JSON only
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&text, "---\n%s", manifest)
	}
	for _, args := range [][]string{{"apply"}, {"apply", "--server-side", "--force-conflicts"}, {"apply"}} {
		if _, err := s.plane.Try(text.String(), append(args, "-f", "-")...); err != nil {
			t.Fatal(err)
		}
		if after := s.bundles(t); after != before {
			t.Errorf("%s changed the bundles to %s", args, after)
		}
		if err := s.admin.Create(t.Context(), tiny("dry"), client.DryRunAll); err != nil {
			t.Error(err)
		}
	}
}

// anotherCA: who empties the Secret has a new CA, and VMIs are created again at once.
func (s *testServer) anotherCA(t *testing.T) {
	before := s.bundles(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: v1.KubeVirtNamespace, Name: serving.SecretName}}
	empty := client.RawPatch(types.JSONPatchType, []byte(`[{"op":"remove","path":"/data"}]`))
	if err := s.admin.Patch(t.Context(), secret, empty); err != nil {
		t.Fatal(err)
	}
	s.poll("a new CA", func() error {
		if s.bundles(t) == before {
			return errors.New("the webhooks have the old CA")
		}
		return s.admin.Create(t.Context(), tiny("dry"), client.DryRunAll)
	})
}

// fieldsWithoutEffect: a field that changes nothing is accepted, kept and named.
func (s *testServer) fieldsWithoutEffect(t *testing.T) {
	defer s.configure(t, v1.KubeVirtConfiguration{})
	key := types.NamespacedName{Namespace: v1.KubeVirtNamespace, Name: "kubevirt"}
	r := &kubevirt.Reconciler{Client: s.as(controllerAccount), Clock: clock.RealClock{}}
	condition := func() (c v1.KubeVirtCondition) {
		t.Helper()
		kv := &v1.KubeVirt{}
		_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
		if err := errors.Join(err, s.admin.Get(t.Context(), key, kv)); err != nil {
			t.Fatal(err)
		}
		for _, of := range kv.Status.Conditions {
			if of.Type == v1.KubeVirtConditionFieldsWithoutEffect {
				c = of
			}
		}
		return c
	}
	s.configure(t, v1.KubeVirtConfiguration{})
	if c := condition(); c.Status != corev1.ConditionFalse {
		t.Errorf("condition %+v", c)
	}
	s.plane.MustApply(`
apiVersion: kubevirt.io/v1
kind: KubeVirt
metadata: {name: kubevirt, namespace: kubevirt}
spec:
  configuration:
    permittedHostDevices: {pciHostDevices: [{pciVendorSelector: "10DE:1EB8", resourceName: example.com/gpu}]}
    migrations: {parallelMigrationsPerCluster: 5, disableTLS: true}
`)
	c := condition()
	for _, word := range []string{"spec.configuration.permittedHostDevices: ", "spec.configuration.migrations.disableTLS: "} {
		if c.Status != corev1.ConditionTrue || !strings.Contains(c.Message, word) {
			t.Errorf("condition %+v, want True and %q", c, word)
		}
	}
	const gpu = "{.spec.configuration.permittedHostDevices.pciHostDevices[0].resourceName}"
	if kept := s.plane.Kubectl("-n", "kubevirt", "get", "kubevirt", "kubevirt", "-o", "jsonpath="+gpu); kept != "example.com/gpu" {
		t.Errorf("kept is %q", kept)
	}
}
