package v1

// RolloutStrategy says what a change of a VirtualMachine's template does while the guest runs.
type RolloutStrategy string

// The values of RolloutStrategy; KubeVirt's vmRolloutStrategy.
const (
	// RolloutStage: the change holds from the next start on.
	RolloutStage RolloutStrategy = "Stage"
	// RolloutLiveUpdate: the running guest follows what it can follow.
	RolloutLiveUpdate RolloutStrategy = "LiveUpdate"
)

// Rollout returns the cluster's roll-out strategy. Default: LiveUpdate, as in KubeVirt.
func (c *KubeVirtConfiguration) Rollout() RolloutStrategy {
	if c == nil || c.VMRolloutStrategy == nil {
		return RolloutLiveUpdate
	}
	return *c.VMRolloutStrategy
}
