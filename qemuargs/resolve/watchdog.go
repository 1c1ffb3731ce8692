package resolve

import "github.com/kubeqemu/kubeqemu/qemuargs"

// watchdog adds the watchdog.
func watchdog(b *build) {
	if w := b.devices().Watchdog; w != nil {
		b.m.Watchdog = &qemuargs.Watchdog{Action: w.I6300ESB.Action, PCI: integrated(watchdogSlot)}
	}
}
