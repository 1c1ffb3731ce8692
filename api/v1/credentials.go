package v1

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// AccessCredential is a way into the guest: exactly one of its fields is set.
type AccessCredential struct {
	// SSHPublicKey are keys whose owners may log in by SSH.
	// +optional
	SSHPublicKey *SSHPublicKeyAccessCredential `json:"sshPublicKey,omitempty"`
	// UserPassword is refused: not supported yet.
	// +optional
	UserPassword *Unsupported `json:"userPassword,omitempty"`
}

// SSHPublicKeyAccessCredential are SSH keys, and how the guest comes by them.
type SSHPublicKeyAccessCredential struct {
	// Source is where the keys come from.
	Source SSHPublicKeyAccessCredentialSource `json:"source"`
	// PropagationMethod is how the guest comes by them: exactly one.
	PropagationMethod SSHPublicKeyAccessCredentialPropagationMethod `json:"propagationMethod"`
}

// SSHPublicKeyAccessCredentialSource is where SSH keys come from.
type SSHPublicKeyAccessCredentialSource struct {
	// Secret holds the keys: in each of its entries one or more, a line each.
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

// SSHPublicKeyAccessCredentialPropagationMethod is how the guest comes by SSH
// keys.
type SSHPublicKeyAccessCredentialPropagationMethod struct {
	// ConfigDrive puts them into the metadata of the volumes cloudInitConfigDrive,
	// of which there must be one: cloud-init gives them to its default user. They
	// are those of the time when the guest is started.
	// +optional
	ConfigDrive *ConfigDriveSSHPublicKeyAccessCredentialPropagation `json:"configDrive,omitempty"`
	// NoCloud does the same with the volumes cloudInitNoCloud.
	// +optional
	NoCloud *NoCloudSSHPublicKeyAccessCredentialPropagation `json:"noCloud,omitempty"`
	// QemuGuestAgent is refused: not supported yet.
	// +optional
	QemuGuestAgent *Unsupported `json:"qemuGuestAgent,omitempty"`
}

// ConfigDriveSSHPublicKeyAccessCredentialPropagation has no settings.
type ConfigDriveSSHPublicKeyAccessCredentialPropagation struct{}

// NoCloudSSHPublicKeyAccessCredentialPropagation has no settings.
type NoCloudSSHPublicKeyAccessCredentialPropagation struct{}

// SeedCredentials are the indices of those access credentials that go into a
// volume's cloud-init seed.
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
			errs = append(errs, c.SSHPublicKey.validate(spec.Volumes, p.Child("sshPublicKey"))...)
		}
		if c.UserPassword != nil {
			kinds++
		}
		if kinds != 1 {
			errs = append(errs, field.Invalid(p, "", p.String()+" must have exactly one access credential type set"))
		}
	}
	return errs
}

func (k *SSHPublicKeyAccessCredential) validate(volumes []Volume, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	source, method := path.Child("source"), path.Child("propagationMethod")
	switch s := k.Source.Secret; {
	case s == nil:
		errs = append(errs, field.Required(source, path.String()+" must have exactly one source set"))
	case s.SecretName == "":
		errs = append(errs, field.Required(source.Child("secret", "secretName"), "name the Secret"))
	}
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
	if k.PropagationMethod.QemuGuestAgent != nil {
		methods++
	}
	if methods != 1 {
		errs = append(errs, field.Invalid(method, "", path.String()+" must have exactly one propagationMethod set"))
	}
	return errs
}
