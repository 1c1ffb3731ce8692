package life

// operationAsked carries out or refuses what virt-handler asks of the guest: pause, unpause,
// soft reboot or reset.
func (s *step) operationAsked(e OperationAsked) {
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

// refusal says why an operation cannot be carried out now; empty if it can.
func (s *step) refusal(e OperationAsked) string {
	soft := e.Operation == SoftReboot
	switch {
	case !s.in(Running, Paused):
		return "the VM is " + string(s.Shown())
	case s.Leaving != Staying, s.Memory == Coming:
		return "the guest is being migrated"
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

// softReboot: a guest that reboots by the power button only powers off. So for RebootTime a
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

func (s *step) operationFailed(e OperationFailed) {
	switch {
	case e.Operation == SoftReboot && s.driven():
		s.forgetReboot()
	case e.Operation == Unpause && s.Storage.Trial == Unpausing:
		s.schedule()
	}
}

// restartFailed: the guest is off, so ending QEMU loses nothing.
func (s *step) restartFailed(e RestartFailed) {
	cause := Cause{NotAgain, e.Err.Error()}
	switch {
	case s.Serves():
		s.quit(cause)
	case s.in(Quitting):
		s.Cause = cause
	}
}
