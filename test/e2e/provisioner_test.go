package e2e

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// dynamicClass is a storage class whose volumes are made where the first pod of their claim is
// scheduled, as k3s' local-path does. provision makes the volumes.
const dynamicClass = `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: e2e-dynamic}
provisioner: e2e.kubeqemu.io/folder
volumeBindingMode: WaitForFirstConsumer
`

// selectedNode is the annotation by which the scheduler asks a provisioner for a volume.
const selectedNode = "volume.kubernetes.io/selected-node"

// provision makes a folder of the claim's node, and a volume of it, for each claim of the namespace and of the
// class e2e-dynamic, until the test ends.
func provision(t *testing.T, namespace string) claims {
	t.Helper()
	apply(t, "", dynamicClass)
	c := claims{t, namespace}
	stop, stopped := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() {
		close(stop)
		<-stopped
		for _, node := range get[corev1.NodeList](t, "nodes").Items {
			if _, err := onNodeNamed(node.Name, `rm -rf --one-file-system "$1"`, c.nodeFolder("")); err != nil {
				t.Error(err)
			}
		}
		if _, err := output("", "kubectl", "delete", "persistentvolume", "-l", "provisioned-for="+namespace, "--wait=false"); err != nil {
			t.Error(err)
		}
	})
	go func() {
		defer close(stopped)
		made := map[string]bool{}
		for {
			if err := c.provisionOnce(made); err != nil {
				t.Logf("provision: %v", err)
			}
			select {
			case <-stop:
				return
			case <-time.After(300 * time.Millisecond):
			}
		}
	}()
	return c
}

// provisionOnce makes the volumes that are asked for, but not those that it made before.
func (c claims) provisionOnce(made map[string]bool) error {
	all, err := getObject[corev1.PersistentVolumeClaimList]("-n", c.namespace, "persistentvolumeclaims")
	if err != nil {
		return err
	}
	for _, claim := range all.Items {
		uid := string(claim.UID)
		if claim.Spec.StorageClassName == nil || *claim.Spec.StorageClassName != "e2e-dynamic" || claim.Annotations[selectedNode] == "" || made[uid] {
			continue
		}
		path := c.nodeFolder(uid)
		if out, err := onNodeNamed(claim.Annotations[selectedNode], `mkdir -p "$1" && chmod 777 "$1"`, path); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
		if _, err := output(fmt.Sprintf(`apiVersion: v1
kind: PersistentVolume
metadata: {name: dynamic-%[1]s, labels: {provisioned-for: %[2]s}}
spec:
  capacity: {storage: %[4]s}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: e2e-dynamic
  claimRef: {namespace: %[2]s, name: %[3]s, uid: %[1]s}
  hostPath: {path: %[5]s}
  nodeAffinity:
    required:
      nodeSelectorTerms:
      - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%[6]q]}]
`, uid, c.namespace, claim.Name, size.String(), path, claim.Annotations[selectedNode]), "kubectl", "apply", "-f", "-"); err != nil {
			return err
		}
		made[uid] = true
	}
	return nil
}
