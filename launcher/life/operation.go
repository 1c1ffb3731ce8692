package life

// Operation is what a user may ask for on a running guest.
type Operation string

// Operations, in the words of the control protocol.
const (
	Pause      Operation = "pause"
	Unpause    Operation = "unpause"
	Reset      Operation = "reset"
	SoftReboot Operation = "soft-reboot"
)

// Agent is what is known of the guest's agent.
type Agent struct{ Connected, Frozen bool }

// Operations and how they go. If QEMU's end is why an operation failed, only OperationFailed says so: that end is an
// event of its own.
type (
	// OperationAsked: a user asks for an operation on the guest, and is answered.
	OperationAsked struct {
		Operation Operation
		Agent     Agent
	}
	// OperationFailed: QEMU or the guest's agent did not carry out the operation.
	OperationFailed struct{ Operation Operation }
	// RestartFailed: QEMU did not start a guest again that had powered off.
	RestartFailed struct{ Err error }
)

// hear carries out or refuses what virt-handler asks of the guest: pause, unpause,
// soft reboot or reset.
func (e OperationAsked) hear(s *step) {
	if why := s.refusal(e); why != "" {
		s.answer("cannot %s: %s", e.Operation, why)
		return
	}
	switch {
	case e.Operation == SoftReboot:
		s.softReboot(e.Agent.Connected)
	case e.Operation == Unpause && s.Storage.Trial.trying():
		s.answer("") // it runs already, on trial
	case e.Operation == Unpause && s.Storage.Trial == Scheduled:
		s.Storage.Trial = Unpausing
		s.act(Operate{e.Operation})
	default:
		s.act(Operate{e.Operation})
	}
}

// refusal returns why an operation cannot be carried out now, or an empty text if it can.
func (s *step) refusal(e OperationAsked) string {
	soft := e.Operation == SoftReboot
	switch {
	case !s.in(Running, Paused):
		return "the VM is " + string(s.Shown())
	case s.Leaving != Staying, s.Memory == Coming:
		return "the guest is being migrated"
	case s.standing() != "":
		return s.standing()
	case s.Power == Restarting:
		return "the guest has powered off and is being started again"
	case s.Power == Off:
		return "the guest has powered off"
	case e.Operation == Pause && s.in(Paused):
		return "the VM is paused already"
	case e.Operation == Unpause && s.in(Running):
		return "the VM is not paused"
	case soft && e.Agent.Frozen:
		return "the guest's file systems are frozen"
	case soft && s.in(Paused):
		return "the VM is paused"
	case soft && !e.Agent.Connected && s.Order.NoACPI:
		return "neither is the guest agent connected nor has the guest ACPI"
	}
	return ""
}

// softReboot makes the guest reboot. A guest that reboots by the power button only powers off. So for RebootTime a
// power-off counts as the reboot. A guest that ends by a reboot need not be started again.
func (s *step) softReboot(byAgent bool) {
	if !byAgent && s.Order.EndsOnReboot {
		s.press()
		s.answer("")
		return
	}
	if !byAgent {
		s.Power = RebootAwaited
		s.timer(RebootTimer, RebootTime)
	}
	s.act(Reboot{byAgent})
}

func (e OperationFailed) hear(s *step) {
	switch {
	case e.Operation == SoftReboot && s.driven():
		s.forgetReboot()
	case e.Operation == Unpause && s.Storage.Trial == Unpausing:
		s.schedule()
	}
}

// hear ends QEMU, which loses nothing: the guest is off.
func (e RestartFailed) hear(s *step) {
	cause := Cause{NotAgain, e.Err.Error()}
	switch {
	case s.Serves():
		s.quit(cause)
	case s.in(Quitting):
		s.Cause = cause
	}
}

// forgetReboot makes the guest's next power-off a power-off again, and no reboot.
func (s *step) forgetReboot() {
	if s.Power == RebootAwaited {
		s.Power = On
		s.act(ForgetReboot)
	}
}
