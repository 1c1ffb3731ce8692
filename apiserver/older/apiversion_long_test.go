//go:build long

package older

import "testing"

// TestManyRoundTripsLoseNothing is TestRoundTripLosesNothing ten times as long.
func TestManyRoundTripsLoseNothing(t *testing.T) { roundTrips(t, 100_000) }
