package pool

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeqemu/kubeqemu/api/pool/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// revision names the template of a pool's VirtualMachines. The same template always has the
// same name, so that no stored copy is needed to tell whether a VirtualMachine has it.
// KubeVirt's name is <pool>-<generation>.
func revision(pool *v1beta1.VirtualMachinePool) (string, error) {
	template := &pool.Spec.VirtualMachineTemplate
	parts := []any{template.ObjectMeta.Labels, template.ObjectMeta.Annotations, template.Spec, appendsToSecrets(pool)}
	if appendsToConfigMaps(pool) { // other pools keep the names that they had before there was this
		parts = append(parts, true)
	}
	text, err := json.Marshal(parts)
	if err != nil {
		return "", fmt.Errorf("encode template: %w", err)
	}
	sum := sha256.Sum256(text)
	return pool.Name + "-" + hex.EncodeToString(sum[:5]), nil
}

func appendsToSecrets(pool *v1beta1.VirtualMachinePool) bool {
	n := pool.Spec.NameGeneration
	return n != nil && n.AppendIndexToSecretRefs != nil && *n.AppendIndexToSecretRefs
}

func appendsToConfigMaps(pool *v1beta1.VirtualMachinePool) bool {
	n := pool.Spec.NameGeneration
	return n != nil && n.AppendIndexToConfigMapRefs != nil && *n.AppendIndexToConfigMapRefs
}

func machineName(pool *v1beta1.VirtualMachinePool, index int) string {
	return pool.Name + "-" + strconv.Itoa(index)
}

// indexOf is the index in a VirtualMachine's name. It returns false for a name that the pool
// does not give.
func indexOf(pool *v1beta1.VirtualMachinePool, name string) (int, bool) {
	digits, ok := strings.CutPrefix(name, pool.Name+"-")
	index, err := strconv.Atoi(digits)
	return index, ok && err == nil && index >= 0 && machineName(pool, index) == name
}

// machine makes the VirtualMachine of an index.
func machine(pool *v1beta1.VirtualMachinePool, index int, revision string) *v1.VirtualMachine {
	vm := &v1.VirtualMachine{ObjectMeta: metav1.ObjectMeta{
		Name: machineName(pool, index), Namespace: pool.Namespace,
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pool, v1beta1.VirtualMachinePoolGroupVersionKind)},
	}}
	renew(pool, vm, index, revision)
	return vm
}

// renew gives a VirtualMachine the pool's template. Labels and annotations that are not in the
// template stay: other writers, such as virt-controller, add some.
func renew(pool *v1beta1.VirtualMachinePool, vm *v1.VirtualMachine, index int, revision string) {
	template := pool.Spec.VirtualMachineTemplate.DeepCopy()
	vm.Labels = with(vm.Labels, template.ObjectMeta.Labels)
	vm.Annotations = with(vm.Annotations, template.ObjectMeta.Annotations)
	vm.Spec = template.Spec
	appendToDataVolumes(&vm.Spec, "-"+strconv.Itoa(index))
	if appendsToSecrets(pool) {
		appendToSecrets(&vm.Spec.Template.Spec, "-"+strconv.Itoa(index))
	}
	if appendsToConfigMaps(pool) {
		appendToConfigMaps(&vm.Spec.Template.Spec, "-"+strconv.Itoa(index))
	}
	label := map[string]string{v1beta1.RevisionLabel: revision}
	vm.Labels = with(vm.Labels, label)
	vm.Spec.Template.ObjectMeta.Labels = with(vm.Spec.Template.ObjectMeta.Labels, label)
}

// with returns have with the entries of more. It does not change have.
func with(have, more map[string]string) map[string]string {
	if len(more) == 0 {
		return have
	}
	all := maps.Clone(have)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, more)
	return all
}

// appendToDataVolumes gives each VirtualMachine DataVolumes of its own, as KubeVirt does.
func appendToDataVolumes(spec *v1.VirtualMachineSpec, suffix string) {
	own := map[string]bool{}
	for i := range spec.DataVolumeTemplates {
		name := &spec.DataVolumeTemplates[i].ObjectMeta.Name
		own[*name] = true
		*name += suffix
	}
	for i := range spec.Template.Spec.Volumes {
		switch v := &spec.Template.Spec.Volumes[i]; {
		case v.DataVolume != nil && own[v.DataVolume.Name]:
			v.DataVolume.Name += suffix
		case v.PersistentVolumeClaim != nil && own[v.PersistentVolumeClaim.ClaimName]:
			v.PersistentVolumeClaim.ClaimName += suffix
		}
	}
}

func appendToConfigMaps(spec *v1.VirtualMachineInstanceSpec, suffix string) {
	for i := range spec.Volumes {
		if c := spec.Volumes[i].ConfigMap; c != nil {
			c.Name += suffix
		}
	}
}

func appendToSecrets(spec *v1.VirtualMachineInstanceSpec, suffix string) {
	for i := range spec.Volumes {
		if s := spec.Volumes[i].Secret; s != nil {
			s.SecretName += suffix
		}
		init := spec.Volumes[i].CloudInit()
		if init == nil {
			continue
		}
		if init.UserDataSecretRef != nil {
			init.UserDataSecretRef.Name += suffix
		}
		if init.NetworkDataSecretRef != nil {
			init.NetworkDataSecretRef.Name += suffix
		}
	}
}

// controls says whether the pool is the VirtualMachine's controller.
func controls(pool *v1beta1.VirtualMachinePool, vm *v1.VirtualMachine) bool {
	return owner.Controls(v1beta1.VirtualMachinePoolGroupVersionKind.GroupKind(), pool, vm)
}
