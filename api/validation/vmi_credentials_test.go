package validation

import (
	"slices"
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func TestValidateCredentials(t *testing.T) {
	type (
		key      = v1.SSHPublicKeyAccessCredential
		method   = v1.SSHPublicKeyAccessCredentialPropagationMethod
		password = v1.UserPasswordAccessCredential
	)
	secret := &v1.AccessCredentialSecretSource{SecretName: "secret"}
	keys := func(m method) *key {
		return &key{Source: v1.SSHPublicKeyAccessCredentialSource{Secret: secret}, PropagationMethod: m}
	}
	agent := func(users ...string) *v1.QemuGuestAgentSSHPublicKeyAccessCredentialPropagation {
		return &v1.QemuGuestAgentSSHPublicKeyAccessCredentialPropagation{Users: users}
	}
	passwords := func(secret *v1.AccessCredentialSecretSource) *password {
		p := &password{Source: v1.UserPasswordAccessCredentialSource{Secret: secret}}
		p.PropagationMethod.QemuGuestAgent = &v1.QemuGuestAgentUserPasswordAccessCredentialPropagation{}
		return p
	}
	noCloud := &v1.NoCloudSSHPublicKeyAccessCredentialPropagation{}
	with := func(k *key, p *password) func(*spec) {
		return func(s *spec) { s.AccessCredentials = []v1.AccessCredential{{SSHPublicKey: k, UserPassword: p}} }
	}
	const propagation = ".sshPublicKey.propagationMethod"
	const users = propagation + ".qemuGuestAgent.users"
	edits{
		"key in the seed": {with(keys(method{NoCloud: noCloud}), nil), ""},
		"key in a seed that is not there": {
			with(keys(method{ConfigDrive: &v1.ConfigDriveSSHPublicKeyAccessCredentialPropagation{}}), nil),
			propagation + ".configDrive"},
		"key for nobody": {with(keys(method{}), nil), propagation},
		"key of no Secret": {with(&key{PropagationMethod: method{NoCloud: noCloud}}, nil),
			".sshPublicKey.source"},
		"keys by the agent": {with(keys(method{QemuGuestAgent: agent("demo", "_apt", "pc$", "a@b.example",
			".x-y")}), nil), ""},
		"keys by the agent for nobody": {with(keys(method{QemuGuestAgent: agent()}), nil), users},
		"keys by the agent for no users": {with(keys(method{QemuGuestAgent: agent("demo", "a:b", "a\nb", "-x", "@a", "",
			"a/b", "a b", "ü", strings.Repeat("x", 65), "demo")}), nil),
			strings.Join([]string{users + "[10]", users + "[1]", users + "[2]", users + "[3]", users + "[4]", users + "[5]",
				users + "[6]", users + "[7]", users + "[8]", users + "[9]"}, " ")},
		"keys by the agent for too many": {with(keys(method{QemuGuestAgent: agent(slices.Repeat([]string{"x"}, 65)...)}),
			nil), users},
		"keys by two methods": {with(keys(method{QemuGuestAgent: agent("demo"), NoCloud: noCloud}), nil),
			propagation},
		"passwords":              {with(nil, passwords(secret)), ""},
		"passwords of no Secret": {with(nil, passwords(nil)), ".userPassword.source"},
		"passwords of a Secret without name": {with(nil, passwords(&v1.AccessCredentialSecretSource{})),
			".userPassword.source.secret.secretName"},
		"passwords for nobody": {with(nil,
			&password{Source: v1.UserPasswordAccessCredentialSource{Secret: secret}}), ".userPassword.propagationMethod"},
		"keys and passwords at once": {with(keys(method{QemuGuestAgent: agent("demo")}), passwords(secret)),
			"spec.accessCredentials[0]"},
		"no credential": {with(nil, nil), "spec.accessCredentials[0]"},
	}.try(t, "spec.accessCredentials[0]")
}
