// Package kit holds what the controllers of virt-controller and virt-handler share:
// how they retry, connect anew, record events, word refusals, and notice that their
// cache is behind their own writes.
package kit
