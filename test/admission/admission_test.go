package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/api/validation"
	"github.com/kubeqemu/kubeqemu/apiserver/admission"
	"github.com/kubeqemu/kubeqemu/apiserver/serving"
)

func tiny(name string) *v1.VirtualMachineInstance {
	return &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1.VirtualMachineInstanceSpec{
			Domain:  v1.DomainSpec{Memory: &v1.Memory{Guest: ptr.To(resource.MustParse("128Mi"))}},
			Volumes: []v1.Volume{{Name: "root", ContainerDisk: &v1.ContainerDiskSource{Image: "image:v1"}}},
		},
	}
}

// causes are the paths that an answer names.
func causes(err error) []string {
	var status *apierrors.StatusError
	if !errors.As(err, &status) || status.ErrStatus.Details == nil {
		return nil
	}
	var paths []string
	for _, c := range status.ErrStatus.Details.Causes {
		paths = append(paths, c.Field)
	}
	return paths
}

// TestAdmission is one test, for one virt-api: its CA and the cluster's configuration change meanwhile.
func TestAdmission(t *testing.T) {
	s := newTestServer(t)
	// What passes of virt-api's time must lie in the API server's past.
	start := time.Now().Add(-20 * time.Hour)
	s.clock.SetTime(start)
	s.useAgedCA(t, start.Add(-20*24*time.Hour+time.Hour))
	stop := s.serve()
	t.Run("defaults", s.defaults)
	t.Run("unreadable", s.unreadable)
	t.Run("long lists", s.longLists)
	t.Run("refused", s.refused)
	t.Run("pools", s.pools)
	t.Run("presets", s.presets)
	t.Run("instancetypes", s.instancetypes)
	t.Run("taken with warnings", s.takesOthers)
	t.Run("templates with warnings", s.warnsOfTemplates)
	t.Run("KubeVirts of others", s.takesOthersKubeVirt)
	t.Run("exported", s.takesExported)
	t.Run("beside KubeVirt", s.besideKubeVirt)
	t.Run("KubeVirt", s.kubeVirts)
	t.Run("KubeVirt elsewhere", s.kubeVirtElsewhere)
	t.Run("update", s.update)
	t.Run("identity", s.identity)
	t.Run("plugged disks", s.pluggedDisks)
	t.Run("long specs", s.longSpecs)
	t.Run("launcher pods", s.launcherPods)
	t.Run("launcher pods by status", s.launcherPodsStatus)
	t.Run("DataVolumes", s.dataVolumes)
	t.Run("claims of migrations", s.claimsOfMigrations)
	t.Run("own node", s.ownNode)
	t.Run("two nodes", s.twoNodes)
	t.Run("migrations", s.migrations)
	t.Run("migration cancel", s.migrationCancel)
	t.Run("migration policies", s.migrationPolicies)
	t.Run("evictions", s.evictions)
	t.Run("deletions", s.deletions)
	t.Run("newer schema", s.newerSchema)
	t.Run("applied again", s.appliedAgain)
	t.Run("applied again by kubectl", s.appliedByKubectl)
	t.Run("fields without effect", s.fieldsWithoutEffect)
	t.Run("webhooks applied again", s.webhooksApplied)
	t.Run("rotation", func(t *testing.T) { s.rotation(t, start) })
	t.Run("bundle taken away", s.bundleTakenAway)
	t.Run("another CA", s.anotherCA)
	t.Run("down", func(t *testing.T) { s.down(t, stop) })
}

// defaults are filled in when a VMI is created, and only what was missing.
func (s *testServer) defaults(t *testing.T) {
	s.configure(t, v1.KubeVirtConfiguration{CPUModel: "Nehalem"})
	vmi := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(`{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance","metadata":{"name":"defaults","namespace":"default"},
		"spec":{"domain":{"resources":{"requests":{"memory":"1024M"}}},"volumes":[{"name":"root","containerDisk":{"image":"image:v1"}}]}}`), vmi); err != nil {
		t.Fatal(err)
	}
	if err := s.admin.Create(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	got := &v1.VirtualMachineInstance{}
	if err := s.admin.Get(t.Context(), client.ObjectKeyFromObject(vmi), got); err != nil {
		t.Fatal(err)
	}
	d := got.Spec.Domain
	if d.CPU == nil || d.CPU.Model != "Nehalem" || d.CPU.Sockets != 1 || d.Machine.Type != "q35" || len(d.Devices.Disks) != 1 || len(d.Devices.Interfaces) != 1 {
		t.Errorf("defaults: %+v", d)
	}
	if m := d.Resources.Requests["memory"]; m.String() != "1024M" || d.Memory.Guest.String() != "1024M" {
		t.Errorf("memory %s, guest %s", m.String(), d.Memory.Guest)
	}
	if !slices.Equal(got.Finalizers, []string{v1.VMIFinalizer}) {
		t.Errorf("finalizers %v", got.Finalizers)
	}
	if f := d.Firmware; f == nil || f.UUID == "" || f.UUID == string(got.UID) ||
		len(validation.ValidateVirtualMachineInstance(got)) > 0 {
		t.Errorf("firmware %+v, want a UUID that is not the object's", f)
	}
	// A finalizer that is taken away is not put back by the webhook.
	if err := s.as("somebody").Patch(t.Context(), vmi, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))); err != nil || len(vmi.GetFinalizers()) > 0 {
		t.Errorf("finalizers %v after they were taken away: %v", vmi.GetFinalizers(), err)
	}
}

// unreadable objects and unknown fields are the schema's to name.
func (s *testServer) unreadable(t *testing.T) {
	for patch, path := range map[string]string{
		`{"domain":{"memory":{"guest":"128Mi"},"cpu":{"cores":"many"}}}`:                    "spec.domain.cpu.cores",
		`{"domain":{"memory":{"guest":"128Mi"},"devices":{"disks":7}}}`:                     "spec.domain.devices.disks",
		`{"domain":{"memory":{"guest":"128Mi"},"devices":{"disks":[{"name":"a"},"b"]}}}`:    "spec.domain.devices.disks[1]",
		`{"domain":{"memory":{"guest":"128Mi"},"devices":{"colour":"red"}},"hostname":"a"}`: "spec.domain.devices.colour",
		`"none"`: "spec",
		`{}`:     "spec.domain",
	} {
		vmi := &unstructured.Unstructured{}
		if err := json.Unmarshal([]byte(`{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance","metadata":{"name":"unreadable","namespace":"default"},"spec":`+patch+`}`), vmi); err != nil {
			t.Fatal(err)
		}
		err := s.admin.Create(t.Context(), vmi, client.FieldValidation(metav1.FieldValidationStrict))
		if err == nil || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "virt-api") {
			t.Errorf("%s: %v, want the API server's own error that names %s", patch, err, path)
		}
	}
}

// refused is a VMI with everything that is wrong with it, dry run or not.
func (s *testServer) refused(t *testing.T) {
	bad := tiny("bad")
	bad.Spec.Domain.Memory.Guest = ptr.To(resource.MustParse("1"))
	bad.Spec.Domain.Devices.Disks = []v1.Disk{{Name: "none", Disk: &v1.DiskTarget{}}, {Name: "root", Disk: &v1.DiskTarget{Bus: "sata", ReadOnly: true}}}
	bad.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "other", Masquerade: &v1.InterfaceMasquerade{}, MacAddress: "01:00:5e:00:00:01"}}
	bad.Spec.Networks = []v1.Network{{Name: "default", Pod: &v1.PodNetwork{}}}
	want := []string{"spec.domain.memory.guest", "spec.domain.devices.disks[0].name", "spec.domain.devices.disks[1].disk.readonly",
		"spec.domain.devices.interfaces[0].name", "spec.domain.devices.interfaces[0].macAddress", "spec.networks[0].name"}
	generated := bad.DeepCopy()
	generated.Name, generated.GenerateName = "", "bad-"
	for name, create := range map[string]func() error{
		"create":        func() error { return s.admin.Create(t.Context(), bad.DeepCopy()) },
		"dry run":       func() error { return s.admin.Create(t.Context(), bad.DeepCopy(), client.DryRunAll) },
		"generate name": func() error { return s.admin.Create(t.Context(), generated.DeepCopy()) },
	} {
		err := create()
		if !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v, want Invalid", name, err)
		}
		got := causes(err)
		for _, path := range want {
			if !slices.Contains(got, path) {
				t.Errorf("%s: %v names %v, want %s in it", name, err, got, path)
			}
		}
	}
	// The API server does not ask virt-api about our own controllers' objects. The controllers refuse
	// bad ones themselves.
	for _, account := range []string{controllerAccount, handlerAccount} {
		if err := s.as(account).Create(t.Context(), bad.DeepCopy(), client.DryRunAll); err != nil {
			t.Errorf("by %s: %v", account, err)
		}
	}
	s.configure(t, v1.KubeVirtConfiguration{CPUModel: "SandyBridge",
		NetworkConfiguration: &v1.NetworkConfiguration{NetworkInterface: "masquerade", PermitBridgeInterfaceOnPodNetwork: ptr.To(false)}})
	defer s.configure(t, v1.KubeVirtConfiguration{})
	bridge := tiny("bridge")
	bridge.Spec.Networks = []v1.Network{{Name: "default", Pod: &v1.PodNetwork{}}}
	bridge.Spec.Domain.Devices.Interfaces = []v1.Interface{{Name: "default", Bridge: &v1.InterfaceBridge{}}}
	if err := s.admin.Create(t.Context(), bridge); !slices.Contains(causes(err), "spec.domain.devices.interfaces[0].bridge") {
		t.Errorf("a bridge where none is permitted: %v", err)
	}
}

// pools are asked about when they are new or have another template.
func (s *testServer) pools(t *testing.T) {
	text, err := os.ReadFile("../../config/samples/vmpool-tiny.yaml")
	if err != nil {
		t.Fatal(err)
	}
	pool := func(name, memory string) *unstructured.Unstructured {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(strings.Replace(string(text), "128Mi", memory, 1)), &object.Object); err != nil {
			t.Fatal(err)
		}
		object.SetNamespace("default")
		object.SetName(name)
		return object
	}
	const memory = "spec.virtualMachineTemplate.spec.template.spec.domain.memory.guest"
	if err := s.admin.Create(t.Context(), pool("bad", "1")); !apierrors.IsInvalid(err) || !slices.Contains(causes(err), memory) {
		t.Errorf("a bad pool: %v", err)
	}
	good := pool("good", "128Mi")
	if err := s.admin.Create(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	patch := func(patch string) error {
		return s.admin.Patch(t.Context(), good.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)))
	}
	if err := patch(`{"spec":{"replicas":5,"maxUnavailable":"20%"}}`); err != nil {
		t.Error(err)
	}
	if err := patch(`{"spec":{"virtualMachineTemplate":{"spec":{"template":{"spec":{"domain":{"memory":{"guest":"1"}}}}}}}}`); !slices.Contains(causes(err), memory) {
		t.Errorf("a bad template: %v", err)
	}
}

func (s *testServer) kubeVirts(t *testing.T) {
	make := func(namespace, name string) *v1.KubeVirt {
		return &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	if err := s.admin.Create(t.Context(), make("kubevirt", "second")); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `there is "kubevirt"`) {
		t.Errorf("a second one: %v", err)
	}
	if err := s.admin.Create(t.Context(), make("default", "kubevirt")); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `in the namespace "kubevirt"`) {
		t.Errorf("a second one in another namespace: %v", err)
	}
	s.configure(t, v1.KubeVirtConfiguration{CPUModel: "Nehalem"}) // the first can be changed
}

// kubeVirtElsewhere: a KubeVirt in another namespace than the components' is in force if it is the
// only one, and all rights in its namespace are not enough to make or change it.
func (s *testServer) kubeVirtElsewhere(t *testing.T) {
	inPlace := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: v1.KubeVirtNamespace, Name: "kubevirt"}}
	if err := s.admin.Delete(t.Context(), inPlace); err != nil {
		t.Fatal(err)
	}
	defer s.configure(t, v1.KubeVirtConfiguration{})
	const tenant = "tenant"
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: tenant}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"*"}}}}
	binding := &rbacv1.RoleBinding{ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: tenant},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: tenant}}}
	for _, o := range []client.Object{role, binding} {
		if err := s.admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	config := rest.CopyConfig(s.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: tenant, Groups: []string{"system:authenticated"}}
	user := s.client(config)
	elsewhere := func() *v1.KubeVirt {
		kv := &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubevirt"}}
		kv.Spec.Configuration.CPUModel = "SandyBridge"
		return kv
	}
	const why = "configures the whole cluster"
	s.poll("a tenant is refused, by the policy", func() error {
		if err := user.Create(t.Context(), elsewhere(), client.DryRunAll); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), why) {
			return fmt.Errorf("%v, want %q", err, why)
		}
		return nil
	})
	kv := elsewhere()
	if err := s.admin.Create(t.Context(), kv); err != nil {
		t.Fatal(err)
	}
	s.poll("it is in force", func() error {
		vmi := tiny("elsewhere")
		if err := s.admin.Create(t.Context(), vmi, client.DryRunAll); err != nil {
			return err
		}
		if got := vmi.Spec.Domain.CPU.Model; got != "SandyBridge" {
			return fmt.Errorf("the CPU model is %s", got)
		}
		return nil
	})
	change := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"configuration":{"hostDisk":{"folders":["/vms"]}}}}`))
	if err := user.Patch(t.Context(), kv.DeepCopy(), change); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), why) {
		t.Errorf("a tenant's change: %v, want %q", err, why)
	}
	if err := s.admin.Delete(t.Context(), kv); err != nil {
		t.Fatal(err)
	}
}

// update: the spec and some labels are our controllers'.
func (s *testServer) update(t *testing.T) {
	user, controller := s.as("somebody"), s.as(controllerAccount)
	vmi := tiny("update")
	if err := user.Create(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	patch := func(c client.Client, body string) error {
		return c.Patch(t.Context(), vmi.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(body)))
	}
	for body, says := range map[string]string{
		`{"spec":{"hostname":"renamed"}}`:                        "update of VMI object is restricted: change the template of its VirtualMachine, and restart that",
		`{"metadata":{"labels":{"kubevirt.io/nodeName":"x"}}}`:   "modification of the following reserved kubevirt.io/ labels on a VMI object is prohibited: kubevirt.io/nodeName",
		`{"metadata":{"labels":{"kubevirt.io/created-by":"x"}}}`: "kubevirt.io/created-by",
		`{"metadata":{"labels":{"kubevirt.io/other":"x"}}}`:      "",
		`{"metadata":{"annotations":{"a":"b"}}}`:                 "",
	} {
		if err := patch(user, body); (err == nil) != (says == "") || err != nil && !(apierrors.IsInvalid(err) && strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v, want %q", body, err, says)
		}
	}
	labelled := tiny("labelled")
	labelled.Labels = map[string]string{"kubevirt.io/schedulable": "true"}
	if err := user.Create(t.Context(), labelled); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "creation of the following reserved") {
		t.Errorf("a new one with a reserved label: %v", err)
	}
	for _, body := range []string{`{"spec":{"hostname":"renamed"}}`, `{"metadata":{"labels":{"kubevirt.io/nodeName":"x"}}}`} {
		if err := patch(controller, body); err != nil {
			t.Errorf("virt-controller: %s: %v", body, err)
		}
	}
	phase := client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Pending"}}`))
	if err := controller.Status().Patch(t.Context(), vmi.DeepCopy(), phase); err != nil {
		t.Fatal(err)
	}
	// A label that stays as it is is nobody's matter, one that goes is.
	if err := patch(user, `{"metadata":{"labels":{"more":"x"}}}`); err != nil {
		t.Error(err)
	}
	if err := patch(user, `{"metadata":{"labels":{"kubevirt.io/nodeName":null}}}`); !apierrors.IsInvalid(err) {
		t.Errorf("a reserved label taken away: %v", err)
	}
	// Nor while it is being deleted. That it is let go is not held up.
	if err := patch(controller, `{"metadata":{"finalizers":["`+v1.VMIFinalizer+`"]}}`); err != nil {
		t.Fatal(err)
	}
	if err := user.Delete(t.Context(), vmi.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	for body, says := range map[string]string{
		`{"spec":{"hostname":"again"}}`:                         "update of VMI object is restricted",
		`{"metadata":{"labels":{"kubevirt.io/nodeName":"y"}}}`:  "reserved kubevirt.io/ labels",
		`{"metadata":{"labels":{"kubevirt.io/nodeName":null}}}`: "reserved kubevirt.io/ labels",
		`{"metadata":{"labels":{"kubevirt.io/other":"y"}}}`:     "",
	} {
		if err := patch(user, body); (err == nil) != (says == "") || err != nil && !(apierrors.IsInvalid(err) && strings.Contains(err.Error(), says)) {
			t.Errorf("%s, while it is being deleted: %v, want %q", body, err, says)
		}
	}
	if err := patch(user, `{"metadata":{"finalizers":null}}`); err != nil {
		t.Error(err)
	}
	if err := s.admin.Get(t.Context(), client.ObjectKeyFromObject(vmi), vmi); !apierrors.IsNotFound(err) {
		t.Errorf("it is there: %v", err)
	}
}

// appliedAgain: a manifest that leaves something empty is applied twice, as GitOps
// tools do, and virt-controller has not written the firmware's UUID between the
// two (here there is no virt-controller). What is left out stays as it was, also
// where it would be another by now.
func (s *testServer) appliedAgain(t *testing.T) {
	s.configure(t, v1.KubeVirtConfiguration{CPUModel: "Nehalem"})
	defer s.configure(t, v1.KubeVirtConfiguration{})
	manifest := func(name, firmware string) string {
		return fmt.Sprintf(`{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance","metadata":{"name":"%s","namespace":"default"},
			"spec":{"domain":{"machine":{"type":""},"cpu":{"model":""},"memory":{"guest":"128Mi"}%s},"volumes":[{"name":"root","containerDisk":{"image":"image:v1"}}]}}`, name, firmware)
	}
	apply := func(name, firmware string) error {
		vmi := &unstructured.Unstructured{}
		vmi.SetAPIVersion("kubevirt.io/v1")
		vmi.SetKind("VirtualMachineInstance")
		vmi.SetNamespace("default")
		vmi.SetName(name)
		return s.as("somebody").Patch(t.Context(), vmi, client.RawPatch(types.ApplyPatchType, []byte(manifest(name, firmware))), client.FieldOwner("gitops"), client.ForceOwnership)
	}
	const uuid = `,"firmware":{"uuid":"5d307ca9-b3ef-428c-8861-06e72d69f223"}`
	cases := map[string]string{"again": "", "again-firmware": `,"firmware":{}`, "again-no-uuid": `,"firmware":{"uuid":""}`, "again-serial": `,"firmware":{"serial":"x"}`, "again-uuid": uuid}
	for name, firmware := range cases {
		for _, when := range []string{"first", "once more"} {
			if err := apply(name, firmware); err != nil {
				t.Errorf("%s, applied %s: %v", name, when, err)
			}
		}
	}
	if err := apply("again", uuid); err == nil || !strings.Contains(err.Error(), "update of VMI object is restricted") {
		t.Errorf("a UUID before virt-controller has written one: %v", err)
	}
	s.configure(t, v1.KubeVirtConfiguration{CPUModel: "SandyBridge"})
	for name, firmware := range cases {
		if err := apply(name, firmware); err != nil {
			t.Errorf("%s, applied when the cluster has other defaults: %v", name, err)
		}
		vmi := &v1.VirtualMachineInstance{}
		if err := s.admin.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: name}, vmi); err != nil {
			t.Fatal(err)
		}
		if model := vmi.Spec.Domain.CPU.Model; model != "Nehalem" {
			t.Errorf("%s has the CPU model %s", name, model)
		}
	}
}

// load creates VMIs without pause until stop is called, and returns how many
// were created and what failed.
func (s *testServer) load(t *testing.T) (stop func() (int, error)) {
	ctx, cancel := context.WithCancel(context.Background())
	var created atomic.Int64
	failed := make(chan error, 1)
	go func() {
		defer close(failed)
		for i := 0; ctx.Err() == nil; i++ {
			if err := s.admin.Create(context.Background(), tiny(fmt.Sprintf("load-%d", i)), client.DryRunAll); err != nil {
				failed <- err
				return
			}
			created.Add(1)
		}
	}()
	stop = func() (int, error) {
		cancel()
		return int(created.Load()), <-failed
	}
	t.Cleanup(func() { cancel() })
	return stop
}

// rotation: the CA is replaced, signs an hour later, and the certificate is
// renewed, while VMIs are created: none fails.
func (s *testServer) rotation(t *testing.T, start time.Time) {
	bundle := func() int {
		config := &admissionregistrationv1.ValidatingWebhookConfiguration{}
		if err := s.admin.Get(t.Context(), types.NamespacedName{Name: serving.WebhooksName}, config); err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(config.Webhooks[0].ClientConfig.CABundle), "BEGIN CERTIFICATE")
	}
	stop := s.load(t)
	first := s.peer(t)
	if n := bundle(); n != 1 || first.Issuer.CommonName != agedCA {
		t.Fatalf("at first, %d CAs, and a certificate of %s", n, first.Issuer.CommonName)
	}

	s.wake(t, start.Add(2*time.Hour))
	s.poll("the API server is told of a new CA", func() error {
		if n := bundle(); n != 2 {
			return fmt.Errorf("it knows %d", n)
		}
		return nil
	})
	time.Sleep(time.Second)
	if c := s.peer(t); !c.Equal(first) {
		t.Errorf("a CA that is new signs at once: %s", c.Issuer.CommonName)
	}

	s.wake(t, start.Add(3*time.Hour+10*time.Minute))
	s.poll("the new CA signs", func() error {
		if c := s.peer(t); c.Issuer.CommonName == agedCA {
			return errors.New("it is still the old one")
		}
		return nil
	})
	second := s.peer(t)

	s.wake(t, start.Add(19*time.Hour+30*time.Minute))
	s.poll("the certificate is renewed", func() error {
		if c := s.peer(t); c.Equal(second) {
			return errors.New("it is still the old one")
		}
		return nil
	})
	time.Sleep(time.Second)
	created, err := stop()
	if err != nil {
		t.Errorf("after %d creates: %v", created, err)
	}
	if created < 5 { // a machine that has much to do makes few
		t.Errorf("%d creates: the test checks nothing", created)
	}
	t.Logf("%d creates", created)
}

// bundleTakenAway: whoever applies the webhooks without caBundle gets it back.
func (s *testServer) bundleTakenAway(t *testing.T) {
	config := &admissionregistrationv1.MutatingWebhookConfiguration{}
	key := types.NamespacedName{Name: serving.WebhooksName}
	if err := s.admin.Get(t.Context(), key, config); err != nil {
		t.Fatal(err)
	}
	config.Webhooks[0].ClientConfig.CABundle = nil
	if err := s.admin.Update(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	s.poll("the bundle comes back", func() error {
		if err := s.admin.Get(t.Context(), key, config); err != nil {
			return err
		}
		if len(config.Webhooks[0].ClientConfig.CABundle) == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	// The API server hears of its own objects by a watch.
	s.poll("the API server goes by it", func() error { return s.admin.Create(t.Context(), tiny("asked"), client.DryRunAll) })
}

// down: without virt-api what is there goes on.
func (s *testServer) down(t *testing.T, stop func()) {
	controller, handler := s.as(controllerAccount), s.onNode(handlerAccount, "n1")
	vmi := tiny("down")
	if err := s.admin.Create(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	_, launcher := s.launched(t, "launched", v1.EvictionStrategyNone)
	tenant, plain := s.evictor(t, "waiting"), s.plainPod(t, "evicted")
	stop()
	if err := evict(t, tenant, launcher); err == nil || !strings.Contains(err.Error(), "evictions.kubevirt.io") || strings.Contains(err.Error(), admission.EvictionPath.Path+"/") {
		t.Errorf("the eviction of a launcher: %v, want an error that names the webhook and no secret", err)
	}
	if err := s.admin.Create(t.Context(), tiny("refused")); err == nil || !strings.Contains(err.Error(), "virtualmachineinstances-mutator.kubevirt.io") {
		t.Errorf("a new VMI: %v, want an error that names the webhook", err)
	}
	// Nobody else is concerned.
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pod"}, Spec: corev1.PodSpec{
		AutomountServiceAccountToken: ptr.To(false), Containers: []corev1.Container{{Name: "c", Image: "image"}}}}
	// That of virt-controller is made: VirtualMachines come back.
	made := tiny("made")
	updated := vmi.DeepCopy()
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"the eviction of another pod", func() error { return evict(t, tenant, plain) }},
		{"a pod", func() error { return s.admin.Create(t.Context(), pod) }},
		{"a VMI of virt-controller's", func() error { return controller.Create(t.Context(), made) }},
		{"a KubeVirt", func() error {
			return s.admin.Create(t.Context(), &v1.KubeVirt{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x"}})
		}},
		{"defaults and finalizer", func() error {
			controllerutil.AddFinalizer(updated, v1.VMIFinalizer)
			updated.Spec.Hostname = "defaulted"
			return controller.Update(t.Context(), updated)
		}},
		{"status by virt-controller", func() error {
			updated.Status.Phase, updated.Status.NodeName = v1.Scheduled, "n1"
			return controller.Status().Update(t.Context(), updated)
		}},
		{"status by virt-handler", func() error { updated.Status.Phase = v1.Running; return handler.Status().Update(t.Context(), updated) }},
		{"a user's label", func() error {
			updated.Labels = map[string]string{"a": "b"}
			return s.admin.Update(t.Context(), updated)
		}},
		{"deletion", func() error { return s.admin.Delete(t.Context(), updated) }},
		{"status while it is being deleted", func() error {
			if err := s.admin.Get(t.Context(), client.ObjectKeyFromObject(updated), updated); err != nil {
				return err
			}
			updated.Status.Phase = v1.Succeeded
			return controller.Status().Update(t.Context(), updated)
		}},
		{"the finalizer's removal by a user", func() error { updated.Finalizers = nil; return s.admin.Update(t.Context(), updated) }},
		{"that it is gone", func() error {
			if err := s.admin.Get(t.Context(), client.ObjectKeyFromObject(updated), updated); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it is there: %w", err)
			}
			return nil
		}},
	} {
		if err := step.do(); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
	}
}
