// Package slots gives each launcher pod a slot, which is a socket. virt-handler alone
// listens on the socket. The launcher's pod alone can dial it. By the slot virt-handler
// knows which pod it talks to.
package slots

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubeqemu/kubeqemu/internal/timer"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// slot is one allocation of the device plugin: a folder with a fresh random
// name that is mounted, read-only, into the pod that got the device. Whoever
// dials the socket in it is in that pod.
type slot struct {
	ID     string    `json:"id"`     // the folder's name
	Device string    `json:"device"` // the device plugin's device
	Made   time.Time `json:"made"`
	// Pod is what the kubelet says holds the device; learned once, and kept
	// beside the folder for when virt-handler is restarted.
	Pod types.NamespacedName `json:"pod,omitzero"`
	// Doubted is a slot whose pod is not on this node any more, as far as the
	// kubelet knows: its launcher is not let in before the kubelet lists the pod.
	Doubted bool `json:"doubted,omitempty"`

	listener *net.UnixListener
	// missing is since when the slot has had neither a connection nor a pod that
	// the kubelet lists, absent since when a kubelet that would know has not
	// listed its pod.
	missing, absent time.Time
}

// Slots holds the slots of a node. Its folder is on the host, so that slots
// outlive virt-handler.
type Slots struct {
	dir     string
	pods    Resolver
	log     logr.Logger
	connect connector

	mu    sync.Mutex
	slots map[string]*slot
	freed map[string]time.Time // by device: when it was last given back
	// registered is since when the kubelet that runs has had the device plugin
	// registered; zero while it is not known to.
	registered time.Time

	clock clock.PassiveClock

	closing   chan struct{}
	closeOnce sync.Once
	wait      sync.WaitGroup
}

// slotsMode closes the folder of all slots to everybody but root: who dials a
// slot's socket is taken for its launcher. A pod has a mount of its own slot's
// folder, and a mount does not ask the folders above its source.
const slotsMode fs.FileMode = 0o700

// connector takes new connections, and says which slots have one.
type connector interface {
	Connect(slotID string, pod types.NamespacedName, conn *control.Conn) (taken bool)
	Connected(slotID string) bool
	// End ends the connection of a slot; its guest goes on.
	End(slotID string)
}

// Resolver says which pods hold which devices. Kubelet implements Resolver.
type Resolver interface {
	Devices(ctx context.Context) (held map[string][]types.NamespacedName, whole bool, err error)
}

// Open takes up the slots that an earlier virt-handler left in dir, and
// listens on them again.
func Open(dir string, pods Resolver, log logr.Logger, connect connector) (*Slots, error) {
	if err := os.MkdirAll(dir, slotsMode); err != nil {
		return nil, fmt.Errorf("make slots folder: %w", err)
	}
	// It may be there already, with another mode.
	if err := os.Chmod(dir, slotsMode); err != nil {
		return nil, fmt.Errorf("close slots folder: %w", err)
	}
	s := &Slots{dir: dir, pods: pods, log: log, connect: connect, slots: map[string]*slot{}, freed: map[string]time.Time{},
		clock: clock.RealClock{}, closing: make(chan struct{})}
	records, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	for _, record := range records {
		if err := s.adopt(record); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, s.sweep()
}

// adopt takes up the slot of a record. One that is cut off, or whose folder is
// gone, is what a crash left of a slot that was being made or dropped.
func (s *Slots) adopt(record string) error {
	data, err := os.ReadFile(record)
	if err != nil {
		return fmt.Errorf("read slot: %w", err)
	}
	old := &slot{}
	if err := json.Unmarshal(data, old); err != nil || old.ID+".json" != filepath.Base(record) || old.Device == "" {
		s.log.Info("forget slot with an unreadable record", "file", record)
		return os.Remove(record)
	}
	if _, err := os.Stat(s.folder(old)); errors.Is(err, fs.ErrNotExist) {
		return os.Remove(record)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slots[old.ID] = old
	return s.listen(old)
}

// sweep removes what no record tells of.
func (s *Slots) sweep() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return fmt.Errorf("list slots: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range entries {
		if s.slots[strings.TrimSuffix(e.Name(), ".json")] == nil {
			if err := os.RemoveAll(filepath.Join(s.dir, e.Name())); err != nil {
				return fmt.Errorf("remove leftover slot: %w", err)
			}
		}
	}
	return nil
}

// New makes a slot for a device and returns the folder to be mounted.
func (s *Slots) New(device string) (folder string, err error) {
	random := make([]byte, 16)
	rand.Read(random) // never fails
	made := &slot{ID: hex.EncodeToString(random), Device: device, Made: s.clock.Now()}
	folder = s.folder(made)
	if err := os.Mkdir(folder, 0o755); err != nil {
		return "", fmt.Errorf("make slot: %w", err)
	}
	if err = s.save(made); err == nil {
		err = s.listen(made)
	}
	if err != nil {
		s.erase(made)
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// The kubelet gives a device out again only when its pod is gone.
	for _, old := range s.slots {
		if old.Device == device {
			s.drop(old)
		}
	}
	s.slots[made.ID] = made
	return folder, nil
}

func (s *Slots) folder(slot *slot) string { return filepath.Join(s.dir, slot.ID) }
func (s *Slots) record(slot *slot) string { return s.folder(slot) + ".json" }

func (s *Slots) save(slot *slot) error {
	data, err := json.Marshal(slot)
	if err != nil {
		return err
	}
	temporary := s.record(slot) + ".new"
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return fmt.Errorf("save slot: %w", err)
	}
	if err := os.Rename(temporary, s.record(slot)); err != nil {
		return fmt.Errorf("save slot: %w", err)
	}
	return nil
}

// listen makes the slot's socket anew. The pod's mount shows the folder, and so
// the new socket too.
func (s *Slots) listen(slot *slot) error {
	socket := filepath.Join(s.folder(slot), filepath.Base(layout.SlotSocket))
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove old socket: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return fmt.Errorf("listen on slot: %w", err)
	}
	// The socket must stay for the next virt-handler's launchers to find the
	// folder intact; it is replaced, not left out.
	listener.SetUnlinkOnClose(false)
	// The launcher is not root; being in the pod that the folder is mounted
	// into is what lets it in (slotsMode).
	if err := os.Chmod(socket, 0o666); err != nil {
		listener.Close()
		return fmt.Errorf("open slot to the launcher: %w", err)
	}
	slot.listener = listener
	s.wait.Add(1)
	go s.accept(slot, listener)
	return nil
}

func (s *Slots) accept(slot *slot, listener *net.UnixListener) {
	defer s.wait.Done()
	for {
		conn, err := listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Out of file descriptors, say. The launcher waits in the backlog.
			s.log.Error(err, "accept launcher", "slot", slot.ID)
			if !timer.Wait(acceptDelay, s.closing) {
				return
			}
			continue
		}
		pod, err := s.identify(slot)
		if err != nil {
			// The launcher dials again; by then the kubelet may know.
			s.log.Info("connection on a slot whose pod is not known yet", "slot", slot.ID, "reason", err.Error())
			control.CloseInterrupted(conn)
			// Each costs a question, and the kubelet answers a hundred a second at most,
			// whoever's they are.
			if !timer.Wait(refusedDelay, s.closing) {
				return
			}
			continue
		}
		if !s.connect.Connect(slot.ID, pod, control.NewConn(conn)) {
			control.CloseInterrupted(conn) // there may be files in it
		}
		// A launcher that dials without end costs no more than this.
		if !timer.Wait(dialDelay, s.closing) {
			return
		}
	}
}

// dialDelay is the least time between two connections on a slot.
const dialDelay = 250 * time.Millisecond

// refusedDelay is the least time between two connections on a slot of which the kubelet
// has to be asked whose it is.
const refusedDelay = 500 * time.Millisecond

// acceptDelay is between an accept that failed and the next.
const acceptDelay = time.Second

// identify asks the kubelet, once, which pod holds the slot; of a slot that is
// doubted, whether that pod still does.
func (s *Slots) identify(slot *slot) (types.NamespacedName, error) {
	s.mu.Lock()
	pod, doubted := slot.Pod, slot.Doubted
	s.mu.Unlock()
	if pod.Name != "" && !doubted {
		return pod, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), kubeletTimeout)
	defer cancel()
	held, _, err := s.pods.Devices(ctx)
	if err != nil {
		return pod, err
	}
	// Two would mean that the device's last pod still lingers: ask again later.
	n := len(held[slot.Device])
	if n != 1 {
		return pod, fmt.Errorf("the kubelet knows %d pods that hold device %s", n, slot.Device)
	}
	if now := held[slot.Device][0]; doubted && now != pod {
		return pod, fmt.Errorf("the kubelet lists another pod for the device of %s", pod)
	} else {
		pod = now
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots[slot.ID] != slot {
		// Given to another pod meanwhile: the answer was about that one.
		return pod, fmt.Errorf("slot %s is no longer in use", slot.ID)
	}
	slot.Pod, slot.Doubted = pod, false
	return pod, s.save(slot)
}

// drop closes and forgets a slot. Its folder may be busy in a pod that is just
// going; the mount holds it, and the name is never used again.
func (s *Slots) drop(slot *slot) {
	go control.CloseInterrupted(slot.listener) // with what waits in its backlog
	s.erase(slot)
	delete(s.slots, slot.ID)
	s.freed[slot.Device] = s.clock.Now()
}

func (s *Slots) erase(slot *slot) {
	// The record first: a folder without one is swept, a record without its
	// folder would be looked for.
	if err := errors.Join(os.Remove(s.record(slot)), os.RemoveAll(s.folder(slot))); err != nil {
		s.log.Error(err, "remove slot", "slot", slot.ID)
	}
}

// Prefer orders free devices by how long they have been free, the longest
// first: the shorter one was free, the likelier its last pod still lingers.
func (s *Slots) Prefer(available []string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	freed := maps.Clone(s.freed)
	for _, slot := range s.slots {
		freed[slot.Device] = s.clock.Now() // its pod has ended, but was not collected yet
	}
	ordered := slices.Clone(available)
	slices.SortStableFunc(ordered, func(a, b string) int { return freed[a].Compare(freed[b]) })
	return ordered
}

// Close stops listening; the slots stay for the next virt-handler.
func (s *Slots) Close() {
	s.closeOnce.Do(func() { close(s.closing) })
	s.mu.Lock()
	for _, slot := range s.slots {
		slot.listener.Close()
	}
	s.mu.Unlock()
	s.wait.Wait()
}
