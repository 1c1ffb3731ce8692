//go:build long && csi

package thirdparty

import (
	"fmt"
	"strings"
	"testing"
)

// onCSI is a VM whose disk is on the storage of csi.yaml.
func onCSI(name, source string) string {
	return strings.Replace(vm(name, source), "storageClassName: local-path", "storageClassName: csi", 1)
}

// from waits until the storage has made a claim from an object of the kind.
func (p place) from(claim, kind string) {
	p.Helper()
	if got := p.kubectl("get", "pvc", claim, "-o", "jsonpath={.spec.dataSourceRef.kind} {.status.phase}"); got != kind+" Bound" {
		p.Errorf("claim %s is of %s, want %s", claim, got, kind)
	}
	if pods := p.kubectl("get", "pods", "-o", "name"); strings.Contains(pods, "importer") {
		p.Errorf("claim %s has pods: %s", claim, pods)
	}
}

// TestCSI: the storage clones a claim, and restores a snapshot of the claim, and a guest boots from each. A snapshot of
// another namespace gets there by the way that the DataVolume's condition names.
func TestCSI(t *testing.T) {
	golden := newPlace(t, "golden")
	golden.apply(webServer)
	golden.kubectl("wait", "--for=condition=Ready", "--timeout=2m", "pod/web")
	address := golden.kubectl("get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
	golden.apply(onCSI("imported", `source: {http: {url: "http://`+address+`/tiny.qcow2"}}`))
	golden.boots("imported")
	golden.kubectl("patch", "vm", "imported", "--type=merge", "-p", `{"spec":{"runStrategy":"Halted"}}`)
	golden.kubectl("wait", "--for=delete", "--timeout=2m", "vmi/imported")
	golden.kubectl("wait", "--for=delete", "--timeout=2m", "pods", "-l", "kubevirt.io=virt-launcher")

	golden.apply("{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshot, metadata: {name: daily}, spec: {volumeSnapshotClassName: csi, source: {persistentVolumeClaimName: imported-root}}}")
	golden.apply(onCSI("restored", "source: {snapshot: {namespace: golden, name: daily}}"))
	golden.boots("restored")
	golden.from("restored-root", "VolumeSnapshot")

	golden.apply(onCSI("cloned", "source: {pvc: {namespace: golden, name: imported-root}}"))
	golden.boots("cloned")
	golden.from("cloned-root", "PersistentVolumeClaim")

	golden.kubectl("create", "role", "clone", "--verb=create", "--resource=datavolumes.cdi.kubevirt.io/source")
	golden.kubectl("create", "rolebinding", "clone", "--role=clone", "--serviceaccount=team:default")
	team := newPlace(t, "team")
	team.apply(onCSI("far", "source: {snapshot: {namespace: golden, name: daily}}"))
	team.until(func() error {
		got := team.kubectl("get", "dv", "far-root", "--ignore-not-found", "-o", `jsonpath={.status.conditions[?(@.type=="Running")].message}`)
		if !strings.Contains(got, "restore the snapshot to a claim of namespace golden, and copy that claim with source.pvc") {
			return fmt.Errorf("DataVolume far-root says %q", got)
		}
		return nil
	})
	team.kubectl("delete", "vm", "far", "--timeout=2m")
	golden.kubectl("delete", "vm", "restored", "--timeout=2m")
	golden.apply("{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: daily}, spec: {storageClassName: csi, accessModes: [ReadWriteOnce], resources: {requests: {storage: 300Mi}}, dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: daily}}}")
	team.apply(onCSI("near", "source: {pvc: {namespace: golden, name: daily}}"))
	team.boots("near")
}
