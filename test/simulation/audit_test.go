package simulation

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAuditLineIsAWriteOfItsUser: a line is a write of whom it was done for. What was refused or only tried is
// none, and a line that is not complete yet comes with the next call.
func TestAuditLineIsAWriteOfItsUser(t *testing.T) {
	const created = `{"stage":"ResponseComplete","requestURI":"/api/v1/namespaces/default/pods","verb":"create","user":{"username":"admin"},` +
		`"impersonatedUser":{"username":"system:serviceaccount:kubevirt:virt-controller"},"objectRef":{"resource":"pods","namespace":"default","name":"virt-launcher-a-1"},` +
		`"responseStatus":{"code":201},"stageTimestamp":"2026-11-23T04:00:00.250000Z"}` + "\n"
	status := strings.NewReplacer(`"create"`, `"patch"`, `"name":`, `"subresource":"status","name":`, "201", "200").Replace(created)
	refused := strings.Replace(status, "200", "409", 1)
	tried := strings.Replace(created, "/pods", "/pods?dryRun=All", 1)
	own := strings.Replace(created, `"impersonatedUser"`, `"other"`, 1)
	a := &Audit{path: filepath.Join(t.TempDir(), "audit.log")}
	appendLog := func(text string) {
		t.Helper()
		f, err := os.OpenFile(a.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
			f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	next := func() (all []string) {
		t.Helper()
		writes, err := a.Next()
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range writes {
			if w.Namespace != "default" || w.Name != "virt-launcher-a-1" || w.At.Nanosecond() != 250e6 || !w.OfInstance() || w.Component() != (w.User != "admin") {
				t.Errorf("read %+v", w)
			}
			all = append(all, w.User+" "+w.What)
		}
		return all
	}
	check := func(want ...string) {
		t.Helper()
		if got := next(); strings.Join(got, ", ") != strings.Join(want, ", ") {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	check()
	appendLog(created + refused + tried + own + status[:30])
	check("virt-controller create pods", "admin create pods")
	appendLog(status[30:])
	check("virt-controller patch pods/status")
	check()
	appendLog("no JSON\n")
	if writes, err := a.Next(); err == nil {
		t.Errorf("a broken line was read as %+v", writes)
	}
}
