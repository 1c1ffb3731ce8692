// Package validation holds the rules of the objects of package v1: what is refused, with exact paths, and what is
// accepted with a warning.
//
// Its functions are pure. virt-api calls them when an object is applied, and the controllers before an object has an
// effect, so that one that nobody asked about has none either.
package validation
