// Package slots gives a pod a slot: a socket that only this pod can dial, and on which only virt-handler listens. The
// slot tells virt-handler which pod it talks to. Each launcher pod has one.
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
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/kubeqemu/kubeqemu/internal/timer"
	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/qemuargs/layout"
)

// slot is one allocation of the device plugin: a folder with a fresh random name, mounted
// read-only into the pod that got the device. A process that dials the socket in the folder is
// in that pod.
type slot struct {
	ID     string    `json:"id"`     // the folder's name
	Device string    `json:"device"` // the device plugin's device
	Made   time.Time `json:"made"`
	// Pod is the pod that holds the device, by the kubelet's word. It is learned once, and
	// kept beside the folder for the next virt-handler.
	Pod types.NamespacedName `json:"pod,omitzero"`
	// Doubted means that the kubelet has not listed the pod for a while. The launcher is not
	// let in until the kubelet lists the pod again.
	Doubted bool `json:"doubted,omitempty"`

	listener *net.UnixListener
	// missing is since when the slot has had neither a connection nor a listed pod. absent is
	// since when a kubelet that knows all its pods has not listed the pod.
	missing, absent time.Time
}

// Slots holds the slots of one resource of a node. Its folder is on the host, so that slots
// outlive virt-handler.
type Slots struct {
	dir      string
	resource Resource
	pods     Resolver
	log      logr.Logger
	connect  connector

	mu    sync.Mutex
	slots map[string]*slot
	freed map[string]time.Time // by device: when it was last given back
	// registered is when the running kubelet registered the device plugin. It is zero while a
	// new kubelet may be running.
	registered time.Time

	clock clock.PassiveClock

	closing   chan struct{}
	closeOnce sync.Once
	wait      sync.WaitGroup
}

// slotsMode closes the folder of all slots to everybody but root, because a process that dials
// a slot's socket counts as the slot's launcher. The pod still gets in: its mount is the
// slot's own folder, and access through a mount does not check the folders above the mount's
// source.
const slotsMode fs.FileMode = 0o700

// connector takes new connections, and says which slots have one.
type connector interface {
	Connect(slotID string, pod types.NamespacedName, conn *control.Conn) (taken bool)
	Connected(slotID string) bool
	// End ends the connection of a slot; its guest goes on.
	End(slotID string)
}

// Resolver says which pods hold which devices of a resource. Kubelet implements Resolver.
type Resolver interface {
	Devices(ctx context.Context, resource corev1.ResourceName) (held map[string][]types.NamespacedName, whole bool,
		err error)
}

// Open takes up the slots of a resource that an earlier virt-handler left in dir, and
// listens on them again.
func Open(dir string, resource Resource, pods Resolver, log logr.Logger, connect connector) (*Slots, error) {
	if err := os.MkdirAll(dir, slotsMode); err != nil {
		return nil, fmt.Errorf("make slots folder: %w", err)
	}
	// The folder may exist already, with another mode.
	if err := os.Chmod(dir, slotsMode); err != nil {
		return nil, fmt.Errorf("close slots folder: %w", err)
	}
	s := &Slots{dir: dir, resource: resource, pods: pods, log: log, connect: connect, slots: map[string]*slot{},
		freed: map[string]time.Time{}, clock: clock.RealClock{}, closing: make(chan struct{})}
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

// adopt takes up the slot of a record. A record that is cut off, or has no folder, is left
// from a crash while the slot was made or dropped.
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

// sweep removes files and folders that belong to no slot.
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

// listen makes the slot's socket anew. The pod's mount is the folder, and so shows the new
// socket.
func (s *Slots) listen(slot *slot) error {
	socket := filepath.Join(s.folder(slot), filepath.Base(layout.SlotSocket))
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove old socket: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return fmt.Errorf("listen on slot: %w", err)
	}
	// The socket's file stays when virt-handler ends, so that the folder is intact for the
	// next virt-handler, which replaces the file.
	listener.SetUnlinkOnClose(false)
	// The launcher is not root. It may dial because the folder is mounted into its pod;
	// slotsMode keeps others out.
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
			// The node may be out of file descriptors. The launcher waits in the backlog.
			s.log.Error(err, "accept launcher", "slot", slot.ID)
			if !timer.Wait(acceptDelay, s.closing) {
				return
			}
			continue
		}
		pod, err := s.identify(slot)
		if err != nil {
			// The launcher dials again, and by then the kubelet may know the pod.
			s.log.Info("connection on a slot whose pod is not known yet", "slot", slot.ID, "reason", err.Error())
			control.CloseInterrupted(conn)
			// Each refused connection costs a question, and the kubelet answers a hundred
			// questions a second at most, of all its clients together.
			if !timer.Wait(refusedDelay, s.closing) {
				return
			}
			continue
		}
		if !s.connect.Connect(slot.ID, pod, control.NewConn(conn)) {
			control.CloseInterrupted(conn) // unread files may be in it
		}
		// This bounds the cost of a launcher that dials without end.
		if !timer.Wait(dialDelay, s.closing) {
			return
		}
	}
}

// dialDelay is the least time between two connections on a slot.
const dialDelay = 250 * time.Millisecond

// refusedDelay is the least time between two connections on a slot whose pod the kubelet has
// to be asked for.
const refusedDelay = 500 * time.Millisecond

// acceptDelay is the wait after an accept that failed.
const acceptDelay = time.Second

// identify asks the kubelet which pod holds the slot. The answer is kept; only for a doubted
// slot the kubelet is asked again whether the same pod still holds it.
func (s *Slots) identify(slot *slot) (types.NamespacedName, error) {
	s.mu.Lock()
	pod, doubted := slot.Pod, slot.Doubted
	s.mu.Unlock()
	if pod.Name != "" && !doubted {
		return pod, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), kubeletTimeout)
	defer cancel()
	held, _, err := s.pods.Devices(ctx, s.resource.Name)
	if err != nil {
		return pod, err
	}
	// Two pods mean that the device's last pod still lingers: the launcher dials again later.
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
		// The slot was dropped meanwhile, and the answer may be about the device's next pod.
		return pod, fmt.Errorf("slot %s is no longer in use", slot.ID)
	}
	slot.Pod, slot.Doubted = pod, false
	return pod, s.save(slot)
}

// drop closes and forgets a slot. A pod that is just ending may still have the folder mounted.
// That does no harm: the mount keeps the folder's inode, and no slot gets this name again.
func (s *Slots) drop(slot *slot) {
	go control.CloseInterrupted(slot.listener) // also closes the connections in its backlog
	s.erase(slot)
	delete(s.slots, slot.ID)
	s.freed[slot.Device] = s.clock.Now()
}

func (s *Slots) erase(slot *slot) {
	// The record goes first: sweep removes a folder without a record, but a record without a
	// folder would name a slot.
	if err := errors.Join(os.Remove(s.record(slot)), os.RemoveAll(s.folder(slot))); err != nil {
		s.log.Error(err, "remove slot", "slot", slot.ID)
	}
}

// Prefer orders free devices by how long they have been free, the longest first. The shorter a
// device has been free, the likelier its last pod still lingers.
func (s *Slots) Prefer(available []string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	freed := maps.Clone(s.freed)
	for _, slot := range s.slots {
		freed[slot.Device] = s.clock.Now() // the slot's pod has ended, but Collect has not dropped the slot yet
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
