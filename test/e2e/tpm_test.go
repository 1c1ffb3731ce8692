package e2e

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/launcher/launchertest"
)

func withTPM(tpm v1.TPMDevice) func(*v1.VirtualMachineInstanceSpec) {
	return func(s *v1.VirtualMachineInstanceSpec) { s.Domain.Devices.TPM = &tpm }
}

// measured is what a digest makes of a PCR of zeros, as Linux shows it.
func measured(digest [32]byte) string {
	return fmt.Sprintf("%X", sha256.Sum256(append(make([]byte, 32), digest[:]...)))
}

const (
	tpmFiles = "/sys/class/tpm/tpm0/"
	pcr23    = "cat " + tpmFiles + "pcr-sha256/23"
)

// useTPM extends PCR 23 by a digest and keeps a text in a new NV index.
func useTPM(t *testing.T, run func(string) string, digest [32]byte, text string) {
	t.Helper()
	if got := run("cat " + tpmFiles + "tpm_version_major"); !strings.Contains(got, "2") {
		t.Fatalf("the guest has a TPM of version %q", got)
	}
	for _, command := range []string{launchertest.ExtendPCR(23, digest), launchertest.DefineNV(), launchertest.WriteNV([8]byte([]byte(text)))} {
		if got := run(command); !strings.Contains(got, "8002") || strings.Contains(got, "8001") {
			t.Fatalf("the TPM refuses a command: %q", got)
		}
	}
	if got := run(pcr23); !strings.Contains(got, measured(digest)) {
		t.Errorf("PCR 23 is %q, want %s", got, measured(digest))
	}
}

// keptByTPM says whether the NV index holds the text.
func keptByTPM(run func(string) string, text string) bool {
	return strings.Contains(run(launchertest.ReadNV()), fmt.Sprintf("%x", text))
}

// TestTPM: a guest finds a TPM 2.0 in which UEFI has measured its start. A PCR that the guest extends lasts until its reboot, an NV index until its VMI ends.
func TestTPM(t *testing.T) {
	t.Parallel()
	m := createVM(t, namespace(t), "tpm", v1.RunStrategyAlways, uefi(v1.EFI{SecureBoot: new(bool)}), withTPM(v1.TPMDevice{}))
	first := m.runs("")
	log := m.log()
	log.expect("tiny: up")
	run := m.runner()
	if got := run("cat " + tpmFiles + "pcr-sha256/0"); strings.Contains(got, strings.Repeat("0", 64)) {
		t.Errorf("UEFI has measured nothing: %q", got)
	}
	digest := sha256.Sum256([]byte("this guest"))
	useTPM(t, run, digest, "eightchr")
	m.reboot(log)
	run = m.runner()
	if got := run(pcr23); !strings.Contains(got, strings.Repeat("0", 64)) {
		t.Errorf("after the reboot PCR 23 is %q", got)
	}
	if !keptByTPM(run, "eightchr") {
		t.Error("after the reboot the NV index has lost its text")
	}
	m.asks(stopIt(first), startIt)
	m.runs(first)
	m.log().expect("tiny: up")
	if run = m.runner(); keptByTPM(run, "eightchr") {
		t.Error("the next VMI has the TPM of the one before")
	}
}

// TestTPMPersistent: an NV index outlives the VMI, on the claim that the UEFI variables are on too. The next VMI's PCRs begin anew.
func TestTPMPersistent(t *testing.T) {
	ns := namespace(t)
	c := provision(t, ns)
	configure(t, `{"vmStateStorageClass":"e2e-dynamic"}`, `{"vmStateStorageClass":null}`)
	m := createVM(t, ns, "tpm", v1.RunStrategyManual, uefi(v1.EFI{SecureBoot: new(bool), Persistent: ptr.To(true)}), withTPM(v1.TPMDevice{Persistent: ptr.To(true)}))
	m.asks(startIt)
	first := m.runs("")
	m.log().expect("tiny: up")
	digest := sha256.Sum256([]byte("this guest"))
	useTPM(t, m.runner(), digest, "eightchr")
	m.asks(stopIt(first), startIt)
	second := m.runs(first)
	m.log().expect("tiny: up")
	run := m.runner()
	if !keptByTPM(run, "eightchr") {
		t.Error("the next VMI's TPM has lost the NV index")
	}
	if got := run(pcr23); !strings.Contains(got, strings.Repeat("0", 64)) {
		t.Errorf("the next VMI's PCR 23 is %q", got)
	}
	m.asks(stopIt(second))
	m.is(v1.VirtualMachineStatusStopped)
	claims, err := m.stateClaims()
	if err != nil || len(claims) != 1 {
		t.Fatalf("%d claims (%v)", len(claims), err)
	}
	file := c.nodeFolder(string(claims[0].UID)) + "/tpm/1/tpm2-00.permall"
	if out, err := onNodeNamed(claims[0].Annotations[selectedNode], `truncate -s 100 "$1"`, file); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	m.asks(startIt)
	if err := poll(func() error {
		now, err := m.instance()
		if err != nil {
			return err
		}
		if r := now.Status.Condition(v1.ConditionReady); r == nil || !strings.Contains(r.Message, "/tpm/1/tpm2-00.permall: it has 100 bytes") {
			return fmt.Errorf("with a broken TPM in the claim: %s, %+v", now.Status.Phase, r)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestMigrationTPM: a guest takes its TPM's PCRs and NV indices to another node.
func TestMigrationTPM(t *testing.T) {
	newSecondNode(t)
	moveTPM(t, createVM(t, namespace(t), "tpm", v1.RunStrategyAlways, uefi(v1.EFI{SecureBoot: new(bool)}), withTPM(v1.TPMDevice{})))
}

// moveTPM has a VM's guest use its TPM and move.
func moveTPM(t *testing.T, m vm) {
	t.Helper()
	m.runs("")
	m.log().expect("tiny: up")
	run := m.runner()
	digest := sha256.Sum256([]byte("this guest"))
	useTPM(t, run, digest, "eightchr")
	m.canMove()
	source := m.get().Status.NodeName
	m.migrate("move", nil).ends(v1.MigrationSucceeded)
	if target := m.get().Status.NodeName; target == source {
		t.Fatalf("the guest is on %s still", target)
	}
	run = m.runner()
	if got := run(pcr23); !strings.Contains(got, measured(digest)) {
		t.Errorf("after the migration PCR 23 is %q, want %s", got, measured(digest))
	}
	if !keptByTPM(run, "eightchr") {
		t.Error("after the migration the NV index has lost its text")
	}
}

// TestMigrationTPMPersistent: a guest whose TPM is on a claim moves, and the VM's next start finds the TPM.
func TestMigrationTPMPersistent(t *testing.T) {
	newSecondNode(t)
	for _, class := range stateStorage {
		t.Run(class, func(t *testing.T) { migrateTPM(t, class) })
	}
}

func migrateTPM(t *testing.T, class string) {
	ns := namespace(t)
	storeState(t, ns, class)
	m := createVM(t, ns, "tpm", v1.RunStrategyAlways, uefi(v1.EFI{SecureBoot: new(bool)}), withTPM(v1.TPMDevice{Persistent: ptr.To(true)}))
	first := m.runs("")
	claim := m.stateClaim()
	moveTPM(t, m)
	m.stateMoved(claim, class)
	if got := m.runner()(launchertest.WriteNV([8]byte([]byte("atTarget")))); !strings.Contains(got, "8002") {
		t.Errorf("the TPM refuses to write: %q", got)
	}
	m.asks(stopIt(first), startIt)
	m.runs(first)
	m.log().expect("tiny: up")
	if !keptByTPM(m.runner(), "atTarget") {
		t.Error("after migration and restart the NV index has lost its text")
	}
}
