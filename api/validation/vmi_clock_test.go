package validation

import (
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func TestValidateClock(t *testing.T) {
	timer := func(timer v1.Timer) func(*spec) {
		return func(s *spec) { s.Domain.Clock = &v1.Clock{Timer: &timer} }
	}
	edits{
		"HPET catches up":  {timer(v1.Timer{HPET: &v1.HPETTimer{TickPolicy: "catchup"}}), ".hpet.tickPolicy"},
		"RTC discards":     {timer(v1.Timer{RTC: &v1.RTCTimer{TickPolicy: "discard"}}), ".rtc.tickPolicy"},
		"RTC of the host":  {timer(v1.Timer{RTC: &v1.RTCTimer{Track: "host"}}), ".rtc.track"},
		"HPET delays":      {timer(v1.Timer{HPET: &v1.HPETTimer{TickPolicy: "delay"}}), ""},
		"nothing is named": {timer(v1.Timer{HPET: &v1.HPETTimer{}, PIT: &v1.PITTimer{}, RTC: &v1.RTCTimer{}}), ""},
	}.try(t, "spec.domain.clock.timer")
}
