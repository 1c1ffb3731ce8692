package v1beta1

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/api/validation"
)

// sample is the sample's pool.
func sample(t *testing.T) *VirtualMachinePool {
	t.Helper()
	text, err := os.ReadFile("../../../config/samples/vmpool-tiny.yaml")
	if err != nil {
		t.Fatal(err)
	}
	pool := &VirtualMachinePool{}
	if err := yaml.UnmarshalStrict(text, pool); err != nil {
		t.Fatal(err)
	}
	return pool
}

func TestValidate(t *testing.T) {
	const template = "spec.virtualMachineTemplate."
	for name, c := range map[string]struct {
		edit func(*VirtualMachinePool)
		want string // fields, in order
	}{
		"the sample":       {func(*VirtualMachinePool) {}, ""},
		"a long name":      {func(p *VirtualMachinePool) { p.Name = strings.Repeat("x", 53) }, "metadata.name"},
		"negative":         {func(p *VirtualMachinePool) { p.Spec.Replicas = ptr.To(int32(-1)) }, "spec.replicas"},
		"too many":         {func(p *VirtualMachinePool) { p.Spec.Replicas = ptr.To(int32(math.MaxInt32)) }, "spec.replicas"},
		"maxUnavailable":   {func(p *VirtualMachinePool) { p.Spec.MaxUnavailable = ptr.To(intstr.FromString("120%")) }, "spec.maxUnavailable"},
		"no percentage":    {func(p *VirtualMachinePool) { p.Spec.MaxUnavailable = ptr.To(intstr.FromString("3")) }, "spec.maxUnavailable"},
		"a percentage":     {func(p *VirtualMachinePool) { p.Spec.MaxUnavailable = ptr.To(intstr.FromString("100%")) }, ""},
		"no selector":      {func(p *VirtualMachinePool) { p.Spec.Selector = nil }, "spec.selector"},
		"another selector": {func(p *VirtualMachinePool) { p.Spec.Selector.MatchLabels["app"] = "x" }, template + "metadata.labels"},
		"labels":           {func(p *VirtualMachinePool) { p.Spec.VirtualMachineTemplate.ObjectMeta.Labels["a"] = "b c" }, template + "metadata.labels"},
		"the VM":           {func(p *VirtualMachinePool) { p.Spec.VirtualMachineTemplate.Spec.RunStrategy = nil }, template + "spec.runStrategy"},
		"the guest": {func(p *VirtualMachinePool) { p.Spec.VirtualMachineTemplate.Spec.Template.Spec.Volumes = nil },
			template + "spec.template.spec.domain.devices.disks[0].name"},
		"a DataVolume's long name": {func(p *VirtualMachinePool) {
			name := strings.Repeat("x", 243)
			spec := &p.Spec.VirtualMachineTemplate.Spec
			spec.DataVolumeTemplates = []v1.DataVolumeTemplate{{ObjectMeta: v1.DataVolumeTemplateMeta{Name: name}, Spec: runtime.RawExtension{Raw: []byte(`{"storage":{},"source":{"blank":{}}}`)}}}
			spec.Template.Spec.Volumes[0] = v1.Volume{Name: spec.Template.Spec.Volumes[0].Name, DataVolume: &v1.DataVolumeSource{Name: name}}
		}, template + "spec.dataVolumeTemplates[0].metadata.name"},
		"an instancetype": {func(p *VirtualMachinePool) {
			p.Spec.VirtualMachineTemplate.Spec.Instancetype = &v1.InstancetypeMatcher{Name: "small"}
			p.Spec.VirtualMachineTemplate.Spec.Template.Spec.Domain.Memory = nil
		}, ""},
		"not yet": {func(p *VirtualMachinePool) {
			p.Spec.Autohealing = &v1.Unsupported{}
			policy := &VirtualMachinePoolSelectionPolicy{Selectors: &v1.Unsupported{}, SortPolicy: ptr.To(VirtualMachinePoolSortPolicy("Best"))}
			p.Spec.ScaleInStrategy = &VirtualMachinePoolScaleInStrategy{Proactive: &VirtualMachinePoolProactiveScaleInStrategy{SelectionPolicy: policy, StatePreservation: ptr.To(StatePreservation("Online"))}}
			p.Spec.UpdateStrategy = &VirtualMachinePoolUpdateStrategy{Proactive: &VirtualMachinePoolProactiveUpdateStrategy{SelectionPolicy: policy}}
		}, "spec.autohealing spec.scaleInStrategy.proactive.selectionPolicy.selectors " +
			"spec.scaleInStrategy.proactive.selectionPolicy.sortPolicy spec.scaleInStrategy.proactive.statePreservation " +
			"spec.updateStrategy.proactive.selectionPolicy.selectors spec.updateStrategy.proactive.selectionPolicy.sortPolicy"},
		"two strategies": {func(p *VirtualMachinePool) {
			p.Spec.ScaleInStrategy = &VirtualMachinePoolScaleInStrategy{Unmanaged: &VirtualMachinePoolUnmanagedStrategy{}, Opportunistic: &VirtualMachinePoolOpportunisticScaleInStrategy{}}
			p.Spec.UpdateStrategy = &VirtualMachinePoolUpdateStrategy{Unmanaged: &VirtualMachinePoolUnmanagedStrategy{}, Proactive: &VirtualMachinePoolProactiveUpdateStrategy{}}
		}, "spec.scaleInStrategy spec.updateStrategy"},
	} {
		pool := sample(t)
		c.edit(pool)
		var got []string
		for _, err := range Validate(pool) {
			got = append(got, err.Field)
		}
		if !slices.Equal(got, strings.Fields(c.want)) {
			t.Errorf("%s: errors of %q, want %q (%v)", name, got, c.want, Validate(pool).ToAggregate())
		}
	}
}

// TestLabelErrorsAreTheSameEachTime: what is wrong with labels is said in the same words each time,
// though a map has them: a condition that changed would be a reason to try again.
func TestLabelErrorsAreTheSameEachTime(t *testing.T) {
	pool := sample(t)
	for i := range 20 {
		pool.Spec.VirtualMachineTemplate.ObjectMeta.Labels[fmt.Sprintf("bad %d", i)] = "b c"
		pool.Spec.Selector.MatchLabels[fmt.Sprintf("bad %d", i)] = "b c"
	}
	rs := &v1.VirtualMachineInstanceReplicaSet{}
	rs.Spec.Selector = pool.Spec.Selector
	for name, validate := range map[string]func() error{
		"pool":       func() error { return Validate(pool).ToAggregate() },
		"ReplicaSet": func() error { return validation.ValidateVirtualMachineInstanceReplicaSet(rs).ToAggregate() },
	} {
		first := validate().Error()
		for range 20 {
			if again := validate().Error(); again != first {
				t.Fatalf("%s: %s, and before %s", name, again, first)
			}
		}
	}
}
