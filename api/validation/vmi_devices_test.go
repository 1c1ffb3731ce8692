package validation

import (
	"fmt"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func TestValidateDevices(t *testing.T) {
	inputs := func(names ...string) func(*spec) {
		return func(s *spec) {
			for _, name := range names {
				s.Domain.Devices.Inputs = append(s.Domain.Devices.Inputs, v1.Input{Name: name, Type: "tablet", Bus: "usb"})
			}
		}
	}
	var sixteen []string
	for i := range 16 {
		sixteen = append(sixteen, fmt.Sprint(i))
	}
	edits{
		"two inputs of a name":  {inputs("a", "a"), ".inputs[1].name"},
		"an input without name": {inputs(""), ".inputs[0].name"},
		"as many inputs as fit": {inputs(sixteen[1:]...), ""},
		"more inputs than fit":  {inputs(sixteen...), ".inputs"},
		"input on PS/2": {func(s *spec) {
			s.Domain.Devices.Inputs = []v1.Input{{Name: "a", Type: "tablet", Bus: "ps2"}}
		}, ".inputs[0].bus"},
		"a watchdog without name": {func(s *spec) {
			s.Domain.Devices.Watchdog = &v1.Watchdog{I6300ESB: &v1.I6300ESBWatchdog{Action: "reset"}}
		}, ".watchdog.name"},
	}.try(t, "spec.domain.devices")
}
