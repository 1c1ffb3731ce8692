package subresources

import (
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestMigrateMakesAMigration: virtctl migrate makes a migration of the VM's guest.
func TestMigrateMakesAMigration(t *testing.T) {
	s := serve(t)
	s.allowed = "virtualmachines/migrate"
	const path = root + "/namespaces/ns/virtualmachines/vm/migrate"
	if code, _ := s.ask(true, "bob", http.MethodPut, path, "{}"); code != http.StatusForbidden || len(s.patches) > 0 {
		t.Errorf("a user without the right: %d, %v", code, s.patches)
	}
	if code, status := s.ask(true, "ann", http.MethodPut, path, "{}"); code != http.StatusNotFound || len(s.patches) > 0 {
		t.Errorf("a VMI that is not the VM's: %d %s, %v", code, status.Message, s.patches)
	}
	s.owned = true
	if code, status := s.ask(true, "ann", http.MethodPut, path, `{"addedNodeSelector":{"rack":"2"}}`); code != http.StatusAccepted {
		t.Errorf("%d %s", code, status.Message)
	}
	if code, status := s.ask(true, "ann", http.MethodPut, path, `{"dryRun":["All"]}`); code != http.StatusAccepted {
		t.Errorf("%d %s", code, status.Message)
	}
	if code, _ := s.ask(true, "ann", http.MethodPut, path, `{"dryRun":["Some"]}`); code != http.StatusBadRequest {
		t.Errorf("a strange dry run: %d", code)
	}
	s.alone = true
	if code, status := s.ask(true, "ann", http.MethodPut, path, `{}`); code != http.StatusConflict || !strings.Contains(status.Message, "there is no other node") {
		t.Errorf("on the only node: %d %s", code, status.Message)
	}
	if len(s.patches) != 2 {
		t.Fatalf("made %v", s.patches)
	}
	for i, parts := range [][]string{{`"generateName":"kubevirt-migrate-vm-"`, `"spec":{"vmiName":"vm","addedNodeSelector":{"rack":"2"}}`}, {`"spec":{"vmiName":"vm"}`, "?dryRun=All"}} {
		for _, part := range parts {
			if !strings.Contains(s.patches[i], part) {
				t.Errorf("made %s, want %s in it", s.patches[i], part)
			}
		}
	}
}

// TestMigrateRefusesGuestThatCannotMove: only a guest that runs, can move, and does not move yet is migrated.
func TestMigrateRefusesGuestThatCannotMove(t *testing.T) {
	for says, change := range map[string]func(*v1.VirtualMachineInstance){
		"":                   func(*v1.VirtualMachineInstance) {},
		"VM is not running":  func(vmi *v1.VirtualMachineInstance) { vmi.Status.Phase = v1.Scheduled },
		"VM is not running ": func(vmi *v1.VirtualMachineInstance) { vmi.DeletionTimestamp = &metav1.Time{} },
		"bridged": func(vmi *v1.VirtualMachineInstance) {
			vmi.Spec.Domain.Devices.Interfaces = []v1.Interface{{Bridge: &v1.InterfaceBridge{}}}
		},
		"Active migration job (m) is": func(vmi *v1.VirtualMachineInstance) {
			vmi.Status.MigrationState = &v1.VirtualMachineInstanceMigrationState{MigrationUID: "m"}
		},
	} {
		vmi := &v1.VirtualMachineInstance{}
		vmi.Status.Phase = v1.Running
		change(vmi)
		if got := notNow(vmi); (got == "") != (says == "") || !strings.Contains(got, strings.TrimSpace(says)) {
			t.Errorf("%q, want %q", got, says)
		}
	}
}
