package life

import "time"

// Action is something that the loop is to do. None waits for anything: what
// becomes of one is heard as an event.
type Action interface{ action() }

// Actions.
type (
	// Report tells virt-handler of the state.
	Report struct{}
	// Answer answers what was asked; an empty Refusal is a yes.
	Answer struct{ Refusal string }
	// Prepare makes the disks and the seed, and opens what is in volumes.
	Prepare struct{}
	// Abort has the preparation or the handshake end soon.
	Abort struct{}
	// Exec starts QEMU, shakes hands and lets the guest run.
	Exec struct{}
	// Press presses the power button.
	Press struct{}
	// AskAgent has the guest's agent, if there is one, shut the guest down: each
	// of it and the power button may be the only one that the guest heeds.
	AskAgent struct{}
	// TellQuit tells QEMU to quit.
	TellQuit struct{}
	// Kill sends QEMU SIGKILL.
	Kill struct{ Why string }
	// Operate carries out what a user asked for, and answers when it is done.
	Operate struct{ Operation Operation }
	// Reboot has the guest start anew by its own means, and answers: through its
	// agent, or by the power button, and then QEMU is to keep it when it is off.
	Reboot struct{ ByAgent bool }
	// ForgetReboot has QEMU end when the guest powers off.
	ForgetReboot struct{}
	// Restart starts a guest again that has powered off.
	Restart struct{}
	// Continue lets a guest run that an I/O error stopped.
	Continue struct{}
	// AskReason asks QEMU why it has stopped the guest.
	AskReason struct{ Pause int }
	// Probe asks QEMU whether it is there, however long it takes to answer.
	Probe struct{}
	// StartTimer starts a timer, anew if it runs.
	StartTimer struct {
		Timer Timer
		After time.Duration
	}
	// StopTimer stops one that runs.
	StopTimer struct{ Timer Timer }
	// Keep has the launcher live on without its VM.
	Keep struct{}
	// End ends the launcher.
	End struct{}
)

func (Report) action()       {}
func (Answer) action()       {}
func (Prepare) action()      {}
func (Abort) action()        {}
func (Exec) action()         {}
func (Press) action()        {}
func (AskAgent) action()     {}
func (TellQuit) action()     {}
func (Kill) action()         {}
func (Operate) action()      {}
func (Reboot) action()       {}
func (ForgetReboot) action() {}
func (Restart) action()      {}
func (Continue) action()     {}
func (AskReason) action()    {}
func (Probe) action()        {}
func (StartTimer) action()   {}
func (StopTimer) action()    {}
func (Keep) action()         {}
func (End) action()          {}
