package resolve

import (
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// clockOffset sets what the RTC is ahead of UTC. A time zone counts as it is when the guest starts.
func clockOffset(c *v1.Clock, host Host, to *qemuargs.Clock, path *field.Path) *field.Error {
	switch {
	case c == nil:
		return nil
	case c.UTC != nil:
		to.Offset = ptr.Deref(c.UTC.OffsetSeconds, 0)
	case c.Timezone != "":
		if host.ZoneOffset == nil {
			return field.Invalid(path.Child("timezone"), c.Timezone, "the IANA has no such time zone; one is Europe/Berlin")
		}
		to.Offset = *host.ZoneOffset
	}
	if to.Offset != 0 {
		*to = to.At(time.Unix(host.Now, 0))
	}
	return nil
}
