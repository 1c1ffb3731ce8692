//go:build long

package vm

import "testing"

// TestManyRandomEventsEndAsTheRunStrategySays is TestRandomEventsEndAsTheRunStrategySays ten times as long.
func TestManyRandomEventsEndAsTheRunStrategySays(t *testing.T) { randomEvents(t, 100) }
