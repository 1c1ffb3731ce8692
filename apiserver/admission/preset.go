package admission

import (
	"context"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/api/validation"
)

func validatePreset(preset, _ *v1.VirtualMachineInstancePreset, _ Facts) field.ErrorList {
	return validation.ValidateVirtualMachineInstancePreset(preset)
}

// takesPresets says whether a question is about a new object that presets may select. mutate does
// not fill in an object that is too large or cannot be read.
func takesPresets(question *admissionv1.AdmissionRequest) bool {
	if question.Operation != admissionv1.Create || len(question.Object.Raw) > maxFilled {
		return false
	}
	object, err := decode[metav1.PartialObjectMetadata](question.Object.Raw)
	return err == nil && !v1.PresetsExcluded(object)
}

// presetsTimeout bounds the wait for the API server's answer. It is well below the webhook's.
const presetsTimeout = 2 * time.Second

// mayHavePresets says whether there may be presets in a namespace. Without an answer of the API
// server there may be: then virt-controller looks. source is the address of the peer that asks.
func (s *server) mayHavePresets(ctx context.Context, source, namespace string) bool {
	ctx, cancel := context.WithTimeout(ctx, presetsTimeout)
	defer cancel()
	turn, err := s.asking.Take(ctx, source, 1, nil)
	if err != nil {
		return true
	}
	defer turn.Release()
	found, err := s.presets(ctx, namespace)
	return found || err != nil
}
