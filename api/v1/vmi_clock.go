package v1

// Clock of the guest.
type Clock struct {
	// UTC: the guest's clock holds UTC (QEMU -rtc base=utc), or is ahead of it. It is also the default.
	// It excludes timezone.
	// +optional
	UTC *ClockOffsetUTC `json:"utc,omitempty"`
	// Timer sets which timers the guest has, and how they catch up.
	// +optional
	Timer *Timer `json:"timer,omitempty"`
	// Timezone is a time zone of the IANA such as Europe/Berlin: the guest's clock shows the
	// zone's time when the guest starts (QEMU -rtc base=), and goes on from there.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Timezone string `json:"timezone,omitempty"`
}

// ClockOffsetUTC means UTC, or a clock that is ahead of it.
type ClockOffsetUTC struct {
	// OffsetSeconds is what the guest's clock is ahead of UTC when the guest starts. Unit: seconds,
	// 1,000,000,000 at most. Default: 0.
	// +optional
	// +kubebuilder:validation:Minimum=-1000000000
	// +kubebuilder:validation:Maximum=1000000000
	OffsetSeconds *int64 `json:"offsetSeconds,omitempty"`
}

// Timer holds the guest's timers. A timer that is left out is as QEMU has it.
type Timer struct {
	// HPET is the High Precision Event Timer (QEMU -machine hpet=).
	// +optional
	HPET *HPETTimer `json:"hpet,omitempty"`
	// KVM is KVM's paravirtual clock (QEMU -cpu kvmclock=); only there under KVM.
	// +optional
	KVM *PresentTimer `json:"kvm,omitempty"`
	// PIT is the Programmable Interval Timer (QEMU -global kvm-pit.lost_tick_policy=).
	// +optional
	PIT *PITTimer `json:"pit,omitempty"`
	// RTC is the Real Time Clock (QEMU -rtc driftfix=, clock=).
	// +optional
	RTC *RTCTimer `json:"rtc,omitempty"`
	// Hyperv is Hyper-V's reference time (QEMU -cpu hv-time=); only there under KVM.
	// +optional
	Hyperv *PresentTimer `json:"hyperv,omitempty"`
}

// PresentTimer is a timer that is there or not.
type PresentTimer struct {
	// Default: true.
	// +optional
	Present *bool `json:"present,omitempty"`
}

// HPETTimer is the High Precision Event Timer.
type HPETTimer struct {
	// Default: true.
	// +optional
	Present *bool `json:"present,omitempty"`
	// TickPolicy is delay, which is all that QEMU has for it.
	// +optional
	// +kubebuilder:validation:Enum=delay;catchup;merge;discard
	// +kubebuilder:validation:XValidation:rule="self == 'delay'",message="QEMU has only the policy delay for the HPET"
	TickPolicy string `json:"tickPolicy,omitempty"`
}

// PITTimer is the Programmable Interval Timer.
type PITTimer struct {
	// Default: true.
	// +optional
	Present *bool `json:"present,omitempty"`
	// TickPolicy is delay (missed ticks are delivered late) or discard.
	// Effective under KVM. Default: QEMU's, delay.
	// +optional
	// +kubebuilder:validation:Enum=delay;catchup;discard
	// +kubebuilder:validation:XValidation:rule="self != 'catchup'",message="QEMU has only the policies delay and discard for the PIT"
	TickPolicy string `json:"tickPolicy,omitempty"`
}

// RTCTimer is the Real Time Clock.
type RTCTimer struct {
	// Present must not be false: QEMU has no machine without one. Default: true.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self",message="a q35 machine always has an RTC"
	Present *bool `json:"present,omitempty"`
	// TickPolicy is delay or catchup (missed ticks come as soon as possible). Default: delay.
	// +optional
	// +kubebuilder:validation:Enum=delay;catchup
	TickPolicy string `json:"tickPolicy,omitempty"`
	// Track is guest (the clock stands while the guest does) or wall.
	// +optional
	// +kubebuilder:validation:Enum=guest;wall
	Track string `json:"track,omitempty"`
}

// Timezone returns the time zone whose time the guest's clock shows; empty for UTC.
func (d *DomainSpec) Timezone() string {
	if d.Clock == nil {
		return ""
	}
	return d.Clock.Timezone
}
