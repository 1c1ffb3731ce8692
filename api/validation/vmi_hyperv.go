package validation

import (
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// minSpinlocks is libvirt's: 0xfff, the least that Hyper-V's specification (Get/Set spinlock retries) has.
const minSpinlocks = 0xfff

// vendorID keeps out what has a meaning in QEMU's arguments or in the paths of package qemuargs.
var vendorID = regexp.MustCompile(`^[ -+\--Z^-~]{1,12}$`)

// validateHyperv looks at Hyper-V's interfaces, and at the timer that they need.
func validateHyperv(d *v1.DomainSpec, p *field.Path) field.ErrorList {
	if d.Features == nil || d.Features.Hyperv == nil {
		return nil
	}
	var errs field.ErrorList
	h, path := d.Features.Hyperv, p.Child("features", "hyperv")
	if d.HypervPassedThrough() {
		errs = append(errs, field.Invalid(p.Child("features", "hypervPassthrough"), true,
			"the guest gets all that its node has: leave out "+path.String()+", or turn hypervPassthrough off"))
	}
	var known []string
	for name, needs := range h.Lacking() {
		if !slices.Contains(known, needs) {
			known = append(known, needs)
			errs = append(errs, field.Invalid(path.Child(needs, "enabled"), false,
				path.Child(name).String()+" needs it: leave it out, or turn both off"))
		}
	}
	if timer := hypervTimer(d.Clock); h.SyNICTimer.Is() && timer != nil && !ptr.Deref(timer.Present, true) {
		errs = append(errs, field.Invalid(p.Child("clock", "timer", "hyperv", "present"), false,
			path.Child("synictimer").String()+" needs it: leave it out, or turn both off"))
	}
	if s := h.Spinlocks; s.Is() && ptr.Deref(s.Retries, minSpinlocks) < minSpinlocks {
		errs = append(errs, field.Invalid(path.Child("spinlocks", "spinlocks"), *s.Retries, "must be at least 4095"))
	}
	if v := h.VendorID; v.Is() && !vendorID.MatchString(v.VendorID) {
		errs = append(errs, field.Invalid(path.Child("vendorid", "vendorid"), v.VendorID,
			"must be 1 to 12 printable characters of ASCII, without comma, brackets and backslash"))
	}
	return errs
}

func hypervTimer(c *v1.Clock) *v1.PresentTimer {
	if c == nil || c.Timer == nil {
		return nil
	}
	return c.Timer.Hyperv
}
