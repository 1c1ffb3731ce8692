package control

import "github.com/kubeqemu/kubeqemu/qemuargs"

// CommandBecome makes the running machine another. BecomeRequest → JobReply, when the job has begun. The files of what
// comes that virt-handler brings (qemuargs.ByHandler) go along.
const CommandBecome = "become"

// JobBecome makes the running machine another. The job's target is JobTargetMachine, and its progress is the number of
// changes. The Machine of each report is the one that the guest has by then.
const JobBecome JobKind = "become"

// JobTargetMachine is the target of JobBecome.
const JobTargetMachine = "machine"

// BecomeRequest says what the running machine is to become. A change that fails is undone, and ends the job; the
// changes before it stay.
type BecomeRequest struct {
	Machine qemuargs.Machine `json:"machine"`
}
