package validation

import (
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func validateAccessCredentials(spec *v1.VirtualMachineInstanceSpec, path *field.Path) field.ErrorList {
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

func validateSSHPublicKey(k *v1.SSHPublicKeyAccessCredential, volumes []v1.Volume, path *field.Path) field.ErrorList {
	errs := validateCredentialSecret(k.Source.Secret, path)
	method := path.Child("propagationMethod")
	methods := 0
	if k.PropagationMethod.NoCloud != nil {
		methods++
		if !slices.ContainsFunc(volumes, func(v v1.Volume) bool { return v.CloudInitNoCloud != nil }) {
			errs = append(errs, field.Invalid(method.Child("noCloud"), "",
				path.String()+" requires a noCloud volume to exist when the noCloud propagationMethod is in use."))
		}
	}
	if k.PropagationMethod.ConfigDrive != nil {
		methods++
		if !slices.ContainsFunc(volumes, func(v v1.Volume) bool { return v.CloudInitConfigDrive != nil }) {
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

func validateUserPassword(p *v1.UserPasswordAccessCredential, path *field.Path) field.ErrorList {
	errs := validateCredentialSecret(p.Source.Secret, path)
	if p.PropagationMethod.QemuGuestAgent == nil {
		errs = append(errs, field.Invalid(path.Child("propagationMethod"), "",
			path.String()+" must have exactly one propagationMethod set"))
	}
	return errs
}

// validateCredentialSecret checks the source of the credential at path.
func validateCredentialSecret(s *v1.AccessCredentialSecretSource, path *field.Path) field.ErrorList {
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
		errs = append(errs, field.Required(path,
			credential.String()+" requires at least one user to be present in the users list"))
	case len(users) > maxGuestUsers:
		return field.ErrorList{field.TooMany(path, len(users), maxGuestUsers)}
	}
	for i, name := range users {
		switch {
		case len(name) > maxGuestUserName:
			errs = append(errs, field.TooLong(path.Index(i), "", maxGuestUserName))
		case !guestUser.MatchString(name):
			errs = append(errs, field.Invalid(path.Index(i), name,
				"no name of a user: letters, digits and _ . - @ $, of which the last three do not begin it"))
		case slices.Contains(users[:i], name):
			errs = append(errs, field.Duplicate(path.Index(i), name))
		}
	}
	return errs
}
