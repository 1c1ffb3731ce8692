//go:build long

package configfiles

import "testing"

// TestMillionEntries takes minutes to make the entries.
func TestMillionEntries(t *testing.T) { crowded(t, 1_000_000) }
