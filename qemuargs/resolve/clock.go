package resolve

import (
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// clock decides the timers hpet, pit and rtc. The timers kvm and hyperv are CPU flags; see hyperv.go.
func clock(c *v1.Clock) qemuargs.Clock {
	var out qemuargs.Clock
	if c == nil || c.Timer == nil {
		return out
	}
	if t := c.Timer.HPET; t != nil {
		out.NoHPET = !enabled(t.Present)
	}
	if t := c.Timer.PIT; t != nil {
		out.NoPIT, out.PITPolicy = !enabled(t.Present), t.TickPolicy
	}
	if t := c.Timer.RTC; t != nil {
		out.RTCCatchUp = t.TickPolicy == "catchup"
		out.RTCSource = map[string]string{"guest": "vm", "wall": "host"}[t.Track]
	}
	return out
}
