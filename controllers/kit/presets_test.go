package kit

import (
	"context"
	"errors"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/listing"
)

// TestPresetErrorsThatUsersCanFix: which errors a user can do something about, and when a VMI has been through its
// presets.
func TestPresetErrorsThatUsersCanFix(t *testing.T) {
	read := func(err error, domains ...v1.DomainSpec) Presets {
		return func(context.Context, string) (list []v1.VirtualMachineInstancePreset, _ error) {
			for i := range domains {
				list = append(list, v1.VirtualMachineInstancePreset{ObjectMeta: metav1.ObjectMeta{Name: string(rune('a' + i))}, Spec: v1.VirtualMachineInstancePresetSpec{Domain: &domains[i]}})
			}
			return list, err
		}
	}
	down := errors.New("down")
	two, four := v1.DomainSpec{CPU: &v1.CPU{Cores: 2}}, v1.DomainSpec{CPU: &v1.CPU{Cores: 4}}
	for name, c := range map[string]struct {
		presets    Presets
		own        *v1.CPU
		err        error
		overridden int
		through    bool
	}{
		"nobody reads":     {nil, nil, nil, 0, false},
		"none":             {read(nil), nil, nil, 0, true},
		"one":              {read(nil, two), nil, nil, 0, true},
		"one that differs": {read(nil, two), &v1.CPU{Cores: 1}, nil, 1, true},
		"a conflict":       {read(nil, two, four), nil, ErrPresets, 0, false},
		"too many":         {read(listing.ErrTooMany), nil, ErrPresets, 0, false},
		"too slow":         {read(listing.ErrSlow), nil, ErrPresets, 0, false},
		"malformed":        {read(listing.ErrMalformed), nil, ErrPresets, 0, false},
		"unreadable":       {read(down), nil, down, 0, false},
	} {
		vmi := &v1.VirtualMachineInstance{}
		vmi.Spec.Domain.CPU = c.own
		overridden, err := c.presets.Apply(t.Context(), vmi)
		if !errors.Is(err, c.err) || errors.Is(err, ErrPresets) != (c.err == ErrPresets) || len(overridden) != c.overridden || slices.Contains(vmi.Finalizers, v1.VMIFinalizer) != c.through {
			t.Errorf("%s: %q, %v, finalizers %v", name, overridden, err, vmi.Finalizers)
		}
	}
	excluded := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1.ExcludePresetsAnnotation: "true"}}}
	if _, err := read(down).Apply(t.Context(), excluded); err != nil || len(excluded.Finalizers) != 1 {
		t.Errorf("excluded: %v, finalizers %v", err, excluded.Finalizers)
	}
}
