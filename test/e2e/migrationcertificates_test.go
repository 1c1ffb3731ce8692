package e2e

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/certificates"
	"github.com/kubeqemu/kubeqemu/internal/authority"
	"github.com/kubeqemu/kubeqemu/internal/authority/authoritytest"
)

// forged is a certificate that virt-handler gets in place of what it has asked for.
type forged struct {
	by   authority.CAs
	role authority.Role
}

// handlersCAs are the cluster's, with their keys.
func handlersCAs(t *testing.T) authority.CAs {
	t.Helper()
	held := get[corev1.Secret](t, "-n", "kubevirt", "secret", certificates.CAName).Data
	cas, err := authority.Parse(held["ca.crt"], held["ca.key"])
	if err != nil {
		t.Fatal(err)
	}
	return cas
}

// restartHandler ends a node's virt-handler, and waits for the next one's pod.
func restartHandler(t *testing.T, node string) (ready func()) {
	t.Helper()
	old := handlerOn(t, node)
	kubectl(t, "-n", "kubevirt", "delete", "pod", old.Name, "--timeout=600s")
	return func() {
		t.Helper()
		err := poll(func() error {
			for _, p := range get[corev1.PodList](t, "-n", "kubevirt", "pods", "-l", "kubevirt.io=virt-handler").Items {
				for _, c := range p.Status.Conditions {
					if p.Spec.NodeName == node && p.UID != old.UID && c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
						return nil
					}
				}
			}
			return fmt.Errorf("the next virt-handler of node %s is not ready", node)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// forge has a node's next virt-handler get forged certificates: the test answers its requests, in place of virt-controller.
func forge(t *testing.T, node string, answers map[authority.Role]forged) {
	t.Helper()
	kubectl(t, "taint", "node", secondName, notYet+"=:NoSchedule")
	defer kubectl(t, "taint", "node", secondName, notYet+"-")
	start := stopController(t)
	defer start()
	ready := restartHandler(t, node)
	left := len(answers)
	err := poll(func() error {
		for _, csr := range get[certificatesv1.CertificateSigningRequestList](t, "csr").Items {
			if csr.Spec.Username == certificates.Requester && len(csr.Status.Conditions) == 0 && answerRequest(t, csr, node, answers) {
				left--
			}
		}
		if left > 0 {
			return fmt.Errorf("virt-handler of node %s has not made %d of its requests", node, left)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ready()
}

// answerRequest answers a request of a node.
func answerRequest(t *testing.T, csr certificatesv1.CertificateSigningRequest, node string, answers map[authority.Role]forged) bool {
	t.Helper()
	block, _ := pem.Decode(csr.Spec.Request)
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	asked := request.Subject
	if asked.CommonName != node || len(asked.Organization) != 1 {
		return false
	}
	answer := answers[authority.Role(asked.Organization[0])]
	asked.Organization = []string{string(answer.role)}
	der, err := answer.by.Issue(&x509.Certificate{Subject: asked, DNSNames: request.DNSNames, ExtKeyUsage: []x509.ExtKeyUsage{answer.role.ExtUsage()}}, request.PublicKey, 0, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: authority.CertificateBlock, Bytes: der})
	kubectl(t, "certificate", "approve", csr.Name)
	kubectl(t, "patch", "csr", csr.Name, "--subresource=status", "--type=merge", "--patch", fmt.Sprintf(`{"status":{"certificate":%q}}`, base64.StdEncoding.EncodeToString(text)))
	return true
}

// counts has the guest count in its memory.
const counts = `mkdir -p /tmp; (i=0; while :; do i=$((i+1)); echo $i >/tmp/next; mv /tmp/next /tmp/count; usleep 200000; done) & echo started`

// TestMigrationCertificates: a virt-handler whose certificate is of another CA, or of another role, neither sends guests nor receives any. The guests go on
// where they are, and move as soon as virt-handler has the right certificates.
func TestMigrationCertificates(t *testing.T) {
	newSecondNode(t)
	others := authoritytest.New(t, "virt-handler").CAs
	t.Cleanup(func() { output("", "kubectl", "uncordon", firstName, secondName) })
	guests, uids := map[string]vm{}, map[string]types.UID{}
	for away, here := range map[string]string{firstName: secondName, secondName: firstName} {
		kubectl(t, "cordon", away)
		m := createVM(t, namespace(t), "begins-on-"+here, v1.RunStrategyAlways, offline)
		uids[m.name] = m.runs("")
		kubectl(t, "uncordon", away)
		m.in(m.shell(), counts)
		guests[here] = m
	}
	ours := handlersCAs(t)
	for _, round := range []struct {
		name           string
		client, server forged // of the first node's virt-handler
		leaves, comes  string // why no guest leaves the first node, and why none comes there
	}{
		{"ca-and-role", forged{others, authority.HandlerClient}, forged{ours, authority.HandlerClient}, "certificate is of another CA or of another role", "incompatible key usage"},
		{"role-and-ca", forged{ours, authority.HandlerServer}, forged{others, authority.HandlerServer}, "certificate is of another CA or of another role", "unknown authority"},
	} {
		before := map[string]int{}
		for node, m := range guests {
			before[node] = m.count()
		}
		forge(t, firstName, map[authority.Role]forged{authority.HandlerClient: round.client, authority.HandlerServer: round.server})
		t.Cleanup(func() {
			if t.Failed() {
				restartHandler(t, firstName)()
			}
		})
		for node, under := range begin(guests, round.name) {
			why := under.ends(v1.MigrationFailed).FailureReason
			want := map[string]string{firstName: round.leaves, secondName: round.comes}[node]
			t.Logf("from %s: %q", node, why)
			if !strings.Contains(why, want) {
				t.Errorf("the guest stays on %s because %q, want %q", node, why, want)
			}
			m := guests[node]
			m.endsOnce(moving{vm: m, migration: under}, v1.MigrationFailed, guestsOn(t, m.get().Spec.Domain.Firmware.UUID))
			if now := m.get().Status.NodeName; now != node {
				t.Errorf("the guest is on %s, and was on %s", now, node)
			}
		}
		restartHandler(t, firstName)()
		for node, under := range begin(guests, round.name+"-again") {
			under.ends(v1.MigrationSucceeded)
			// It counts five times a second, and the first migration took 20 s.
			if now := guests[node].count(); now < before[node]+20 {
				t.Errorf("the guest counted to %d, and now is at %d only", before[node], now)
			}
		}
		guests[firstName], guests[secondName] = guests[secondName], guests[firstName]
	}
	for _, m := range guests {
		if m.uid() != uids[m.name] {
			t.Errorf("the guest of %s was restarted", m.name)
		}
	}
}

// begin begins a migration of each guest.
func begin(guests map[string]vm, name string) map[string]migration {
	out := map[string]migration{}
	for node, m := range guests {
		out[node] = m.migrate(name+"-"+m.name, nil)
	}
	return out
}

// count is what the guest has counted to.
func (m vm) count() int {
	m.t.Helper()
	return int(seconds(m.t, m.in(m.shell(), "cat /tmp/count")))
}
