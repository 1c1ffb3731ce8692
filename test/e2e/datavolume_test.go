package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/test/apiserver"
)

// TestDataVolumes first has Kubeqemu fill disks. Then CDI comes: a stand-in of CDI with its kinds
// alone, and the tests say what becomes of DataVolumes. Kubeqemu fills none meanwhile.
func TestDataVolumes(t *testing.T) {
	t.Parallel()
	t.Run("without CDI", func(t *testing.T) {
		t.Run("imported", func(t *testing.T) { t.Parallel(); importedDisks(t) })
		t.Run("copied", func(t *testing.T) { t.Parallel(); copiedDisks(t) })
		t.Run("refused", func(t *testing.T) { t.Parallel(); refusedSources(t) })
		t.Run("uploaded", func(t *testing.T) { t.Parallel(); uploadedDisk(t) })
	})
	const ours = "../../config/datavolumes/crd"
	apply(t, "", apiserver.CDI)
	t.Cleanup(func() {
		if _, err := output("", "kubectl", "apply", "-k", ours); err != nil {
			t.Error(err)
		}
	})
	kubectl(t, "wait", "--for=condition=established", "--timeout=600s", "crd/datavolumes.cdi.kubevirt.io", "crd/datasources.cdi.kubevirt.io")
	t.Run("one", filledByCDI)
	t.Run("templates", dataVolumeTemplates)
	t.Run("first consumer", boundByFirstPod)
}

// becomes says how far a DataVolume is, as CDI would.
func becomes(t *testing.T, namespace, name, status string) {
	t.Helper()
	kubectl(t, "-n", namespace, "patch", "datavolume", name, "--subresource=status", "--type=merge", "--patch", `{"status":`+status+`}`)
}

// claimed makes the claim of a DataVolume, and a volume for it, as CDI and a provisioner would.
func (c claims) claimed(name string) {
	c.t.Helper()
	path := c.nodeFolder(name)
	if _, err := onNode(`mkdir -p "$1"`, path); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { onNode(`rm -rf --one-file-system "$1"`, path) })
	c.volume(name, "Filesystem", "100Mi", path)
	c.ownedClaim(name)
}

// ownedClaim makes the claim of a DataVolume, as CDI would.
func (c claims) ownedClaim(name string) {
	c.t.Helper()
	uid := kubectl(c.t, "-n", c.namespace, "get", "datavolume", name, "-o", "jsonpath={.metadata.uid}")
	apply(c.t, c.namespace, fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: %s
  ownerReferences: [{apiVersion: cdi.kubevirt.io/v1beta1, kind: DataVolume, name: %[1]s, uid: %s, controller: true}]
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: e2e-local
  selector: {matchLabels: {for: %[1]s}}
  resources: {requests: {storage: 100Mi}}
`, name, uid))
}

// says waits until a condition of the VM, which may have no VMI, has words in its message.
func (m vm) says(kind v1.ConditionType, words string) {
	m.t.Helper()
	if err := poll(func() error {
		status := m.machine().Status
		if c := status.Condition(kind); c == nil || !strings.Contains(c.Message, words) {
			return fmt.Errorf("condition %s of VM %s is %+v, want %q in it", kind, m.name, c, words)
		}
		return nil
	}); err != nil {
		m.t.Fatal(err)
	}
}

// dataVolumeTemplates: a VM makes its DataVolumes, says how far they are, starts once all are
// filled, and takes them with it.
func dataVolumeTemplates(t *testing.T) {
	c := claims{t, namespace(t)}
	manifest := manifestOf(t, "templates", v1.RunStrategyAlways, bootsKernel, offline, func(s *v1.VirtualMachineInstanceSpec) {
		for _, name := range []string{"early", "late"} {
			s.Domain.Devices.Disks = append(s.Domain.Devices.Disks, v1.Disk{Name: name, Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}})
			s.Volumes = append(s.Volumes, v1.Volume{Name: name, DataVolume: &v1.DataVolumeSource{Name: name}})
		}
	})
	const strategy = `"runStrategy":"Always"`
	if !strings.Contains(manifest, strategy) {
		t.Fatalf("the manifest has no %s", strategy)
	}
	template := func(name, source string) string {
		return `{"metadata":{"name":"` + name + `","creationTimestamp":null},"spec":{"storage":{"resources":{"requests":{"storage":"100Mi"}}},"source":` + source + `}}`
	}
	apply(t, c.namespace, strings.Replace(manifest, strategy, strategy+`,"dataVolumeTemplates":[`+template("early", `{"blank":{}}`)+","+template("late", `{"pvc":{"namespace":"kube-system","name":"golden"}}`)+"]", 1))
	m := vm{vmi{t: t, namespace: c.namespace, name: "templates"}}
	// The namespace's service account may not clone from kube-system.
	m.says(v1.ConditionFailure, "service account default of namespace "+c.namespace+" may not clone from namespace kube-system")
	kubectl(t, "-n", c.namespace, "patch", "vm", "templates", "--type=json", "--patch", `[{"op":"replace","path":"/spec/dataVolumeTemplates/1","value":`+template("late", `{"http":{"url":"https://example.com/disk"}}`)+`}]`)
	if err := poll(func() error {
		if made := kubectl(t, "-n", c.namespace, "get", "datavolumes", "-o", "jsonpath={.items[*].metadata.name}"); made != "early late" {
			return fmt.Errorf("there are the DataVolumes %q", made)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	m.is(v1.VirtualMachineStatusProvisioning)
	becomes(t, c.namespace, "early", `{"phase":"Succeeded","progress":"100.0%"}`)
	becomes(t, c.namespace, "late", `{"phase":"ImportInProgress","progress":"42.0%"}`)
	m.says(v1.ConditionProvisioning, "DataVolume late is ImportInProgress, 42.0%")
	becomes(t, c.namespace, "late", `{"phase":"ImportScheduled","conditions":[{"type":"Running","status":"False","reason":"Error","message":"no such host"}]}`)
	m.is(v1.VirtualMachineStatusDataVolumeError)
	m.says(v1.ConditionFailure, "no such host")
	if vmis := kubectl(t, "-n", c.namespace, "get", "vmi", "-o", "name"); vmis != "" {
		t.Errorf("while its disks are not filled the VM has %s", vmis)
	}
	c.claimed("early")
	c.claimed("late")
	becomes(t, c.namespace, "late", `{"phase":"Succeeded","progress":"100.0%","conditions":null}`)
	m.runs("")
	for _, disk := range []string{"/dev/vdb", "/dev/vdc"} {
		if got := m.in(m.shell(), "blockdev --getsize64 "+disk); got != fmt.Sprint(94<<20) {
			t.Errorf("the guest's %s has %s bytes", disk, got)
		}
	}
	kubectl(t, "-n", c.namespace, "delete", "vm", "templates", "--timeout=600s")
	if err := poll(func() error {
		if left := kubectl(t, "-n", c.namespace, "get", "datavolumes,pvc", "-o", "name"); left != "" {
			return fmt.Errorf("after the VM there is %s", left)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// boundByFirstPod: on storage that is bound where a claim's first pod runs, CDI waits for such a pod.
// The VMI makes the pod, and starts its guest once the disk is filled.
func boundByFirstPod(t *testing.T) {
	c := claims{t, namespace(t)}
	name := "late-" + c.namespace // no other claim may take its volume
	apply(t, c.namespace, "apiVersion: cdi.kubevirt.io/v1beta1\nkind: DataVolume\nmetadata: {name: "+name+"}\nspec: {source: {blank: {}}}\n")
	path := c.nodeFolder(name)
	if _, err := onNode(`mkdir -p "$1"`, path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { onNode(`rm -rf --one-file-system "$1"`, path) })
	c.volume(name, "Filesystem", "100Mi", path)
	// A volume that names its claim is bound at once.
	kubectl(t, "patch", "persistentvolume", c.namespace+"-"+name, "--type=json", "--patch", `[{"op":"remove","path":"/spec/claimRef"}]`)
	c.ownedClaim(name)
	becomes(t, c.namespace, name, `{"phase":"WaitForFirstConsumer","progress":"N/A"}`)
	m := createVM(t, c.namespace, "late", v1.RunStrategyAlways, bootsKernel, offline, func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Devices.Disks = append(s.Domain.Devices.Disks, v1.Disk{Name: "data", Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}})
		s.Volumes = append(s.Volumes, v1.Volume{Name: "data", DataVolume: &v1.DataVolumeSource{Name: name}})
	})
	kubectl(t, "-n", c.namespace, "wait", "--for=jsonpath={.status.phase}=Bound", "--timeout=600s", "pvc/"+name)
	m.awaitCondition(v1.ConditionProvisioning, "DataVolume "+name+" waits for the first pod of its claim")
	if pods := kubectl(t, "-n", c.namespace, "get", "pods", "-l", "kubevirt.io=virt-launcher", "-o", "name"); pods != "" {
		t.Errorf("while its disk is not filled the VM has %s", pods)
	}
	becomes(t, c.namespace, name, `{"phase":"ImportInProgress","progress":"42.0%"}`)
	m.awaitCondition(v1.ConditionProvisioning, "is ImportInProgress, 42.0%")
	becomes(t, c.namespace, name, `{"phase":"Succeeded","progress":"100.0%"}`)
	m.runs("")
	if pods := kubectl(t, "-n", c.namespace, "get", "pods", "-l", "kubevirt.io=virt-consumer", "-o", "name"); pods != "" {
		t.Errorf("while the guest runs there is %s", pods)
	}
	if got := m.in(m.shell(), "blockdev --getsize64 /dev/vdb"); got != fmt.Sprint(94<<20) {
		t.Errorf("the guest's disk has %s bytes", got)
	}
}

// filledByCDI: a VM whose disk CDI fills waits for the claim, then for its
// content, and says so.
func filledByCDI(t *testing.T) {
	c := claims{t, namespace(t)}
	m := createVM(t, c.namespace, "filled", v1.RunStrategyAlways, bootsKernel, offline, func(s *v1.VirtualMachineInstanceSpec) {
		s.Domain.Devices.Disks = append(s.Domain.Devices.Disks, v1.Disk{Name: "data", Disk: &v1.DiskTarget{Bus: v1.DiskBusVirtio}})
		s.Volumes = append(s.Volumes, v1.Volume{Name: "data", DataVolume: &v1.DataVolumeSource{Name: "data"}})
	})
	m.is(v1.VirtualMachineStatusPvcNotFound)

	apply(t, c.namespace, "apiVersion: cdi.kubevirt.io/v1beta1\nkind: DataVolume\nmetadata: {name: data}\nspec: {sourceRef: {kind: DataSource, name: golden}}\n")
	inferredFrom(t, c.namespace)
	c.claimed("data")
	m.is(v1.VirtualMachineStatusProvisioning)
	becomes(t, c.namespace, "data", `{"phase":"ImportInProgress","progress":"42.0%"}`)
	m.awaitCondition(v1.ConditionProvisioning, "DataVolume data is ImportInProgress, 42.0%")
	becomes(t, c.namespace, "data", `{"phase":"Failed"}`)
	m.is(v1.VirtualMachineStatusDataVolumeError)
	if pods := kubectl(t, "-n", c.namespace, "get", "pods", "-o", "name"); pods != "" {
		t.Errorf("while its disk is not filled the VM has %s", pods)
	}
	becomes(t, c.namespace, "data", `{"phase":"Succeeded","progress":"100.0%"}`)
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
	if err := poll(func() error {
		made, err := m.instance()
		if ref := m.machine().Status.PreferenceRef; err == nil && (ref == nil || ref.Name != "patient" || made.Annotations["e2e"] != "inferred") {
			err = fmt.Errorf("the preference is %+v, the VMI's annotations are %v", ref, made.Annotations)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	kubectl(t, "-n", namespace, "delete", "vm", "inferred", "--timeout=600s")
}
