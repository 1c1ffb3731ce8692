package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// dataVolumes are CDI's kinds, as far as they are looked at; nothing of CDI runs.
const dataVolumes = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: datasources.cdi.kubevirt.io}
spec:
  group: cdi.kubevirt.io
  scope: Namespaced
  names: {plural: datasources, singular: datasource, kind: DataSource, listKind: DataSourceList}
  versions:
  - name: v1beta1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: datavolumes.cdi.kubevirt.io}
spec:
  group: cdi.kubevirt.io
  scope: Namespaced
  names: {plural: datavolumes, singular: datavolume, kind: DataVolume, listKind: DataVolumeList}
  versions:
  - name: v1beta1
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// TestDataVolume: a VM whose disk CDI fills waits for the claim, then for its
// content, and says so.
func TestDataVolume(t *testing.T) {
	t.Parallel()
	apply(t, "", dataVolumes)
	t.Cleanup(func() {
		if _, err := output(dataVolumes, "kubectl", "delete", "--wait=false", "-f", "-"); err != nil {
			t.Error(err)
		}
	})
	kubectl(t, "wait", "--for=condition=established", "--timeout=30s", "crd/datavolumes.cdi.kubevirt.io", "crd/datasources.cdi.kubevirt.io")
	c := claims{t, namespace(t)}
	m := createVM(t, c.namespace, "filled", v1.RunStrategyAlways, offline, func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Devices.Disks = append(s.Domain.Devices.Disks, v1.Disk{Name: "data", Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}})
		s.Volumes = append(s.Volumes, v1.Volume{Name: "data", DataVolume: &v1.DataVolumeSource{Name: "data"}})
	})
	m.is(v1.VirtualMachineStatusPvcNotFound)

	apply(t, c.namespace, "apiVersion: cdi.kubevirt.io/v1beta1\nkind: DataVolume\nmetadata: {name: data}\nspec: {sourceRef: {kind: DataSource, name: golden}}\n")
	inferredFrom(t, c.namespace)
	path := c.nodeFolder("data")
	if _, err := onNode(`mkdir -p "$1"`, path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { onNode(`rm -rf --one-file-system "$1"`, path) })
	c.volume("data", "Filesystem", "100Mi", path)
	uid := kubectl(t, "-n", c.namespace, "get", "datavolume", "data", "-o", "jsonpath={.metadata.uid}")
	apply(t, c.namespace, fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: data
  ownerReferences: [{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, name: data, uid: %s, controller: true}]
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: e2e-local
  resources: {requests: {storage: 100Mi}}
`, uid))
	m.is(v1.VirtualMachineStatusProvisioning)
	becomes := func(status string) {
		kubectl(t, "-n", c.namespace, "patch", "datavolume", "data", "--subresource=status", "--type=merge", "--patch", `{"status":`+status+`}`)
	}
	becomes(`{"phase":"ImportInProgress","progress":"42.0%"}`)
	m.awaitCondition(v1.ConditionProvisioning, "DataVolume data is ImportInProgress, 42.0%")
	becomes(`{"phase":"Failed"}`)
	m.is(v1.VirtualMachineStatusDataVolumeError)
	if pods := kubectl(t, "-n", c.namespace, "get", "pods", "-o", "name"); pods != "" {
		t.Errorf("while its disk is not filled the VM has %s", pods)
	}
	becomes(`{"phase":"Succeeded","progress":"100.0%"}`)
	start := time.Now()
	m.runs("")
	t.Logf("it runs %.0f s after its disk was filled", time.Since(start).Seconds())
	if got := m.in(m.shell(), "blockdev --getsize64 /dev/vdb"); got != fmt.Sprint(94<<20) {
		t.Errorf("the guest's disk has %s bytes", got)
	}
}

// inferredFrom: a DataSource's label names the preference of a VM on the DataVolume "data", both
// where the VM is shown and where it is started.
func inferredFrom(t *testing.T, namespace string) {
	t.Helper()
	apply(t, namespace, `apiVersion: instancetype.kubevirt.io/v1beta1
kind: VirtualMachinePreference
metadata: {name: patient}
spec: {annotations: {e2e: inferred}}
---
apiVersion: cdi.kubevirt.io/v1beta1
kind: DataSource
metadata:
  name: golden
  labels: {instancetype.kubevirt.io/default-preference: patient, instancetype.kubevirt.io/default-preference-kind: VirtualMachinePreference}
spec: {source: {pvc: {name: golden}}}
`)
	manifest := manifestOf(t, "inferred", v1.RunStrategyHalted, offline, func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Devices.Disks = append(s.Domain.Devices.Disks, v1.Disk{Name: "data", Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}})
		s.Volumes = append(s.Volumes, v1.Volume{Name: "data", DataVolume: &v1.DataVolumeSource{Name: "data"}})
	})
	const strategy = `"runStrategy":"Halted"`
	if !strings.Contains(manifest, strategy) {
		t.Fatalf("the manifest has no %s", strategy)
	}
	apply(t, namespace, strings.Replace(manifest, strategy, strategy+`,"preference":{"inferFromVolume":"data"}`, 1))
	m := vm{vmi{t: t, namespace: namespace, name: "inferred"}}
	if shown := kubectl(t, "get", "--raw", m.path("virtualmachines", "expand-spec")); !strings.Contains(shown, `"e2e":"inferred"`) {
		t.Errorf("expand-spec shows %s", shown)
	}
	m.patch(`{"spec":{"runStrategy":"Always"}}`)
	if err := poll(30*time.Second, func() error {
		made, err := m.instance()
		if ref := m.machine().Status.PreferenceRef; err == nil && (ref == nil || ref.Name != "patient" || made.Annotations["e2e"] != "inferred") {
			err = fmt.Errorf("the preference is %+v, the VMI's annotations are %v", ref, made.Annotations)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	kubectl(t, "-n", namespace, "delete", "vm", "inferred", "--timeout=60s")
}
