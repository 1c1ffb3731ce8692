package resolve

import (
	"strings"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs"
)

// TestTargetHasNativeIOIfItHasRoom: a target has native I/O if it has room for it, and threads otherwise, unless the disk asks for
// what the target has not.
func TestTargetHasNativeIOIfItHasRoom(t *testing.T) {
	for name, tt := range map[string]struct {
		asked v1.DriverIO
		had   qemuargs.AIO
		facts qemuargs.AIOFacts
		want  qemuargs.AIO
		fails string
	}{
		"native by itself":             {"", qemuargs.Native, qemuargs.AIOFacts{Native: true}, qemuargs.Native, ""},
		"no room":                      {"", qemuargs.Native, qemuargs.AIOFacts{}, "", ""},
		"native asked for":             {v1.IONative, qemuargs.Native, qemuargs.AIOFacts{Native: true}, qemuargs.Native, ""},
		"native asked for and no room": {v1.IONative, qemuargs.Native, qemuargs.AIOFacts{}, "", "fs.aio-max-nr"},
		"io_uring":                     {v1.IOURing, qemuargs.IOURing, qemuargs.AIOFacts{IOURing: true}, qemuargs.IOURing, ""},
		"io_uring denied":              {v1.IOURing, qemuargs.IOURing, qemuargs.AIOFacts{Native: true}, "", "io_uring"},
		"threads":                      {v1.IOThreads, qemuargs.Threads, qemuargs.AIOFacts{}, qemuargs.Threads, ""},
	} {
		t.Run(name, func(t *testing.T) {
			vmi, host := load(t, "testdata/machines/minimal", hosts[1])
			machine, errs := Machine(vmi, host)
			if len(errs) > 0 {
				t.Fatal(errs.ToAggregate())
			}
			vmi.Spec.Domain.Devices.Disks[0].IO, machine.Disks[0].AIO, host.AIO = tt.asked, tt.had, tt.facts
			got, err := Arrival(vmi, Origin{Machine: *machine, QEMUVersion: host.QEMUVersion}, host)
			switch {
			case tt.fails != "":
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Errorf("%v, want an error about %s", err, tt.fails)
				}
			case err != nil:
				t.Error(err)
			case got.Disks[0].AIO != tt.want || machine.Disks[0].AIO != tt.had:
				t.Errorf("%q, want %q; the source has %q", got.Disks[0].AIO, tt.want, machine.Disks[0].AIO)
			}
		})
	}
}
