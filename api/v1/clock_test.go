package v1

import "testing"

func TestValidateClock(t *testing.T) {
	timer := func(timer Timer) func(*spec) {
		return func(s *spec) { s.Domain.Clock = &Clock{Timer: &timer} }
	}
	edits{
		"HPET catches up":  {timer(Timer{HPET: &HPETTimer{TickPolicy: "catchup"}}), ".hpet.tickPolicy"},
		"RTC discards":     {timer(Timer{RTC: &RTCTimer{TickPolicy: "discard"}}), ".rtc.tickPolicy"},
		"RTC of the host":  {timer(Timer{RTC: &RTCTimer{Track: "host"}}), ".rtc.track"},
		"HPET delays":      {timer(Timer{HPET: &HPETTimer{TickPolicy: "delay"}}), ""},
		"nothing is named": {timer(Timer{HPET: &HPETTimer{}, PIT: &PITTimer{}, RTC: &RTCTimer{}}), ""},
	}.try(t, "spec.domain.clock.timer")
}
