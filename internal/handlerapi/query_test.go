package handlerapi

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// TestTooManyValuesAreRefused: what an honest launcher says at most is taken, and as many empty values
// as fit a document are not.
func TestTooManyValuesAreRefused(t *testing.T) {
	var most control.GuestInfo
	for range 256 {
		most.Commands = append(most.Commands, control.AgentCommand{Name: "guest-command", Enabled: true})
	}
	for range 64 {
		most.Users = append(most.Users, control.GuestUser{Name: "user", Domain: "domain", LoginTime: 1})
		system := control.GuestFileSystem{Name: "sda1", MountPoint: "/", Type: "ext4"}
		for range 8 {
			system.Disks = append(system.Disks, control.GuestDisk{Serial: "1", BusType: "scsi"})
		}
		most.FSInfo.FileSystems = append(most.FSInfo.FileSystems, system)
	}
	honest, err := json.Marshal(most)
	if err != nil {
		t.Fatal(err)
	}
	hostile := `{"items":[` + strings.Repeat("{},", MaxDocument/3-10) + `{}]}`
	for name, c := range map[string]struct {
		document string
		taken    bool
	}{
		"honest": {string(honest), true}, "nothing": {`{"items":[]}`, true}, "hostile": {hostile, false},
		"flat": {"[" + strings.Repeat("1,", 200000) + "1]", false}, "deep": {strings.Repeat("[", 200000), false}, "cut": {`{"items":`, true},
	} {
		if err := CheckDocument([]byte(c.document)); (err == nil) != c.taken {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// endless repeats a header for ever.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	if e.read == 0 {
		e.read = copy(p, "HTTP/1.1 200 OK\r\n")
		return e.read, nil
	}
	n := copy(p, "X: y\r\n")
	e.read += n
	return n, nil
}

// TestHeadOfAnAnswerIsBounded: of an answer no more than a head's worth is read before its body.
func TestHeadOfAnAnswerIsBounded(t *testing.T) {
	from := &endless{}
	if _, _, err := readHead(from, &http.Request{Method: http.MethodGet}); err == nil || from.read > 2*maxHead {
		t.Errorf("%v, after %d bytes", err, from.read)
	}
	text := "HTTP/1.1 101 Switching Protocols\r\n\r\n" + strings.Repeat("z", 2*maxHead)
	reader, head, err := readHead(strings.NewReader(text), &http.Request{Method: http.MethodGet})
	if err != nil || head.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%+v, %v", head, err)
	}
	if rest, err := io.ReadAll(reader); err != nil || len(rest) != 2*maxHead {
		t.Errorf("%d bytes follow, %v", len(rest), err)
	}
}
