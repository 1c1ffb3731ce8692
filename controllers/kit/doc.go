// Package kit holds what the controllers of virt-controller and virt-handler share: retries,
// reconnection, events, the wording of refusals, and the check that the cache has a
// controller's own writes.
package kit
