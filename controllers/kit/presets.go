package kit

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/listing"
)

// Presets reads the VirtualMachineInstancePresets of a namespace. A nil Presets applies none, and
// leaves that to others.
type Presets func(ctx context.Context, namespace string) ([]v1.VirtualMachineInstancePreset, error)

// ErrPresets means that the presets of a namespace cannot be applied, until a user changes
// something.
var ErrPresets = errors.New("apply presets")

// PresetsUnread says whether an error means that a namespace's presets are too many, too large or
// too slow to read. The presets are read again later.
func PresetsUnread(err error) bool {
	return errors.Is(err, listing.ErrTooMany) || errors.Is(err, listing.ErrSlow)
}

// Apply applies presets to a new VMI, before any default is set. It adds the VMI's finalizer, which
// says that the VMI has been through its presets: a preset that is made later does not change it.
// overridden are the values that the VMI's own values win over.
func (p Presets) Apply(ctx context.Context, vmi *v1.VirtualMachineInstance) (overridden []string, err error) {
	if p == nil {
		return nil, nil
	}
	if !v1.PresetsExcluded(vmi) {
		presets, err := p(ctx, vmi.Namespace)
		if PresetsUnread(err) || errors.Is(err, listing.ErrMalformed) {
			return nil, fmt.Errorf("%w: %w, %s", ErrPresets, err, v1.PresetsAdvice)
		}
		if err != nil {
			return nil, fmt.Errorf("read presets: %w", err)
		}
		var errs field.ErrorList
		if overridden, errs = v1.ApplyPresets(vmi, presets); len(errs) > 0 {
			return nil, fmt.Errorf("%w: %w", ErrPresets, errs.ToAggregate())
		}
	}
	controllerutil.AddFinalizer(vmi, v1.VMIFinalizer)
	return overridden, nil
}

// AnnounceOverridden makes an event of values of presets that a VMI's own values win over. That is what presets are for, and no reason to warn.
func AnnounceOverridden(recorder events.EventRecorder, vmi *v1.VirtualMachineInstance, related runtime.Object, overridden []string) {
	if len(overridden) > 0 {
		recorder.Eventf(vmi, related, corev1.EventTypeNormal, v1.ReasonPresetOverridden, "ApplyPresets", "%s", strings.Join(overridden, ". "))
	}
}
