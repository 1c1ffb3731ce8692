package qemuargs

import "time"

// At is the clock of a QEMU that starts at a moment. QEMU counts from the time of day that it is told at its start, and a
// clock with an offset is told one. The guest keeps its clock over reboots, and takes it along when it moves.
func (c Clock) At(moment time.Time) Clock {
	if c.Offset != 0 {
		c.Start = moment.Unix()
	}
	return c
}

// base is the clock's time of day when QEMU starts.
func (c Clock) base() Option {
	const from = "clock.offset,clock.start"
	if c.Offset == 0 {
		return Option{Key: "base", Value: "utc", From: from, Rule: "the clock shows UTC"}
	}
	return Option{Key: "base", Value: time.Unix(c.Start+c.Offset, 0).UTC().Format("2006-01-02T15:04:05"), From: from,
		Rule: "the time of day when QEMU starts; the launcher writes it just before"}
}
