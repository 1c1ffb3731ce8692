package qemuargs

import "time"

// Clock is where the machine differs from QEMU's defaults for its timers.
type Clock struct {
	NoHPET bool `json:"noHPET,omitempty"`
	NoPIT  bool `json:"noPIT,omitempty"`
	// PITPolicy is what KVM's PIT does with ticks that the guest missed: delay or discard.
	PITPolicy string `json:"pitPolicy,omitempty"`
	// RTCCatchUp delivers the RTC's missed ticks as soon as possible (-rtc driftfix=slew).
	RTCCatchUp bool `json:"rtcCatchUp,omitempty"`
	// RTCSource is the RTC's own clock: host, or vm, which stands while the guest does.
	RTCSource string `json:"rtcSource,omitempty"`
	// Offset is what the RTC is ahead of UTC. Unit: seconds.
	Offset int64 `json:"offset,omitempty"`
	// Start is when QEMU starts, in seconds since 1970. It is 0 without an Offset.
	Start int64 `json:"start,omitempty"`
}

// At returns the clock of a QEMU that starts at a moment. QEMU counts from the time of day that it is told at its
// start, and a clock with an offset is told one. The guest keeps its clock over reboots, and takes it along when it
// moves.
func (c Clock) At(moment time.Time) Clock {
	if c.Offset != 0 {
		c.Start = moment.Unix()
	}
	return c
}

// base returns the clock's time of day when QEMU starts.
func (c Clock) base() Option {
	if c.Offset == 0 {
		return Option{Key: "base", Value: "utc"}
	}
	return Option{Key: "base", Value: time.Unix(c.Start+c.Offset, 0).UTC().Format("2006-01-02T15:04:05")}
}
