package testkit

import (
	"os"
	"testing"
)

// everything is the variable of the environment by which make test demands that tests are skipped for nothing that a command makes.
const everything = "KUBEQEMU_TEST_EVERYTHING"

// Lacks skips the test, which needs what a fresh clone or an ordinary user lacks, and names the command that gives it.
// In make test, which gives everything, it fails the test. err says what was not found, and may be nil.
func Lacks(t testing.TB, what, command string, err error) {
	t.Helper()
	if os.Getenv(everything) != "" {
		t.Fatalf("the test needs %s (%s): %v", what, command, err)
		return
	}
	t.Skipf("SKIPPED: the test needs %s (%s): %v", what, command, err)
}
