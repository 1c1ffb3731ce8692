package resolve

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestNoUnaskedHotplugPlaces: places cost the guest something, so a machine has none that nobody asked for.
func TestNoUnaskedHotplugPlaces(t *testing.T) {
	for name, tt := range map[string]struct {
		sockets, maxSockets uint32
		maxGuest            string
		wantSockets         uint32
		wantBytes           int64
	}{
		"nothing asked":  {2, 0, "", 0, 0},
		"what there is":  {2, 2, "1Gi", 0, 0},
		"more of both":   {2, 3, "2Gi", 3, 2 << 30},
		"more of memory": {2, 2, "64Gi", 0, 64 << 30},
	} {
		vmi, host := load(t, "testdata/machines/memory-max-guest", hosts[0])
		memory := vmi.Spec.Domain.Memory
		vmi.Spec.Domain.CPU, memory.MaxGuest = &v1.CPU{Sockets: tt.sockets, MaxSockets: tt.maxSockets}, nil
		if tt.maxGuest != "" {
			memory.MaxGuest = ptr.To(resource.MustParse(tt.maxGuest))
		}
		m, errs := Machine(vmi, host)
		if len(errs) > 0 {
			t.Fatalf("%s: %v", name, errs.ToAggregate())
		}
		bytes := int64(0)
		if m.Memory != nil {
			bytes = m.Memory.MaxBytes
		}
		if m.CPU.MaxSockets != tt.wantSockets || bytes != tt.wantBytes {
			t.Errorf("%s: places for %d sockets and %d bytes, want %d and %d", name, m.CPU.MaxSockets, bytes, tt.wantSockets, tt.wantBytes)
		}
	}
}
