package vmi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/listing"
)

// preset returns a preset that sets the CPU of every VMI.
func preset(name string, cores uint32) v1.VirtualMachineInstancePreset {
	return v1.VirtualMachineInstancePreset{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.VirtualMachineInstancePresetSpec{Domain: &v1.DomainSpec{CPU: &v1.CPU{Cores: cores}}}}
}

// withPresets returns a new VMI that nobody has filled in yet, in a namespace with presets.
func withPresets(t *testing.T, presets []v1.VirtualMachineInstancePreset, err error,
	edit func(*v1.VirtualMachineInstance)) *cluster {
	t.Helper()
	c := newCluster(t, "", interceptor.Funcs{})
	vmi := c.get()
	vmi.Finalizers, vmi.Spec.Domain.CPU = nil, nil
	edit(vmi)
	if err := c.client.Update(context.Background(), vmi); err != nil {
		t.Fatal(err)
	}
	c.Presets = func(_ context.Context, namespace string) ([]v1.VirtualMachineInstancePreset, error) {
		if namespace != vmi.Namespace {
			t.Errorf("the presets of %q were asked for", namespace)
		}
		return presets, err
	}
	return c
}

// said returns the events so far.
func (c *cluster) said() string {
	var all []string
	for recorder := c.Events.(*events.FakeRecorder); len(recorder.Events) > 0; {
		all = append(all, <-recorder.Events)
	}
	return strings.Join(all, "\n")
}

// TestPresetsArePersisted: presets come before defaults, in the same write, and later presets
// change nothing.
func TestPresetsArePersisted(t *testing.T) {
	c := withPresets(t, []v1.VirtualMachineInstancePreset{preset("small", 2)}, nil, func(*v1.VirtualMachineInstance) {})
	for range 3 {
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
		c.Presets = func(context.Context, string) ([]v1.VirtualMachineInstancePreset, error) {
			t.Error("the presets were read again")
			return nil, nil
		}
	}
	vmi := c.get()
	if cpu := vmi.Spec.Domain.CPU; cpu.Cores != 2 || cpu.Sockets != 1 ||
		vmi.Annotations[v1.PresetAnnotation+"small"] != "kubevirt.io/v1" || c.pods() != 1 {
		t.Errorf("CPU %+v, annotations %v, %d pods", vmi.Spec.Domain.CPU, vmi.Annotations, c.pods())
	}
	if got := c.said(); strings.Contains(got, "Override") {
		t.Error(got)
	}
}

// TestVMIsOwnValueOverridesAPreset: the VMI's own value wins, and an event says so, once.
func TestVMIsOwnValueOverridesAPreset(t *testing.T) {
	c := withPresets(t, []v1.VirtualMachineInstancePreset{preset("small", 2)}, nil,
		func(vmi *v1.VirtualMachineInstance) { vmi.Spec.Domain.CPU = &v1.CPU{Cores: 3} })
	for range 3 {
		if err := c.reconcile(); err != nil {
			t.Fatal(err)
		}
	}
	vmi := c.get()
	if got := c.said(); vmi.Spec.Domain.CPU.Cores != 3 || vmi.Annotations[v1.PresetAnnotation+"small"] != "" ||
		strings.Count(got, `Normal Override The object's own spec.domain.cpu {"cores":3} overrides spec.domain.cpu {"cores":2} of VirtualMachineInstancePreset "small"`) != 1 {
		t.Errorf("CPU %+v, annotations %v, events %s", vmi.Spec.Domain.CPU, vmi.Annotations, got)
	}
}

// TestVMIWithBadPresetsFails: a VMI whose presets cannot be applied ends, and says why.
func TestVMIWithBadPresetsFails(t *testing.T) {
	for name, c := range map[string]struct {
		presets []v1.VirtualMachineInstancePreset
		err     error
		says    string
	}{
		"they contradict each other": {[]v1.VirtualMachineInstancePreset{preset("a", 2), preset("b", 4)}, nil,
			`the VirtualMachineInstancePresets "a" and "b"`},
		"one is malformed": {nil, fmt.Errorf("%w: a", listing.ErrMalformed), "malformed object: a, or exclude this object"},
	} {
		t.Run(name, func(t *testing.T) {
			c, says := withPresets(t, c.presets, c.err, func(*v1.VirtualMachineInstance) {}), c.says
			for range 2 {
				if err := c.reconcile(); err != nil {
					t.Fatal(err)
				}
			}
			vmi := c.get()
			got := c.said()
			if condition := vmi.Status.Condition(v1.ConditionSynchronized); vmi.Status.Phase != v1.Failed ||
				vmi.Status.Reason != v1.ReasonPresetFailed || c.pods() != 0 ||
				condition == nil || !strings.Contains(condition.Message, says) || strings.Count(got, "Warning") != 1 ||
				!strings.Contains(got, "Warning PresetFailed apply presets: ") {
				t.Errorf("%+v, %d pods, events %s", vmi.Status, c.pods(), got)
			}
		})
	}
}

// TestVMIWaitsWithTooManyPresets: a VMI whose presets are too many or too slow waits, and says why, once.
func TestVMIWaitsWithTooManyPresets(t *testing.T) {
	for _, unread := range []error{listing.ErrTooMany, listing.ErrSlow} {
		c := withPresets(t, nil, fmt.Errorf("%w: 65", unread), func(*v1.VirtualMachineInstance) {})
		for range 2 {
			if after := c.later(); after < 5*time.Second {
				t.Errorf("%v: again after %v", unread, after)
			}
		}
		vmi, got := c.get(), c.said()
		if condition := vmi.Status.Condition(v1.ConditionSynchronized); vmi.IsFinal() || c.pods() != 0 || condition == nil ||
			condition.Reason != v1.ReasonPresetFailed ||
			!strings.Contains(condition.Message, unread.Error()+": 65, or exclude this object") ||
			strings.Count(got, "Warning") != 1 {
			t.Errorf("%+v, %d pods, events %s", vmi.Status, c.pods(), got)
		}
		// When they can be read, it starts.
		c.Presets = func(context.Context, string) ([]v1.VirtualMachineInstancePreset, error) { return nil, nil }
		for range 2 {
			if err := c.reconcile(); err != nil {
				t.Fatal(err)
			}
		}
		if c.pods() != 1 {
			t.Errorf("%v: %d pods", unread, c.pods())
		}
	}
	// Excluded, it starts.
	c := withPresets(t, nil, listing.ErrTooMany, func(vmi *v1.VirtualMachineInstance) {
		vmi.Annotations = map[string]string{v1.ExcludePresetsAnnotation: "true"}
	})
	for range 2 {
		if err := c.reconcile(); err != nil || c.get().Status.Phase == v1.Failed {
			t.Errorf("excluded: %v, %+v", err, c.get().Status)
		}
	}
	if c.pods() != 1 {
		t.Errorf("excluded: %d pods", c.pods())
	}
}

// TestUnreadablePresetsDecideNothing: while the presets cannot be read, nothing is decided.
func TestUnreadablePresetsDecideNothing(t *testing.T) {
	down := errors.New("down")
	c := withPresets(t, nil, down, func(*v1.VirtualMachineInstance) {})
	if err := c.reconcile(); !errors.Is(err, down) || c.pods() != 0 || c.get().Status.Phase != "" {
		t.Errorf("%v, %d pods, %+v", err, c.pods(), c.get().Status)
	}
}
