package v1

import (
	"regexp"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// maxClockOffset keeps the guest's clock in years that QEMU's RTC and guests know. Unit: seconds.
const maxClockOffset = 1_000_000_000

// timezone has the form of a zone's name. Whether there is such a zone, its node says.
var timezone = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$`)

// Timezone is the time zone whose time the guest's clock shows; empty for UTC.
func (d *DomainSpec) Timezone() string {
	if d.Clock == nil {
		return ""
	}
	return d.Clock.Timezone
}

func validateClockOffset(c *Clock, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if c.UTC != nil {
		if n := ptr.Deref(c.UTC.OffsetSeconds, 0); n < -maxClockOffset || n > maxClockOffset {
			errs = append(errs, field.Invalid(path.Child("utc", "offsetSeconds"), n, "must be between -1000000000 and 1000000000"))
		}
		if c.Timezone != "" {
			errs = append(errs, field.Invalid(path.Child("timezone"), c.Timezone, "the clock shows UTC or a time zone's time: leave out "+path.Child("utc").String()+", or timezone"))
		}
	}
	if c.Timezone != "" && (len(c.Timezone) > 64 || !timezone.MatchString(c.Timezone)) {
		errs = append(errs, field.Invalid(path.Child("timezone"), c.Timezone, "must be a time zone of the IANA such as Europe/Berlin"))
	}
	return errs
}
