package e2e

import (
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// staticNetwork is network data without DHCP: the guest's address and gateway
// with masquerade. The first PCI Express device is the interface.
const staticNetwork = `
apiVersion: v1
kind: Secret
metadata: {name: network}
stringData:
  networkdata: |
    version: 2
    ethernets:
      enp1s0:
        dhcp4: false
        addresses: [10.0.2.2/24]
        gateway4: 10.0.2.1
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {mine: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGmXQ0pOzm1nU3vIYd9nLm2SJ7u7Jq0R4cQ2p8m5u0aB me@home"}
---
apiVersion: v1
kind: Secret
metadata: {name: passwords}
stringData: {root: of-the-secret}
`

// anotherKey is what the Secret of keys becomes.
const anotherKey = `
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {mine: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGmXQ0pOzm1nU3vIYd9nLm2SJ7u7Jq0R4cQ2p8m5u0aB me@work"}
`

// debianSpec has the key go into the seed and, by the agent, to the user demo, and
// the agent asked by probes. The guest boots slowly, its agent comes when its test
// has its turn, is stopped again, and its file systems are frozen for a while: the
// liveness probe has the patience.
const debianSpec = `  accessCredentials:
  - sshPublicKey: {source: {secret: {secretName: keys}}, propagationMethod: {noCloud: {}}}
  - sshPublicKey: {source: {secret: {secretName: keys}}, propagationMethod: {qemuGuestAgent: {users: [demo]}}}
  - userPassword: {source: {secret: {secretName: passwords}}, propagationMethod: {qemuGuestAgent: {}}}
  livenessProbe: {guestAgentPing: {}, initialDelaySeconds: 240, periodSeconds: 20, timeoutSeconds: 15, failureThreshold: 450}
  readinessProbe: {exec: {command: [/bin/grep, -q, debian, /etc/os-release]}, initialDelaySeconds: 20, periodSeconds: 20, timeoutSeconds: 15}
`

// TestDebian boots the demo's guest: systemd, cloud-init, login, shutdown. Its
// network data is in a Secret, and gives it a static address; so is an SSH key.
// Its agent comes later.
//
// It boots beside the tests that run one at a time, which leave much of the
// machine idle, and goes on among the parallel ones when its turn comes.
func TestDebian(t *testing.T) {
	ns := namespace(t)
	apply(t, ns, staticNetwork)
	sample, err := os.ReadFile("../../config/samples/vmi-debian.yaml")
	if err != nil {
		t.Fatal(err)
	}
	manifest := string(sample)
	for place, more := range map[string]string{
		"\nspec:\n":               debianSpec,
		"    cloudInitNoCloud:\n": "      networkDataSecretRef: {name: network}\n",
		// An emulated CPU takes long to find the primes of an RSA key. The other two take seconds, and nobody needs them here.
		"        ssh_pwauth: true\n": "        bootcmd: [systemctl mask --runtime --now qemu-guest-agent]\n        ssh_genkeytypes: [ed25519]\n" +
			"        ssh: {emit_keys_to_console: false}\n        grub_dpkg: {enabled: false}\n",
	} {
		if !strings.Contains(manifest, place) {
			t.Fatalf("the sample has no %q", place)
		}
		manifest = strings.Replace(manifest, place, place+more, 1)
	}
	// Two emulated CPUs that wait for each other take a quarter more of the node's time than one.
	manifest = strings.Replace(manifest, "cores: 2", "cores: 1", 1)
	apply(t, ns, manifest)
	v := vmi{t: t, namespace: ns, name: "debian"}
	v.await(v1.Running)
	log := v.log()
	t.Parallel()
	// On a busy machine an emulated Debian takes minutes for each of these.
	for _, stage := range []string{`running 'init-local'`, `running 'init'`, `Debian GNU/Linux 12 debian ttyS0`} {
		log.shows(stage)
	}
	console := v.console() // the log has whole lines only
	if err := poll(func() error {
		console.send("\n")
		if !strings.Contains(console.all(), "debian login: ") {
			return fmt.Errorf("no login after a return; the console is:\n%s", console.all())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	console.send("demo\n")
	console.expect(`Password: `)
	console.send("demo\n")
	console.expect(`demo@debian`)
	for _, ask := range []struct{ command, want string }{
		{"hostname", "debian"},
		{"ip -4 -o addr show scope global", " 10.0.2.2/24 "},
		// DHCP would have given it a lifetime.
		{"ip -4 -o addr show scope global permanent", " 10.0.2.2/24 "},
		{"ip -4 route show default", "via 10.0.2.1 "},
		// cloud-init writes its result at its end. Its own command for the wait is a Python program of 15 s of an emulated CPU.
		{"until [ -e /run/cloud-init/result.json ]; do sleep 1; done; cat /run/cloud-init/result.json", `"errors": []`},
		// The user data names no default user, so that it is root's.
		{"sudo cat /root/.ssh/authorized_keys", " me@home"},
		{"systemctl is-system-running --wait", "running"},
	} {
		if out, status := console.run(ask.command); status != 0 || !strings.Contains(out, ask.want) {
			t.Errorf("%s printed %q (%d), want %q", ask.command, out, status, ask.want)
		}
	}
	v.reportsMemory(mustScraper(t, readerAccount(t, ns)))

	debianAgentComes(v, console)
	debianCredentials(t, v, console)
	apply(t, ns, anotherKey)
	debianAgent(t, v, console)
	v.authorizes(console, " me@work", " me@home")

	v.delete()
	log.shows(`(?i)power down|powering off`)
	v.awaitEvents("Started", "Stopped")
	if message := v.event("Stopped"); !strings.Contains(message, "powered off after the ACPI power button") {
		t.Errorf("event Stopped says %q", message)
	}
}

// debianAgentComes has the guest, which booted without an agent, start one.
func debianAgentComes(v vmi, console *transcript) {
	v.awaitAgent(false)
	if ready := v.condition(v1.ConditionReady); ready.Status == "True" {
		v.t.Errorf("a probe by an agent that is not there succeeds: %+v", ready)
	}
	if out, status := console.run("sudo systemctl unmask --runtime qemu-guest-agent && sudo systemctl start qemu-guest-agent"); status != 0 {
		v.t.Fatalf("start the agent: %q (%d)", out, status)
	}
	v.awaitAgent(true)
}

// debianCredentials looks for what the guest's agent is to have brought into the
// guest, and for it where it must not be. The console is logged in.
func debianCredentials(t *testing.T, v vmi, console *transcript) {
	err := poll(func() error {
		s := v.get().Status
		credentials, ready := s.Condition(v1.ConditionAccessCredentialsSynchronized), s.Condition(v1.ConditionReady)
		if credentials == nil || credentials.Status != "True" || credentials.Message != "" || ready == nil || ready.Status != "True" {
			return fmt.Errorf("access credentials: %+v; ready: %+v", credentials, ready)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	v.awaitEvents("AccessCredentialsSyncSuccess")
	// The guest's console, which is in the log, has shown the key, and is to see the password.
	objects := kubectl(t, "-n", v.namespace, "get", "vmi,pods,events", "-o", "yaml")
	log := kubectl(t, "-n", v.namespace, "logs", v.pod().Name)
	for _, secret := range []string{"of-the-secret", base64.StdEncoding.EncodeToString([]byte("of-the-secret"))} {
		if strings.Contains(objects, secret) || strings.Contains(log, secret) {
			t.Errorf("%q is in the VMI, its pod, its log or its events", secret)
		}
	}
	if strings.Contains(objects, "AAAAC3NzaC1lZDI1NTE5") {
		t.Error("the key is in the VMI, its pod or its events")
	}
	v.authorizes(console, " me@home", " me@work")
	out, status := console.run(`sudo perl -e '$h = (getpwnam("root"))[1]; print crypt("of-the-secret", $h) eq $h ? "same" : "other", "\n"'`)
	if status != 0 || !strings.Contains(out, "same") {
		t.Errorf("the password of root is %q (%d)", out, status)
	}
}

// authorizes waits until the user of the console may log in with one key, and no
// longer with another. The kubelet looks at a Secret each minute or so, and at
// once when a pod that has it changes.
func (v vmi) authorizes(console *transcript, key, other string) {
	console.t.Helper()
	pod, asked := v.pod().Name, 0
	err := poll(func() error {
		asked++
		kubectl(v.t, "-n", v.namespace, "annotate", "--overwrite", "pod", pod, fmt.Sprintf("asked=%d", asked))
		out, _ := console.run("cat ~/.ssh/authorized_keys")
		if !strings.Contains(out, key) || strings.Contains(out, other) {
			return fmt.Errorf("authorized_keys is %q, want %q and not %q", out, key, other)
		}
		return nil
	})
	if err != nil {
		console.t.Error(err)
	}
}
