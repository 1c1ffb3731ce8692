package life

import "time"

// Action is something that the loop must do. No action waits: its outcome comes as an event.
type Action interface{ action() }

// Actions.
type (
	// Report tells virt-handler of the state.
	Report struct{}
	// Answer answers the request. An empty Refusal means success.
	Answer struct{ Refusal string }
	// Prepare makes the disks and the seed, and opens the images in volumes.
	Prepare struct{}
	// Abort makes the preparation or the handshake end soon.
	Abort struct{}
	// Exec starts QEMU, shakes hands and lets the guest run.
	Exec struct{}
	// Press presses the power button.
	Press struct{}
	// AskAgent lets the guest's agent, if there is one, shut the guest down: a guest may react
	// only to its agent, or only to the power button.
	AskAgent struct{}
	// TellQuit tells QEMU to quit.
	TellQuit struct{}
	// Kill sends QEMU SIGKILL.
	Kill struct{ Why string }
	// Operate carries out a user's operation, and answers when it is done.
	Operate struct{ Operation Operation }
	// Reboot makes the guest reboot, through its agent or by the power button, and answers.
	// For the button, QEMU must keep the guest when it has powered off.
	Reboot struct{ ByAgent bool }
	// ForgetReboot makes QEMU end again when the guest powers off.
	ForgetReboot struct{}
	// Restart starts a guest again that has powered off to reboot.
	Restart struct{}
	// Continue lets a guest run that an I/O error stopped.
	Continue struct{}
	// AskReason asks QEMU why it has stopped the guest. Pause is the pause's number.
	AskReason struct{ Pause int }
	// Probe asks QEMU whether it answers, however long that takes.
	Probe struct{}
	// StartTimer starts a timer, or restarts it if it runs.
	StartTimer struct {
		Timer Timer
		After time.Duration
	}
	// StopTimer stops a running timer.
	StopTimer struct{ Timer Timer }
	// Send begins to send the guest to another QEMU, and answers.
	Send struct{}
	// StopSending cancels that, unless the switchover was permitted.
	StopSending struct{}
	// AnswerSwitchover answers SwitchoverAsked. An empty Refusal permits the switchover.
	AnswerSwitchover struct{ Refusal string }
	// TakeBack lets the guest run here again, and answers. With Sent, QEMU has sent all of the
	// guest; else QEMU still waits for the other QEMU.
	TakeBack struct{ Sent bool }
	// Run lets a received guest run, and answers.
	Run struct{}
	// RefuseRun answers RunAsked: the guest will never run here, so that its source can take it back.
	RefuseRun struct{ Why string }
	// Keep makes the launcher live on without its VM.
	Keep struct{}
	// End ends the launcher.
	End struct{}
)

func (Report) action()           {}
func (Answer) action()           {}
func (Prepare) action()          {}
func (Abort) action()            {}
func (Exec) action()             {}
func (Press) action()            {}
func (AskAgent) action()         {}
func (TellQuit) action()         {}
func (Kill) action()             {}
func (Operate) action()          {}
func (Reboot) action()           {}
func (ForgetReboot) action()     {}
func (Restart) action()          {}
func (Continue) action()         {}
func (AskReason) action()        {}
func (Probe) action()            {}
func (StartTimer) action()       {}
func (StopTimer) action()        {}
func (Send) action()             {}
func (StopSending) action()      {}
func (AnswerSwitchover) action() {}
func (TakeBack) action()         {}
func (Run) action()              {}
func (RefuseRun) action()        {}
func (Keep) action()             {}
func (End) action()              {}
