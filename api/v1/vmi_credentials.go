package v1

// AccessCredential lets users into the guest. Exactly one of its fields is set.
type AccessCredential struct {
	// SSHPublicKey are keys whose owners may log in by SSH.
	// +optional
	SSHPublicKey *SSHPublicKeyAccessCredential `json:"sshPublicKey,omitempty"`
	// UserPassword are passwords of the guest's users.
	// +optional
	UserPassword *UserPasswordAccessCredential `json:"userPassword,omitempty"`
}

// SSHPublicKeyAccessCredential holds SSH keys, and how they get into the guest.
type SSHPublicKeyAccessCredential struct {
	// Source is where the keys come from.
	Source SSHPublicKeyAccessCredentialSource `json:"source"`
	// PropagationMethod is how the keys get into the guest. Exactly one is set.
	PropagationMethod SSHPublicKeyAccessCredentialPropagationMethod `json:"propagationMethod"`
}

// SSHPublicKeyAccessCredentialSource is where SSH keys come from.
type SSHPublicKeyAccessCredentialSource struct {
	// Secret holds the keys: in each entry one or more, a line each.
	// +optional
	Secret *AccessCredentialSecretSource `json:"secret,omitempty"`
}

// AccessCredentialSecretSource is a Secret of the VMI's namespace. The kubelet
// mounts it into the launcher pod; no component reads it from the API.
type AccessCredentialSecretSource struct {
	// SecretName is the Secret's name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	SecretName string `json:"secretName"`
}

// SSHPublicKeyAccessCredentialPropagationMethod is how SSH keys get into the guest.
type SSHPublicKeyAccessCredentialPropagationMethod struct {
	// ConfigDrive puts the keys into the metadata of cloudInitConfigDrive volumes when the
	// guest is started: cloud-init gives them to its default user. Refused without such a
	// volume.
	// +optional
	ConfigDrive *ConfigDriveSSHPublicKeyAccessCredentialPropagation `json:"configDrive,omitempty"`
	// NoCloud does the same with cloudInitNoCloud volumes.
	// +optional
	NoCloud *NoCloudSSHPublicKeyAccessCredentialPropagation `json:"noCloud,omitempty"`
	// QemuGuestAgent has the guest agent write the keys into the users' authorized_keys, and
	// again when the Secret changes.
	// +optional
	QemuGuestAgent *QemuGuestAgentSSHPublicKeyAccessCredentialPropagation `json:"qemuGuestAgent,omitempty"`
}

// ConfigDriveSSHPublicKeyAccessCredentialPropagation has no settings.
type ConfigDriveSSHPublicKeyAccessCredentialPropagation struct{}

// NoCloudSSHPublicKeyAccessCredentialPropagation has no settings.
type NoCloudSSHPublicKeyAccessCredentialPropagation struct{}

// QemuGuestAgentSSHPublicKeyAccessCredentialPropagation says whose keys they are.
type QemuGuestAgentSSHPublicKeyAccessCredentialPropagation struct {
	// Users of the guest who may log in with the keys, at least one. As in KubeVirt, the user's
	// ~/.ssh/authorized_keys is replaced: it holds the keys of all Secrets that name the user
	// and no others, not even cloud-init's. A name has letters, digits and _ . - @ $, and
	// begins with none of the last three (KubeVirt takes any).
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9_.][-A-Za-z0-9_.@$]*$`
	Users []string `json:"users"`
}

// UserPasswordAccessCredential holds passwords, and how they get into the guest.
type UserPasswordAccessCredential struct {
	// Source is where the passwords come from.
	Source UserPasswordAccessCredentialSource `json:"source"`
	// PropagationMethod is how the passwords get into the guest.
	PropagationMethod UserPasswordAccessCredentialPropagationMethod `json:"propagationMethod"`
}

// UserPasswordAccessCredentialSource is where passwords come from.
type UserPasswordAccessCredentialSource struct {
	// Secret holds the passwords. The name of an entry is a user's in the guest, its value the
	// password, at most 512 bytes. Blanks around a password do not count; an empty one is left
	// out.
	// +optional
	Secret *AccessCredentialSecretSource `json:"secret,omitempty"`
}

// UserPasswordAccessCredentialPropagationMethod is how passwords get into the guest.
type UserPasswordAccessCredentialPropagationMethod struct {
	// QemuGuestAgent has the guest agent set the passwords, again when the Secret changes, and
	// every 5 minutes: as in KubeVirt, a password that a user changes in the guest does not
	// stay.
	// +optional
	QemuGuestAgent *QemuGuestAgentUserPasswordAccessCredentialPropagation `json:"qemuGuestAgent,omitempty"`
}

// QemuGuestAgentUserPasswordAccessCredentialPropagation has no settings.
type QemuGuestAgentUserPasswordAccessCredentialPropagation struct{}

// Secret returns the Secret with the credential, or nil.
func (c *AccessCredential) Secret() *AccessCredentialSecretSource {
	switch {
	case c.SSHPublicKey != nil:
		return c.SSHPublicKey.Source.Secret
	case c.UserPassword != nil:
		return c.UserPassword.Source.Secret
	}
	return nil
}

// ByAgent reports whether the guest agent brings the credential into the guest.
func (c *AccessCredential) ByAgent() bool {
	return c.SSHPublicKey != nil && c.SSHPublicKey.PropagationMethod.QemuGuestAgent != nil ||
		c.UserPassword != nil && c.UserPassword.PropagationMethod.QemuGuestAgent != nil
}

// SeedCredentials returns the indices of the access credentials that go into a volume's cloud-init
// seed.
func (spec *VirtualMachineInstanceSpec) SeedCredentials(v *Volume) []int {
	var indices []int
	for i, c := range spec.AccessCredentials {
		if c.SSHPublicKey == nil || c.SSHPublicKey.Source.Secret == nil {
			continue
		}
		method := c.SSHPublicKey.PropagationMethod
		if method.NoCloud != nil && v.CloudInitNoCloud != nil || method.ConfigDrive != nil && v.CloudInitConfigDrive != nil {
			indices = append(indices, i)
		}
	}
	return indices
}
