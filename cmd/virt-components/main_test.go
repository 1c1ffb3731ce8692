package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/kvmcheck"
)

// TestMain is the program, where a test starts it as that.
func TestMain(m *testing.M) {
	if name := os.Getenv("TEST_PROGRAM"); name != "" {
		os.Exit(run(append([]string{name}, os.Args[1:]...)))
	}
	os.Exit(m.Run())
}

// TestProgramActsByTheNameItIsCalledBy: the program does what the name says by which it is called, or else its first argument.
func TestProgramActsByTheNameItIsCalledBy(t *testing.T) {
	for name, tt := range map[string]struct {
		args   []string // with the program's name
		status int
		says   string
	}{
		"by its name":             {[]string{"/usr/bin/virt-api", "--help"}, 0, "Usage of virt-api:"},
		"by its argument":         {[]string{"virt-components", "virt-controller", "--help"}, 0, "Usage of virt-controller:"},
		"the name counts first":   {[]string{"virt-handler", "virt-api"}, 2, `virt-handler: unexpected argument "virt-api"`},
		"left over":               {[]string{"virt-controller", "now"}, 2, `virt-controller: unexpected argument "now"`},
		"an unknown flag":         {[]string{"virt-handler", "--nothing"}, 2, "Usage of virt-handler:"},
		"nothing":                 {[]string{"virt-components"}, 2, "components: virt-api, virt-controller, virt-handler;"},
		"unknown":                 {[]string{"virt-components", "virt-launcher"}, 2, "usage: virt-components"},
		"a path as an argument":   {[]string{"virt-components", "/x/virt-api", "--help"}, 2, "usage: virt-components"},
		"virt-controller's needs": {[]string{"virt-controller"}, 1, "--launcher-image is required"},
	} {
		cmd := exec.Command(os.Args[0], tt.args[1:]...)
		cmd.Env = append(os.Environ(), "TEST_PROGRAM="+tt.args[0])
		out, _ := cmd.CombinedOutput()
		if status := cmd.ProcessState.ExitCode(); status != tt.status || !strings.Contains(string(out), tt.says) {
			t.Errorf("%s: exit status %d, want %d; want %q in\n%s", name, status, tt.status, tt.says, out)
		}
	}
}

// TestKVMCheckIsInTheSameProgram: virt-handler finds KVM's check in its own program.
func TestKVMCheckIsInTheSameProgram(t *testing.T) {
	t.Setenv("TEST_PROGRAM", "exe") // as /proc/self/exe is called
	if got := (kvmcheck.Checker{}).Run(t.Context()); got.Verdict == kvmcheck.Unknown || got.Reason == "" && got.Verdict != kvmcheck.Works {
		t.Errorf("the check says %+v", got)
	}
}
