package control

import "time"

// Commands about QEMU's guest agent.
const (
	CommandGuestInfo   = "guest-info"        // → GuestInfo
	CommandUsers       = "guest-users"       // → GuestUsers
	CommandFileSystems = "guest-filesystems" // → GuestFileSystems
	CommandFreeze      = "freeze"            // FreezeRequest → nothing, when the file systems are frozen
	CommandUnfreeze    = "unfreeze"          // → nothing, when they are thawed
	CommandSoftReboot  = "soft-reboot"       // → nothing; the guest was asked to start anew
	CommandHoldPings   = "hold-pings"        // HoldPingsRequest → nothing
)

// EventAgent is sent when the AgentReport has changed, and after hello if anything is known of
// the agent.
const EventAgent = "agent"

// MaxAgentReport bounds an AgentReport, in bytes of JSON.
const MaxAgentReport = 64 << 10

// AgentReport is what the guest's agent said last. The guest can make its agent say anything.
type AgentReport struct {
	Connected bool    `json:"connected"`
	Version   string  `json:"version,omitempty"`
	OS        GuestOS `json:"os,omitzero"`
	// Interfaces with the Machine's MACs come first.
	Interfaces []GuestInterface `json:"interfaces,omitempty"`
	// Frozen: the guest's file systems are frozen, and nothing in the guest can write.
	Frozen bool `json:"frozen,omitempty"`
	// Credentials is nil if the agent brings none into the guest.
	Credentials *CredentialsReport `json:"credentials,omitempty"`
	// PingsHeld: the launcher answers pings of probes by itself (CommandHoldPings).
	PingsHeld bool `json:"pingsHeld,omitempty"`
	// PingFailed is when the agent left a probe's ping unanswered, by the launcher's clock. The
	// launcher reports one such ping a minute at most.
	PingFailed time.Time `json:"pingFailed,omitzero"`
}

// HoldPingsRequest says whether the launcher is to answer the pings of probes by itself, without
// asking the guest's agent.
type HoldPingsRequest struct {
	Hold bool `json:"hold"`
}

// AgentCredential is a Secret. The guest's agent brings its content into the guest: when the
// agent connects, and again when the Secret has changed.
type AgentCredential struct {
	// Secret is the number of a Secret that the pod mounts (package layout says where).
	Secret int `json:"secret"`
	// Users get the Secret's public SSH keys. Without Users the Secret holds passwords: its
	// entries are named like the users.
	Users []string `json:"users,omitempty"`
}

// CredentialsReport says whether the guest's users have what the Secrets hold.
type CredentialsReport struct {
	Synchronized bool `json:"synchronized,omitempty"`
	// Message says what is amiss. It holds nothing of a Secret.
	Message string `json:"message,omitempty"`
}

// AgentOffline is the message of a CredentialsReport until there is an agent. The text is KubeVirt's.
const AgentOffline = "Guest agent is offline"

// FreezeRequest says after how many seconds the launcher thaws the guest, also if virt-handler
// is gone by then; 0 is never.
type FreezeRequest struct {
	TimeoutSeconds int64 `json:"timeoutSeconds"`
}
