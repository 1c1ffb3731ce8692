package validation

import (
	"regexp"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func validateClock(c *v1.Clock, path *field.Path) field.ErrorList {
	if c == nil {
		return nil
	}
	errs := validateClockOffset(c, path)
	if c.Timer == nil {
		return errs
	}
	timer := path.Child("timer")
	policy := func(name, value string, allowed ...string) {
		for _, a := range append(allowed, "") {
			if value == a {
				return
			}
		}
		errs = append(errs, field.NotSupported(timer.Child(name, "tickPolicy"), value, allowed))
	}
	if t := c.Timer.HPET; t != nil {
		policy("hpet", t.TickPolicy, "delay")
	}
	if t := c.Timer.PIT; t != nil {
		policy("pit", t.TickPolicy, "delay", "discard")
	}
	if t := c.Timer.RTC; t != nil {
		policy("rtc", t.TickPolicy, "delay", "catchup")
		if t.Present != nil && !*t.Present {
			errs = append(errs, field.Invalid(timer.Child("rtc", "present"), false, "a q35 machine always has an RTC"))
		}
		if t.Track != "" && t.Track != "guest" && t.Track != "wall" {
			errs = append(errs, field.NotSupported(timer.Child("rtc", "track"), t.Track, []string{"guest", "wall"}))
		}
	}
	return errs
}

// maxClockOffset keeps the guest's clock in years that QEMU's RTC and guests know. Unit: seconds.
const maxClockOffset = 1_000_000_000

// timezone has the form of a zone's name. Whether there is such a zone, its node says.
var timezone = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$`)

func validateClockOffset(c *v1.Clock, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if c.UTC != nil {
		if n := ptr.Deref(c.UTC.OffsetSeconds, 0); n < -maxClockOffset || n > maxClockOffset {
			errs = append(errs, field.Invalid(path.Child("utc", "offsetSeconds"), n,
				"must be between -1000000000 and 1000000000"))
		}
		if c.Timezone != "" {
			errs = append(errs, field.Invalid(path.Child("timezone"), c.Timezone,
				"the clock shows UTC or a time zone's time: leave out "+path.Child("utc").String()+", or timezone"))
		}
	}
	if c.Timezone != "" && (len(c.Timezone) > 64 || !timezone.MatchString(c.Timezone)) {
		errs = append(errs, field.Invalid(path.Child("timezone"), c.Timezone,
			"must be a time zone of the IANA such as Europe/Berlin"))
	}
	return errs
}
