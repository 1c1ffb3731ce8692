//go:build long

package vm

import "testing"

// TestManyRandomEventsEndAsTheRunStrategySays: what TestRandomEventsEndAsTheRunStrategySays states holds for
// ten times as many seeds.
func TestManyRandomEventsEndAsTheRunStrategySays(t *testing.T) { randomEvents(t, 100) }
