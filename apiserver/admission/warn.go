package admission

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeqemu/kubeqemu/api/pool/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/api/validation"
	"github.com/kubeqemu/kubeqemu/internal/zone"
)

// This file says what an object asks for and does not get. It is taken all the same.

func warnVMI(vmi, _ *v1.VirtualMachineInstance, _ Facts) []string {
	return append(validation.AnnotationWarnings(vmi.Annotations, field.NewPath("metadata", "annotations")), warnSpec(&vmi.Spec, field.NewPath("spec"))...)
}

func warnVM(vm, old *v1.VirtualMachine, facts Facts) []string {
	return append(warnTemplate(&vm.Spec.Template, field.NewPath("spec", "template"), facts),
		warnStaged(vm, old, facts.Cluster)...)
}

// warnStaged returns which changes of a template a running guest does not follow.
func warnStaged(vm, old *v1.VirtualMachine, config *v1.KubeVirtConfiguration) []string {
	if old == nil || !old.Status.Created || vm.Strategy() == v1.RunStrategyHalted {
		return nil
	}
	changes := vm.Since(old, config)
	if len(changes) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("a guest that runs takes this at its next start (%s): %s", vm.RestartAdvice(), changes)}
}

func warnReplicaSet(rs, _ *v1.VirtualMachineInstanceReplicaSet, facts Facts) []string {
	return warnTemplate(&rs.Spec.Template, field.NewPath("spec", "template"), facts)
}

func warnPool(pool, _ *v1beta1.VirtualMachinePool, facts Facts) []string {
	return warnTemplate(&pool.Spec.VirtualMachineTemplate.Spec.Template, field.NewPath("spec", "virtualMachineTemplate", "spec", "template"), facts)
}

func warnPreset(_, _ *v1.VirtualMachineInstancePreset, _ Facts) []string { return nil }

func warnKubeVirt(kv, _ *v1.KubeVirt, _ Facts) []string {
	warnings := validation.KubeVirtWarnings(&kv.Spec)
	if hasOperatorFinalizer(kv) {
		warnings = append(warnings, "metadata.finalizers: "+operatorFinalizerSays)
	}
	return warnings
}

// warnTemplate says besides what no VirtualMachineInstance of the template may have as the cluster is configured now. A VirtualMachineInstance is refused then; a
// template is taken, for the configuration may change before its first start.
func warnTemplate(template *v1.VirtualMachineInstanceTemplateSpec, path *field.Path, facts Facts) []string {
	meta := path.Child("metadata")
	out := slices.Concat(validation.LabelWarnings(template.ObjectMeta.Labels, meta.Child("labels")), validation.AnnotationWarnings(template.ObjectMeta.Annotations, meta.Child("annotations")),
		warnSpec(&template.Spec, path.Child("spec")))
	vmi := &v1.VirtualMachineInstance{Spec: *template.Spec.DeepCopy()}
	v1.ApplyClusterDefaults(vmi, facts.Cluster)
	v1.Default(vmi)
	for _, err := range validation.ValidateForCluster(vmi, facts.Cluster) {
		out = append(out, fmt.Sprintf("%s.%s", path, err.Error()))
	}
	return out
}

func warnSpec(spec *v1.VirtualMachineInstanceSpec, path *field.Path) []string {
	out := validation.Warnings(spec, path)
	if c := spec.Domain.Clock; c != nil && c.Timezone != "" && zone.Offset(c.Timezone, time.Now()) == nil {
		out = append(out, fmt.Sprintf("%s: there is no time zone %q: no guest with it starts", path.Child("domain", "clock", "timezone"), c.Timezone))
	}
	return out
}
