package node

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/handover"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// withCredentials returns a running VMI with a key by each method, and a password.
func withCredentials() *v1.VirtualMachineInstance {
	vmi := running()
	secret := &v1.AccessCredentialSecretSource{SecretName: "secret"}
	key := func(m v1.SSHPublicKeyAccessCredentialPropagationMethod) v1.AccessCredential {
		return v1.AccessCredential{SSHPublicKey: &v1.SSHPublicKeyAccessCredential{PropagationMethod: m, Source: v1.SSHPublicKeyAccessCredentialSource{Secret: secret}}}
	}
	vmi.Spec.AccessCredentials = []v1.AccessCredential{
		key(v1.SSHPublicKeyAccessCredentialPropagationMethod{NoCloud: &v1.NoCloudSSHPublicKeyAccessCredentialPropagation{}}),
		key(v1.SSHPublicKeyAccessCredentialPropagationMethod{QemuGuestAgent: &v1.QemuGuestAgentSSHPublicKeyAccessCredentialPropagation{Users: []string{"demo"}}}),
		{UserPassword: &v1.UserPasswordAccessCredential{Source: v1.UserPasswordAccessCredentialSource{Secret: secret},
			PropagationMethod: v1.UserPasswordAccessCredentialPropagationMethod{QemuGuestAgent: &v1.QemuGuestAgentUserPasswordAccessCredentialPropagation{}}}},
	}
	return vmi
}

func TestAgentCredentials(t *testing.T) {
	want := []control.AgentCredential{{Secret: 1, Users: []string{"demo"}}, {Secret: 2}}
	if diff := cmp.Diff(want, handover.AgentCredentials(withCredentials())); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := handover.AgentCredentials(running()); got != nil {
		t.Errorf("of a VMI without any: %v", got)
	}
}

// TestReportCredentials: the condition follows the launcher's word, with an event
// for each change of it.
func TestReportCredentials(t *testing.T) {
	recorder := events.NewFakeRecorder(10)
	r := &Reconciler{Events: recorder}
	vmi := withCredentials()
	for _, step := range []struct {
		name   string
		report *control.CredentialsReport
		status metav1.ConditionStatus
		event  string
	}{
		{"nothing known", nil, "", ""},
		{"no agent", &control.CredentialsReport{Message: "Guest agent is offline"}, "False", ""},
		{"again", &control.CredentialsReport{Message: "Guest agent is offline"}, "False", ""},
		{"launcher not on the line yet", nil, "False", ""},
		{"synchronized", &control.CredentialsReport{Synchronized: true}, "True", "Normal AccessCredentialsSyncSuccess Access credentials sync successful."},
		{"long", &control.CredentialsReport{Message: strings.Repeat("\x00<long", 10000)}, "False", "Warning AccessCredentialsSyncFailed Access credentials sync failed: <long<long"},
	} {
		before := vmi.DeepCopy()
		reportAgent(vmi, control.AgentReport{Credentials: step.report}, metav1.Unix(1000, 0))
		r.announce(before, vmi, nil)
		got := v1.VirtualMachineInstanceCondition{}
		if c := vmi.Status.Condition(v1.ConditionAccessCredentialsSynchronized); c != nil {
			got = *c
		}
		if got.Status != step.status || got.Reason != "" || len(got.Message) > maxMessage || got.Status == "True" && got.Message != "" {
			t.Errorf("%s: %+v", step.name, got)
		}
		said := ""
		select {
		case said = <-recorder.Events:
		default:
		}
		if !strings.HasPrefix(said, step.event) || step.event == "" && said != "" {
			t.Errorf("%s: the event is %q", step.name, said)
		}
	}
	other := running()
	reportAgent(other, control.AgentReport{Credentials: &control.CredentialsReport{Synchronized: true}}, metav1.Unix(1000, 0))
	if c := other.Status.Condition(v1.ConditionAccessCredentialsSynchronized); c != nil {
		t.Errorf("a VMI without any has %+v", c)
	}
}
