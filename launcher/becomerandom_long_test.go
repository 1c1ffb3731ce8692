//go:build long

package launcher

import "testing"

// TestMachineBecomesAnyOtherLong: the same, of a hundred changes.
func TestMachineBecomesAnyOtherLong(t *testing.T) {
	t.Parallel()
	becomesAtRandom(t, 100)
}
