package admission

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// sizes are what VMs name, claims whose labels name that or nothing, and the rights of a user who makes VMs and reads nothing else.
const sizes = `
{apiVersion: instancetype.kubevirt.io/v1beta1, kind: VirtualMachineInstancetype, metadata: {name: two, namespace: default}, spec: {cpu: {guest: 2}, memory: {guest: 1Gi}}}
---
{apiVersion: instancetype.kubevirt.io/v1beta1, kind: VirtualMachineInstancetype, metadata: {name: none, namespace: default}, spec: {cpu: {guest: 0}, memory: {guest: "0"}}}
---
{apiVersion: instancetype.kubevirt.io/v1beta1, kind: VirtualMachinePreference, metadata: {name: four, namespace: default}, spec: {requirements: {cpu: {guest: 4}}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: named, namespace: default, labels: {instancetype.kubevirt.io/default-instancetype: two, instancetype.kubevirt.io/default-instancetype-kind: virtualmachineinstancetype}},
  spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
---
{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: plain, namespace: default}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: maker, namespace: default}, rules: [{apiGroups: [kubevirt.io], resources: [virtualmachines], verbs: [create]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: maker, namespace: default}, subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: maker}],
  roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: maker}}
`

// sizedVM is a VM that names something, with a disk on a claim.
const sizedVM = `
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {name: sized, namespace: default}
spec:
  runStrategy: Halted
  %s
  template: {spec: {domain: {%s}, volumes: [{name: disk, persistentVolumeClaim: {claimName: %s}}]}}
`

// instancetypes: what a VM names is looked at when the VM is applied, with the rights of whoever applies it.
func (s *testServer) instancetypes(t *testing.T) {
	s.plane.MustApply(sizes)
	t.Cleanup(func() { s.plane.Kubectl("delete", "vmf,vmp", "--all", "-n", "default") })
	const two, infers = "instancetype: {name: two, kind: VirtualMachineInstancetype}", "instancetype: {inferFromVolume: disk}"
	machine := func(names, domain, claim string) *unstructured.Unstructured {
		t.Helper()
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(fmt.Appendf(nil, sizedVM, names, domain, claim), &object.Object); err != nil {
			t.Fatal(err)
		}
		return object
	}
	const conflict = `admission webhook "virtualmachine-validator.kubevirt.io" denied the request: VM field(s) spec.template.spec.domain.cpu.sockets conflicts with selected instance type`
	s.poll("virt-api is asked about instancetypes", func() error {
		err := s.admin.Create(t.Context(), machine(two, "cpu: {sockets: 2}", "plain"), client.DryRunAll)
		if err == nil || err.Error() != conflict || !apierrors.IsInvalid(err) || !slices.Equal(causes(err), []string{"spec.template.spec.domain.cpu.sockets"}) {
			return fmt.Errorf("a conflict: %w", err)
		}
		named := machine(infers, "", "named")
		if err := s.admin.Create(t.Context(), named, client.DryRunAll); err != nil {
			return err
		}
		if got := fmt.Sprint(named.Object["spec"].(map[string]any)["instancetype"]); got != "map[kind:virtualmachineinstancetype name:two]" {
			return fmt.Errorf("inferred is %s", got)
		}
		return nil
	})
	maker := s.client(s.plane.As("maker"))
	s.poll("the maker may make VMs", func() error {
		return maker.Create(t.Context(), machine("", "", "plain"), client.DryRunAll)
	})
	for name, c := range map[string]struct {
		by     client.Client
		object *unstructured.Unstructured
		want   string
	}{
		"requirements": {s.admin, machine(two+"\n  preference: {name: four, kind: VirtualMachinePreference}", "", "plain"),
			"failure checking preference requirements: insufficient CPU resources of 2 vCPU provided by instance type, preference requires 4 vCPU"},
		"requirements of a VM's own": {s.admin, machine("preference: {name: four, kind: VirtualMachinePreference}", "cpu: {sockets: 3}", "plain"),
			"failure checking preference requirements: insufficient CPU resources of 3 vCPU provided by VirtualMachine, preference requires 4 vCPU provided as sockets"},
		"no label":                   {s.admin, machine(infers, "", "plain"), `admission webhook "virtualmachines-mutator.kubevirt.io" denied the request: infer instancetype from volume "disk"`},
		"no claim":                   {s.admin, machine(infers, "", "none"), `PersistentVolumeClaim "none" not found`},
		"what is not there":          {s.admin, machine("instancetype: {name: other}", "cpu: {sockets: 2}", "plain"), ""},
		"no memory":                  {s.admin, machine("", "cpu: {sockets: 2}", "plain"), ""},
		"an instancetype of nothing": {s.admin, machine("instancetype: {name: none, kind: virtualmachineinstancetype}", "", "plain"), ""},
		// Who may not read the instancetype or the claim is not told of them.
		"a conflict that the user may not know of": {maker, machine(two, "cpu: {sockets: 2}", "plain"), ""},
		"a label that the user may not know of":    {maker, machine(infers, "", "named"), ""},
	} {
		err := c.by.Create(t.Context(), c.object, client.DryRunAll)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	unknown := machine(infers, "", "named")
	if err := maker.Create(t.Context(), unknown, client.DryRunAll); err != nil || !strings.Contains(fmt.Sprint(unknown.Object["spec"]), "inferFromVolume:disk") {
		t.Errorf("%v, %v", err, unknown.Object["spec"])
	}
	s.inferredAgain(t, fmt.Sprintf(sizedVM, "instancetype: {inferFromVolume: disk, inferFromVolumeFailurePolicy: Ignore}", "memory: {guest: 64Mi}", "named"))
	err := s.admin.Patch(t.Context(), &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "server-side"}}, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"template":{"spec":{"domain":{"memory":{"guest":"1Gi"}}}}}}`)))
	if err == nil || !strings.Contains(err.Error(), "VM field(s) spec.template.spec.domain.memory.guest conflicts with selected instance type") {
		t.Errorf("a template that becomes contradictory: %v", err)
	}
}

// inferredAgain: a manifest whose instancetype a volume names can be applied again, and changes nothing. With another
// volume it is refused.
func (s *testServer) inferredAgain(t *testing.T, manifest string) {
	for name, how := range map[string][]string{"server-side": {"--server-side"}, "client-side": nil} {
		named := strings.Replace(manifest, "{name: sized", "{name: "+name, 1)
		for range 2 {
			if _, err := s.plane.Try(named, slices.Concat([]string{"apply", "-f", "-"}, how)...); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			vm := &v1.VirtualMachine{}
			err := s.admin.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: name}, vm)
			if m := vm.Spec.Instancetype; err != nil || m == nil || *m != (v1.InstancetypeMatcher{Name: "two", Kind: "virtualmachineinstancetype"}) || vm.Spec.Template.Spec.Domain.Memory != nil || vm.Generation != 1 {
				t.Errorf("%s: %v", name, errors.Join(err, fmt.Errorf("instancetype %+v, memory %+v, generation %d", m, vm.Spec.Template.Spec.Domain.Memory, vm.Generation)))
			}
		}
		another := strings.NewReplacer("inferFromVolume: disk", "inferFromVolume: other", "volumes: [", "volumes: [{name: other, persistentVolumeClaim: {claimName: plain}}, ").Replace(named)
		if out, err := s.plane.Try(another, slices.Concat([]string{"apply", "-f", "-"}, how)...); err == nil || !strings.Contains(out+err.Error(), `Name already set, should be cleared before setting inferFromVolume: volume "disk" has named it`) {
			t.Errorf("%s, with another volume: %v %s", name, err, out)
		}
	}
}
