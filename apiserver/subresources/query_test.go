package subresources

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestArgumentsNeedARunningQEMU: a VMI without one is a conflict, and the answer says what to do. A VMI that is not
// there is not found.
func TestArgumentsNeedARunningQEMU(t *testing.T) {
	for phase, want := range map[v1.VirtualMachineInstancePhase]string{v1.Running: "", v1.Pending: "wait for",
		v1.Scheduled: "wait for", v1.Succeeded: "it has ended", v1.Failed: "it has ended"} {
		var status apierrors.APIStatus
		err := runs(instanceIn(phase))
		conflict := errors.As(err, &status) && status.Status().Code == http.StatusConflict
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", phase, err)
		case want != "" && (!conflict || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want a conflict: %s", phase, err, want)
		}
	}
	s := serve(t)
	s.allowed = "virtualmachineinstances/qemuargs"
	// There is no virt-handler here.
	for name, want := range map[string]int{"none": http.StatusNotFound, "vm": http.StatusServiceUnavailable} {
		path := root + "/namespaces/ns/virtualmachineinstances/" + name + "/qemuargs"
		if code, status := s.ask(true, "ann", http.MethodGet, path, ""); code != want {
			t.Errorf("%s: %d %q, want %d", name, code, status.Message, want)
		}
	}
	s.allowed = "virtualmachineinstances/guestosinfo"
	path := root + "/namespaces/ns/virtualmachineinstances/vm/qemuargs"
	if code, _ := s.ask(true, "ann", http.MethodGet, path, ""); code != http.StatusForbidden {
		t.Errorf("without the right: %d", code)
	}
}

// TestArgumentsHoldTheKnownFieldsAlone: what a launcher adds to its answer does not reach the user, but below the host.
func TestArgumentsHoldTheKnownFieldsAlone(t *testing.T) {
	var document v1.VirtualMachineInstanceQEMUArguments
	said := `{"program":"qemu","more":{"a":1},"arguments":["-S","-m"],"clockStart":7,"host":{"accelerator":"tcg"}}`
	if err := json.Unmarshal([]byte(said), &document); err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(document)
	want := `{"program":"qemu","arguments":["-S","-m"],"clockStart":7,"host":{"accelerator":"tcg"}}`
	if err != nil || string(got) != want {
		t.Errorf("%s, %v", got, err)
	}
}
