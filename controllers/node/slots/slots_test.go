package slots

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/internal/testkit"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// arrival is a connection that Slots let in.
type arrival struct {
	slot string
	pod  types.NamespacedName
}

// door is a connector that closes each connection and notes that it came.
type door struct {
	arrivals chan arrival
	live     bool // what Connected says
	ended    []string
}

func (d *door) Connect(slot string, pod types.NamespacedName, conn *control.Conn) bool {
	d.arrivals <- arrival{slot, pod}
	return false
}

func (d *door) Connected(string) bool { return d.live }

func (d *door) End(slot string) { d.ended, d.live = append(d.ended, slot), false }

// openSlots opens slots whose arrivals come on a channel, and closes them at the test's end.
func openSlots(t *testing.T, dir string, pods Resolver) (*Slots, <-chan arrival) {
	t.Helper()
	d := &door{arrivals: make(chan arrival, 100)}
	s, err := Open(dir, Resource{}, pods, testr.New(t), d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, d.arrivals
}

// collect collects twice, with the time between in which a slot must be missing.
func collect(s *Slots, between time.Duration) error {
	if err := s.Collect(context.Background()); err != nil {
		return err
	}
	s.mu.Lock()
	for _, slot := range s.slots {
		if !slot.missing.IsZero() {
			slot.missing = slot.missing.Add(-between)
		}
	}
	s.mu.Unlock()
	return s.Collect(context.Background())
}

// knock dials a slot and waits until the connection is over, whether it was
// let in or not.
func knock(t *testing.T, folder string) {
	t.Helper()
	conn, err := nodetest.DialSlot(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(testkit.Patience))
	if _, err := conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("connection was neither served nor closed")
	}
}

// arrived returns the one arrival there is after knock, or none. The door notes it before it closes the connection.
func arrived(t *testing.T, arrivals <-chan arrival) *arrival {
	t.Helper()
	select {
	case a := <-arrivals:
		return &a
	default:
		return nil
	}
}

func TestSlotIdentifies(t *testing.T) {
	down := errors.New("kubelet is down")
	tests := []struct {
		name string
		held map[string][]types.NamespacedName
		err  error
		want string // pod's name; empty: refused
	}{
		{"one pod", nodetest.Holds("vm1", "a"), nil, "a"},
		{"two pods", nodetest.Holds("vm1", "a", "b"), nil, ""},
		{"no pod", nodetest.Holds("vm1"), nil, ""},
		{"another device", nodetest.Holds("vm2", "a"), nil, ""},
		{"kubelet down", nil, down, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pods := &nodetest.Kubelet{}
			pods.Says(tt.held, tt.err)
			s, arrivals := openSlots(t, testkit.ShortFolder(t), pods)
			folder := nodetest.Folder(t, s, "vm1")
			knock(t, folder)
			got := arrived(t, arrivals)
			if tt.want == "" {
				if got != nil {
					t.Fatalf("let in as %v, want refused", got.pod)
				}
				// Refused now is not refused for ever: the launcher dials again.
				pods.Says(nodetest.Holds("vm1", "late"), nil)
				knock(t, folder)
				got, tt.want = arrived(t, arrivals), "late"
			}
			if want := (&arrival{filepath.Base(folder), nodetest.Pod(tt.want)}); !reflect.DeepEqual(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

// TestSlotKeepsItsPod: the kubelet is asked once: its later answers, right or wrong, change nothing.
func TestSlotKeepsItsPod(t *testing.T) {
	dir := testkit.ShortFolder(t)
	pods := nodetest.NewKubelet(nodetest.Holds("vm1", "a"))
	s, arrivals := openSlots(t, dir, pods)
	folder := nodetest.Folder(t, s, "vm1")
	knock(t, folder)
	first := arrived(t, arrivals)
	if first == nil || first.pod != nodetest.Pod("a") {
		t.Fatalf("first: %v", first)
	}
	pods.Says(nodetest.Holds("vm1", "b"), nil)
	knock(t, folder)
	if got := arrived(t, arrivals); !reflect.DeepEqual(got, first) {
		t.Errorf("same virt-handler: %v, want %v", got, first)
	}
	s.Close()
	if conn, err := nodetest.DialSlot(folder); err == nil {
		conn.Close()
		t.Fatal("a closed slot still answers")
	}
	pods.Says(nil, errors.New("kubelet is down"))
	_, arrivals = openSlots(t, dir, pods)
	knock(t, folder) // the same folder, as the pod's mount shows it
	if got := arrived(t, arrivals); !reflect.DeepEqual(got, first) {
		t.Errorf("after a restart: %v, want %v", got, first)
	}
}

func TestSlotFolderIsNewEachTime(t *testing.T) {
	dir := testkit.ShortFolder(t)
	s, _ := openSlots(t, dir, nodetest.NewKubelet(nil))
	folder := nodetest.Folder(t, s, "vm1")
	if filepath.Dir(folder) != dir {
		t.Errorf("folder %s is not in %s", folder, dir)
	}
	for path, want := range map[string]os.FileMode{folder: 0o755, filepath.Join(folder, "handler.sock"): 0o666, folder + ".json": 0o600} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %v, want %v", path, got, want)
		}
	}
	again := nodetest.Folder(t, s, "vm1")
	if again == folder {
		t.Error("a folder's name was used again")
	}
	if conn, err := nodetest.DialSlot(folder); err == nil {
		conn.Close()
		t.Error("the device's old slot still answers")
	}
	if left := names(t, dir); len(left) != 2 {
		t.Errorf("left: %v, want one folder and its record", left)
	}
}

// TestSlotsAreClosedToOtherUsers: a slot's socket is for whoever has the slot's folder as a mount, and for no other
// user of the node. An open file of the folder stands for the mount: its way, too, leads through no folder above.
func TestSlotsAreClosedToOtherUsers(t *testing.T) {
	above, err := os.MkdirTemp("", "slots") // t.TempDir is closed to other users as it is
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(above) })
	dir := filepath.Join(above, "slots")
	for _, path := range []string{above, dir} {
		if err := errors.Join(os.MkdirAll(path, 0o777), os.Chmod(path, 0o777)); err != nil { // as open as another version left it
			t.Fatal(err)
		}
	}
	s, _ := openSlots(t, dir, nodetest.NewKubelet(nodetest.Holds("vm1", "a")))
	folder := nodetest.Folder(t, s, "vm1")
	mount, err := os.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	defer mount.Close()
	for _, user := range []int{107, 1000} {
		if err := dialAs(user, folder); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("user %d dials a slot by its path on the node: %v, want no permission", user, err)
		}
		if err := dialAs(user, fmt.Sprintf("/proc/self/fd/%d", mount.Fd())); err != nil {
			t.Errorf("user %d dials a slot through a mount of it: %v", user, err)
		}
	}
}

// dialAs dials a slot as another user.
func dialAs(user int, folder string) error {
	done := make(chan error)
	go func() {
		// The thread is never unlocked, and so ends with this goroutine: a user is
		// a thread's, and this one's cannot be changed back.
		runtime.LockOSThread()
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(user), uintptr(user), uintptr(user)); errno != 0 {
			done <- errno
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: filepath.Join(folder, "handler.sock")})
			unix.Close(fd)
		}
		done <- err
	}()
	return <-done
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestSlotsOfGonePodsAreCollected(t *testing.T) {
	tests := []struct {
		name    string
		pod     string        // learned before
		between time.Duration // two looks
		held    map[string][]types.NamespacedName
		live    bool
		err     error
		kept    bool
	}{
		{"pod is there", "a", unclaimedSlot, nodetest.Holds("vm1", "a"), false, nil, true},
		{"pod is there with another", "a", unclaimedSlot, nodetest.Holds("vm1", "b", "a"), false, nil, true},
		{"pod is just gone", "a", missingSlot / 2, nodetest.Holds("vm1"), false, nil, true},
		{"pod is gone", "a", missingSlot, nodetest.Holds("vm1"), false, nil, false},
		{"only the launcher is there", "a", unclaimedSlot, nil, true, nil, true},
		{"another pod has the device", "a", missingSlot, nodetest.Holds("vm1", "b"), false, nil, false},
		{"kubelet down", "a", unclaimedSlot, nil, false, errors.New("down"), true},
		{"unclaimed", "", unclaimedSlot / 2, nil, false, nil, true},
		{"long unclaimed", "", unclaimedSlot, nil, false, nil, false},
		{"long without connection", "", unclaimedSlot, nodetest.Holds("vm1", "a"), false, nil, true},
		{"two pods, none learned", "", time.Minute, nodetest.Holds("vm1", "a", "b"), false, nil, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := testkit.ShortFolder(t)
			pods := &nodetest.Kubelet{}
			pods.Says(tt.held, tt.err)
			s, _ := openSlots(t, dir, pods)
			s.connect.(*door).live = tt.live
			slot := s.slots[filepath.Base(nodetest.Folder(t, s, "vm1"))]
			s.mu.Lock()
			if tt.pod != "" {
				slot.Pod = nodetest.Pod(tt.pod)
			}
			s.mu.Unlock()
			if err := collect(s, tt.between); !errors.Is(err, tt.err) {
				t.Errorf("Collect: %v, want %v", err, tt.err)
			}
			if left := names(t, dir); (len(left) == 2) != tt.kept || (len(left) == 0) == tt.kept {
				t.Errorf("left: %v, kept should be %v", left, tt.kept)
			}
		})
	}
}

func TestLongestFreeSlotIsPreferred(t *testing.T) {
	s, _ := openSlots(t, testkit.ShortFolder(t), nodetest.NewKubelet(nil))
	for _, device := range []string{"vm3", "vm1"} { // in this order both are freed below
		nodetest.Folder(t, s, device)
		s.slots[onlySlot(t, s)].Pod = nodetest.Pod("gone")
		if err := collect(s, missingSlot); err != nil {
			t.Fatal(err)
		}
	}
	nodetest.Folder(t, s, "vm5") // in use, or its pod has just ended
	available := []string{"vm5", "vm1", "vm2", "vm3", "vm4"}
	if got, want := s.Prefer(available), []string{"vm2", "vm4", "vm3", "vm1", "vm5"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v: never used, then longest free", got, want)
	}
	if want := []string{"vm5", "vm1", "vm2", "vm3", "vm4"}; !reflect.DeepEqual(available, want) {
		t.Errorf("the argument was changed: %v", available)
	}
}

func onlySlot(t *testing.T, s *Slots) string {
	t.Helper()
	if len(s.slots) != 1 {
		t.Fatalf("%d slots, want 1", len(s.slots))
	}
	for id := range s.slots {
		return id
	}
	return ""
}

// TestOpenSlotsAfterCrash: a crash leaves what a crash leaves; good slots must come up all the same.
func TestOpenSlotsAfterCrash(t *testing.T) {
	tests := map[string]func(dir string) error{
		"empty record": func(dir string) error { return os.WriteFile(filepath.Join(dir, "0f.json"), nil, 0o600) },
		"half a record": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "0f.json"), []byte(`{"id":"0f","dev`), 0o600)
		},
		"unrenamed record": func(dir string) error { return os.WriteFile(filepath.Join(dir, "0f.json.new"), []byte(`{`), 0o600) },
		"folder alone":     func(dir string) error { return os.Mkdir(filepath.Join(dir, "0f"), 0o755) },
		"record alone": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "0f.json"), []byte(`{"id":"0f","device":"vm9"}`), 0o600)
		},
		"record without id": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "0f.json"), []byte(`{"device":"vm9"}`), 0o600)
		},
		"foreign record": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "0f.json"), []byte(`{"id":"..","device":"vm9"}`), 0o600)
		},
	}
	for name, crash := range tests {
		t.Run(name, func(t *testing.T) {
			dir := testkit.ShortFolder(t)
			pods := nodetest.NewKubelet(nodetest.Holds("vm1", "a"))
			before, _ := openSlots(t, dir, pods)
			folder := nodetest.Folder(t, before, "vm1")
			before.Close()
			if err := crash(dir); err != nil {
				t.Fatal(err)
			}
			s, arrivals := openSlots(t, dir, pods)
			if len(s.slots) != 1 {
				t.Errorf("%d slots, want 1", len(s.slots))
			}
			knock(t, folder)
			if got := arrived(t, arrivals); got == nil || got.pod != nodetest.Pod("a") {
				t.Errorf("the good slot's launcher: %v", got)
			}
			if left := names(t, dir); len(left) != 2 {
				t.Errorf("left: %v, want one folder and its record", left)
			}
		})
	}
}
