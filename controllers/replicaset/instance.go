package replicaset

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// instance makes a VMI of a ReplicaSet from its template.
func instance(rs *v1.VirtualMachineInstanceReplicaSet, name string) *v1.VirtualMachineInstance {
	template := rs.Spec.Template.DeepCopy()
	return &v1.VirtualMachineInstance{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: rs.Namespace,
			Labels:          v1.WithoutReservedLabels(template.ObjectMeta.Labels),
			Annotations:     v1.WithoutReservedAnnotations(template.ObjectMeta.Annotations),
			OwnerReferences: []metav1.OwnerReference{ownedBy(rs)},
		},
		Spec: template.Spec,
	}
}

func ownedBy(rs *v1.VirtualMachineInstanceReplicaSet) metav1.OwnerReference {
	return *metav1.NewControllerRef(rs, v1.VirtualMachineInstanceReplicaSetGroupVersionKind)
}

// names returns count names for new VMIs that are not taken. They look like the random names
// of Kubernetes, but the same taken names always give the same new ones. So a creation that is
// repeated, because its answer was lost, or by another virt-controller, makes no second VMI.
func names(rs *v1.VirtualMachineInstanceReplicaSet, taken map[string]bool, count int) []string {
	var found []string
	for i := 0; len(found) < count; i++ {
		if name := nth(rs, i); !taken[name] && !slices.Contains(found, name) {
			found = append(found, name)
		}
	}
	return found
}

func nth(rs *v1.VirtualMachineInstanceReplicaSet, i int) string {
	const limit, length = 63, 5 // of a label's value; as generateName appends
	base := firstOf(rs.Spec.Template.ObjectMeta.Name, rs.Spec.Template.ObjectMeta.GenerateName, rs.Name)
	base = strings.TrimRight(base, "-.")
	base = strings.TrimRight(base[:min(len(base), limit-length-1)], "-.")
	return base + "-" + suffix(rs.UID, i, length)
}

func suffix(uid types.UID, i, length int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", uid, i))
	return rand.SafeEncodeString(hex.EncodeToString(sum[:])[:length])
}

func firstOf(words ...string) string {
	for _, w := range words {
		if w != "" {
			return w
		}
	}
	return ""
}
