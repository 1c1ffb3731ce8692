package filler

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
)

// snapshotKinds are the kinds of CSI's snapshots, without their fields.
func snapshotKinds() (manifests string) {
	for _, kind := range []struct{ name, plural, scope string }{{"VolumeSnapshot", "volumesnapshots", "Namespaced"}, {"VolumeSnapshotContent", "volumesnapshotcontents", "Cluster"}} {
		manifests += fmt.Sprintf(`---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: %[2]s.snapshot.storage.k8s.io
  annotations: {api-approved.kubernetes.io: "unapproved, as only a test needs it"}
spec:
  group: snapshot.storage.k8s.io
  scope: %[3]s
  names: {kind: %[1]s, plural: %[2]s}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`, kind.name, kind.plural, kind.scope)
	}
	return manifests
}

// snapshots: a DataVolume waits until the cluster has snapshots, and until its own is ready to use. Then the storage
// restores it.
func snapshots(p *plane) {
	p.volume("daily", `{source: {snapshot: {namespace: default, name: daily}}, storage: {storageClassName: snap}}`)
	p.is("daily", cdi.Pending, "The cluster has no VolumeSnapshots")
	p.MustApply(snapshotKinds())
	p.is("daily", cdi.Pending, "The source snapshot default/daily doesn't exist")
	p.MustApply(`
{apiVersion: storage.k8s.io/v1, kind: StorageClass, metadata: {name: snap}, provisioner: csi.example.com}
---
{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshot, metadata: {name: daily, namespace: default}, spec: {source: {persistentVolumeClaimName: disk}}}
`)
	p.is("daily", cdi.Pending, "is not ready to use")
	uid := p.Kubectl("get", "volumesnapshot", "daily", "-o", "jsonpath={.metadata.uid}")
	p.MustApply(fmt.Sprintf(`
{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshotContent, metadata: {name: daily}, spec: {driver: csi.example.com, sourceVolumeMode: Block, volumeSnapshotRef: {namespace: default, name: daily, uid: %s}}}
---
{apiVersion: snapshot.storage.k8s.io/v1, kind: VolumeSnapshot, metadata: {name: daily, namespace: default}, status: {boundVolumeSnapshotContentName: daily, readyToUse: true, restoreSize: 64Mi}}
`, uid))
	claim := there(p, "daily", &corev1.PersistentVolumeClaim{})
	p.is("daily", cdi.CloneFromSnapshotSourceInProgress, "PVC daily Pending")
	if from := claim.Spec.DataSourceRef; from == nil || from.Kind != "VolumeSnapshot" || from.Name != "daily" || !isBlock(claim) || claim.Spec.Resources.Requests.Storage().String() != "64Mi" {
		p.t.Errorf("the claim is %s", claim.Spec.String())
	}
	p.bind("daily")
	p.is("daily", cdi.Succeeded, "Clone Complete")
	p.noSourcePods()
	p.Delete(&cdi.DataVolume{}, "daily")
}
