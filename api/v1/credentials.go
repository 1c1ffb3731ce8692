package v1

import (
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

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

// Secret is the Secret with the credential, or nil.
func (c *AccessCredential) Secret() *AccessCredentialSecretSource {
	switch {
	case c.SSHPublicKey != nil:
		return c.SSHPublicKey.Source.Secret
	case c.UserPassword != nil:
		return c.UserPassword.Source.Secret
	}
	return nil
}

// ByAgent says whether the guest agent brings the credential into the guest.
func (c *AccessCredential) ByAgent() bool {
	return c.SSHPublicKey != nil && c.SSHPublicKey.PropagationMethod.QemuGuestAgent != nil ||
		c.UserPassword != nil && c.UserPassword.PropagationMethod.QemuGuestAgent != nil
}

// SeedCredentials are the indices of the access credentials that go into a volume's cloud-init
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

func validateAccessCredentials(spec *VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, c := range spec.AccessCredentials {
		p := path.Index(i)
		kinds := 0
		if c.SSHPublicKey != nil {
			kinds++
			errs = append(errs, validateSSHPublicKey(c.SSHPublicKey, spec.Volumes, p.Child("sshPublicKey"))...)
		}
		if c.UserPassword != nil {
			kinds++
			errs = append(errs, validateUserPassword(c.UserPassword, p.Child("userPassword"))...)
		}
		if kinds != 1 {
			errs = append(errs, field.Invalid(p, "", p.String()+" must have exactly one access credential type set"))
		}
	}
	return errs
}

func validateSSHPublicKey(k *SSHPublicKeyAccessCredential, volumes []Volume, path *field.Path) field.ErrorList {
	errs := validateCredentialSecret(k.Source.Secret, path)
	method := path.Child("propagationMethod")
	methods := 0
	if k.PropagationMethod.NoCloud != nil {
		methods++
		if !slices.ContainsFunc(volumes, func(v Volume) bool { return v.CloudInitNoCloud != nil }) {
			errs = append(errs, field.Invalid(method.Child("noCloud"), "",
				path.String()+" requires a noCloud volume to exist when the noCloud propagationMethod is in use."))
		}
	}
	if k.PropagationMethod.ConfigDrive != nil {
		methods++
		if !slices.ContainsFunc(volumes, func(v Volume) bool { return v.CloudInitConfigDrive != nil }) {
			errs = append(errs, field.Invalid(method.Child("configDrive"), "",
				path.String()+" requires a configDrive volume to exist when the configDrive propagationMethod is in use."))
		}
	}
	if agent := k.PropagationMethod.QemuGuestAgent; agent != nil {
		methods++
		errs = append(errs, validateGuestUsers(agent.Users, path, method.Child("qemuGuestAgent", "users"))...)
	}
	if methods != 1 {
		errs = append(errs, field.Invalid(method, "", path.String()+" must have exactly one propagationMethod set"))
	}
	return errs
}

func validateUserPassword(p *UserPasswordAccessCredential, path *field.Path) field.ErrorList {
	errs := validateCredentialSecret(p.Source.Secret, path)
	if p.PropagationMethod.QemuGuestAgent == nil {
		errs = append(errs, field.Invalid(path.Child("propagationMethod"), "", path.String()+" must have exactly one propagationMethod set"))
	}
	return errs
}

// validateCredentialSecret checks the source of the credential at path.
func validateCredentialSecret(s *AccessCredentialSecretSource, path *field.Path) field.ErrorList {
	source := path.Child("source")
	switch {
	case s == nil:
		return field.ErrorList{field.Required(source, path.String()+" must have exactly one source set")}
	case s.SecretName == "":
		return field.ErrorList{field.Required(source.Child("secret", "secretName"), "name the Secret")}
	}
	return nil
}

const (
	maxGuestUsers    = 64
	maxGuestUserName = 64
)

// guestUser matches what the guest's tools accept as a user's name: no colon, line or option.
var guestUser = regexp.MustCompile(`^[A-Za-z0-9_.][-A-Za-z0-9_.@$]*$`)

func validateGuestUsers(users []string, credential, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case len(users) == 0:
		errs = append(errs, field.Required(path, credential.String()+" requires at least one user to be present in the users list"))
	case len(users) > maxGuestUsers:
		return field.ErrorList{field.TooMany(path, len(users), maxGuestUsers)}
	}
	for i, name := range users {
		switch {
		case len(name) > maxGuestUserName:
			errs = append(errs, field.TooLong(path.Index(i), "", maxGuestUserName))
		case !guestUser.MatchString(name):
			errs = append(errs, field.Invalid(path.Index(i), name, "no name of a user: letters, digits and _ . - @ $, of which the last three do not begin it"))
		case slices.Contains(users[:i], name):
			errs = append(errs, field.Duplicate(path.Index(i), name))
		}
	}
	return errs
}
