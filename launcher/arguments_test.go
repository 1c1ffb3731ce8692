package launcher

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/process"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestArgumentsAreThoseOfQEMUsProcess: the launcher answers with the arguments that the kernel has, with the host that
// came with the start, and with the moment of which the clock tells.
func TestArgumentsAreThoseOfQEMUsProcess(t *testing.T) {
	t.Parallel()
	v := launch(t)
	err := v.call(control.CommandArguments, nil, nil)
	if err == nil || !strings.Contains(err.Error(), "no QEMU runs: the VM is waiting") {
		t.Errorf("before the start: %v", err)
	}
	const host = `{"accelerator":"tcg","qemuVersion":"11.1.3"}`
	v.request.Host, v.request.Machine.Clock.Offset = host, 3600
	report := v.boot()
	var got control.Arguments
	v.must(v.call(control.CommandArguments, nil, &got))
	want, err := process.Arguments(os.DirFS("/proc"), strconv.Itoa(report.QEMUPID))
	v.must(err)
	if !slices.Equal(append([]string{got.Program}, got.Arguments...), want) {
		t.Errorf("%+v, want %q", got, want)
	}
	machine := v.request.Machine
	machine.Clock.Start = got.ClockStart
	if !slices.Equal(got.Arguments, qemuargs.Strings(machine.Args())) {
		t.Errorf("with the clock at %d the machine has %q, and QEMU %q", got.ClockStart, machine.Args(), got.Arguments)
	}
	if string(got.Host) != host || got.ClockStart == 0 {
		t.Errorf("host %s, clock %d", got.Host, got.ClockStart)
	}
}

// TestHostOfAStartIsBounded: the launcher keeps no host that is too long, and none that it could not answer with.
func TestHostOfAStartIsBounded(t *testing.T) {
	long := `"` + strings.Repeat("x", control.MaxHostBytes-2) + `"`
	for host, want := range map[string]string{"": "", "{}": "", long: "", long + " ": "at most", "{": "no JSON"} {
		err := checkHost(host)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q", host, err, want)
		}
	}
}

// TestAnswerOfTooManyArgumentsIsAnError: virt-handler would end the connection of a launcher that sends more.
func TestAnswerOfTooManyArgumentsIsAnError(t *testing.T) {
	reply := control.Arguments{Program: "qemu", Arguments: []string{strings.Repeat("x", control.MaxArgumentsBytes-100)}}
	if data, err := bounded(reply); err != nil || len(data) > control.MaxArgumentsBytes {
		t.Errorf("%d bytes: %v", len(data), err)
	}
	reply.Arguments = append(reply.Arguments, strings.Repeat("y", 100))
	if data, err := bounded(reply); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("%d bytes: %v", len(data), err)
	}
}
