package resolve

import (
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// clock decides the timers hpet, pit and rtc. The timers kvm and hyperv are CPU flags; see hyperv.go.
func clock(c *v1.Clock, why *Decisions) qemuargs.Clock {
	var out qemuargs.Clock
	if c == nil || c.Timer == nil {
		return out
	}
	if t := c.Timer.HPET; t != nil {
		why.add("clock.noHPET", "spec.domain.clock.timer.hpet.present", "")
		out.NoHPET = !enabled(t.Present)
	}
	if t := c.Timer.PIT; t != nil {
		why.add("clock.noPIT", "spec.domain.clock.timer.pit.present", "")
		why.add("clock.pitPolicy", "spec.domain.clock.timer.pit.tickPolicy", "")
		out.NoPIT, out.PITPolicy = !enabled(t.Present), t.TickPolicy
	}
	if t := c.Timer.RTC; t != nil {
		why.add("clock.rtcCatchUp", "spec.domain.clock.timer.rtc.tickPolicy", "")
		why.add("clock.rtcSource", "spec.domain.clock.timer.rtc.track", "the guest's own time is vm, and wall time is host")
		out.RTCCatchUp = t.TickPolicy == "catchup"
		out.RTCSource = map[string]string{"guest": "vm", "wall": "host"}[t.Track]
	}
	return out
}
