package life

import "time"

// Action is something that the loop must do. No action waits: its outcome comes as an event.
type Action interface{ action() }

// plain is an action that needs nothing but its name.
type plain string

// Plain actions.
const (
	// Report tells virt-handler of the state.
	Report plain = "Report"
	// Prepare makes the disks and the seed, and opens the images in volumes.
	Prepare plain = "Prepare"
	// Abort makes the preparation or the handshake end soon.
	Abort plain = "Abort"
	// Exec starts QEMU, shakes hands and lets the guest run.
	Exec plain = "Exec"
	// Press presses the power button.
	Press plain = "Press"
	// AskAgent lets the guest's agent, if there is one, shut the guest down: a guest may react
	// only to its agent, or only to the power button.
	AskAgent plain = "AskAgent"
	// TellQuit tells QEMU to quit.
	TellQuit plain = "TellQuit"
	// ForgetReboot makes QEMU end again when the guest powers off.
	ForgetReboot plain = "ForgetReboot"
	// Restart starts a guest again that has powered off to reboot.
	Restart plain = "Restart"
	// Continue lets a guest run that an I/O error stopped.
	Continue plain = "Continue"
	// Probe asks QEMU whether it answers, however long that takes.
	Probe plain = "Probe"
	// Send begins to send the guest to another QEMU, and answers.
	Send plain = "Send"
	// StopSending cancels that, unless the switchover was permitted.
	StopSending plain = "StopSending"
	// Arrive has the VM's parts keep what has come with the guest: the guest may run here from now on.
	Arrive plain = "Arrive"
	// Run lets a received guest run, and answers.
	Run plain = "Run"
	// Keep makes the launcher live on without its VM.
	Keep plain = "Keep"
	// End ends the launcher.
	End plain = "End"
)

// Actions that need more than their name.
type (
	// Answer answers the request. An empty Refusal means success.
	Answer struct{ Refusal string }
	// Kill sends QEMU SIGKILL.
	Kill struct{ Why string }
	// Operate carries out a user's operation, and answers when it is done.
	Operate struct{ Operation Operation }
	// Reboot makes the guest reboot, through its agent or by the power button, and answers.
	// For the button, QEMU must keep the guest when it has powered off.
	Reboot struct{ ByAgent bool }
	// AskReason asks QEMU why it has stopped the guest. Pause is the pause's number.
	AskReason struct{ Pause int }
	// StartTimer starts a timer, or restarts it if it runs.
	StartTimer struct {
		Timer Timer
		After time.Duration
	}
	// StopTimer stops a running timer.
	StopTimer struct{ Timer Timer }
	// AnswerSwitchover answers SwitchoverAsked. An empty Refusal permits the switchover.
	AnswerSwitchover struct{ Refusal string }
	// TakeBack lets the guest run here again. With Sent, QEMU has sent all of the
	// guest; else QEMU still waits for the other QEMU.
	TakeBack struct{ Sent bool }
	// HoldGuest makes QEMU stop the guest for a job.
	HoldGuest struct{ Job uint64 }
	// AnswerHold answers HoldAsked: the guest stands. With a Refusal it does not, and runs on.
	AnswerHold struct {
		Job     uint64
		Refusal string
	}
	// LetGo makes QEMU let the guest run on that stood for a job.
	LetGo struct{ Job uint64 }
	// EndJob cancels a job that has held the guest for longer than it may.
	EndJob struct{ Job uint64 }
	// RefuseRun answers RunAsked: the guest will never run here, so that its source can take it back.
	RefuseRun struct{ Why string }
)

func (plain) action()            {}
func (Answer) action()           {}
func (Kill) action()             {}
func (Operate) action()          {}
func (Reboot) action()           {}
func (AskReason) action()        {}
func (StartTimer) action()       {}
func (StopTimer) action()        {}
func (AnswerSwitchover) action() {}
func (TakeBack) action()         {}
func (RefuseRun) action()        {}
func (HoldGuest) action()        {}
func (AnswerHold) action()       {}
func (LetGo) action()            {}
func (EndJob) action()           {}
