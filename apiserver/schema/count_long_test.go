//go:build long

package schema

// roundTrips is how many objects of a kind go there and back.
const roundTrips = 100_000
