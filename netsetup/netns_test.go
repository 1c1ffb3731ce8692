package netsetup

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCheckNetNS(t *testing.T) {
	p := newPod(t, Masquerade{})
	good := os.NewFile(dup(t, int(p.pod.Fd())), "pod")
	defer good.Close()
	if err := CheckNetNS(good); err != nil {
		t.Errorf("pod's namespace: %v", err)
	}
	for path, want := range map[string]error{
		// Not /proc/self: the main thread may be in another test's namespace.
		"/proc/thread-self/ns/net": ErrOwnNetNS,
		"/proc/self/ns/mnt":        ErrNotNetNS,
		"/proc/self/ns/uts":        ErrNotNetNS,
		"/dev/null":                ErrNotNetNS,
		"/proc/self/status":        ErrNotNetNS,
		misleading(t):              ErrNotNetNS,
	} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := CheckNetNS(f); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", path, err, want)
		}
		if netns, err := FromFile(f); !errors.Is(err, want) {
			t.Errorf("%s: opened %v, error %v, want %v", path, netns, err, want)
		}
	}
	good.Close()
	if err := CheckNetNS(good); err == nil {
		t.Error("closed file: accepted")
	}
}

// misleading is a plain file with a namespace's name.
func misleading(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "net:[4026531840]")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestNetNSFromFile(t *testing.T) {
	p := newPod(t, Masquerade{})
	f := os.NewFile(dup(t, int(p.pod.Fd())), "pod")
	netns, err := FromFile(f)
	if err != nil {
		t.Fatal(err)
	}
	defer netns.Close()
	f.Close() // the NetNS has its own
	facts, err := ReadFacts(netns, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	if facts.MAC != p.facts.MAC {
		t.Errorf("another namespace: %+v", facts)
	}
}

func dup(t *testing.T, fd int) uintptr {
	t.Helper()
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return uintptr(n)
}
