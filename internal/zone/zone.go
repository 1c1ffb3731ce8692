// Package zone knows the time zones of the IANA. It has them from the node's own files, or else from those that Go brings.
package zone

import (
	"time"
	_ "time/tzdata" // for images without files of time zones
)

// Offset is what clocks of a time zone such as Europe/Berlin are ahead of UTC at a moment, in seconds. It is nil for a zone
// that is none.
func Offset(name string, at time.Time) *int64 {
	if name == "" || name == "Local" { // which time.LoadLocation takes for UTC and for the node's zone
		return nil
	}
	location, err := time.LoadLocation(name)
	if err != nil {
		return nil
	}
	_, seconds := at.In(location).Zone()
	offset := int64(seconds)
	return &offset
}
