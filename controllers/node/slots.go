// Package node is virt-handler: it gives launcher pods their slots, learns who
// is at the other end of each, wires their network, has QEMU started, and
// writes what it learns into the status of the VMIs of its node.
package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeqemu/kubeqemu/launcher/control"
	"github.com/kubeqemu/kubeqemu/launcher/layout"
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

	listener *net.UnixListener
}

// Slots holds the slots of a node. Its folder is on the host, so that slots
// outlive virt-handler.
type Slots struct {
	dir     string
	pods    podResolver
	log     logr.Logger
	connect func(slotID string, pod types.NamespacedName, conn *control.Conn)

	mu    sync.Mutex
	slots map[string]*slot
	freed map[string]time.Time // by device: when it was last given back

	wait sync.WaitGroup
}

// podResolver says which pods hold which devices.
type podResolver interface {
	Devices(ctx context.Context) (map[string][]types.NamespacedName, error)
}

// OpenSlots takes up the slots that an earlier virt-handler left in dir, and
// listens on them again.
func OpenSlots(dir string, pods podResolver, log logr.Logger, connect func(string, types.NamespacedName, *control.Conn)) (*Slots, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make slots folder: %w", err)
	}
	s := &Slots{dir: dir, pods: pods, log: log, connect: connect, slots: map[string]*slot{}, freed: map[string]time.Time{}}
	records, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	for _, record := range records {
		data, err := os.ReadFile(record)
		if err != nil {
			return nil, fmt.Errorf("read slot: %w", err)
		}
		old := &slot{}
		if err := json.Unmarshal(data, old); err != nil {
			// Cut off by a crash while it was made; nobody was told of it.
			log.Error(err, "forget unreadable slot", "file", record)
			os.Remove(record)
			continue
		}
		if err := s.listen(old); err != nil {
			s.Close()
			return nil, err
		}
		s.slots[old.ID] = old
	}
	return s, nil
}

// New makes a slot for a device and returns the folder to be mounted.
func (s *Slots) New(device string) (folder string, err error) {
	random := make([]byte, 16)
	rand.Read(random) // never fails
	made := &slot{ID: hex.EncodeToString(random), Device: device, Made: time.Now()}
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
	// into is what lets it in.
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
		if err != nil {
			return // closed
		}
		pod, err := s.identify(slot)
		if err != nil {
			// The launcher dials again; by then the kubelet may know.
			s.log.Info("connection on a slot whose pod is not known yet", "slot", slot.ID, "reason", err.Error())
			conn.Close()
			continue
		}
		s.connect(slot.ID, pod, control.NewConn(conn))
	}
}

// identify asks the kubelet, once, which pod holds the slot.
func (s *Slots) identify(slot *slot) (types.NamespacedName, error) {
	s.mu.Lock()
	pod := slot.Pod
	s.mu.Unlock()
	if pod.Name != "" {
		return pod, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), kubeletTimeout)
	defer cancel()
	held, err := s.pods.Devices(ctx)
	if err != nil {
		return pod, err
	}
	// Two would mean that the device's last pod still lingers: ask again later.
	if n := len(held[slot.Device]); n != 1 {
		return pod, fmt.Errorf("the kubelet knows %d pods that hold device %s", n, slot.Device)
	}
	pod = held[slot.Device][0]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots[slot.ID] != slot {
		// Given to another pod meanwhile: the answer was about that one.
		return pod, fmt.Errorf("slot %s is no longer in use", slot.ID)
	}
	slot.Pod = pod
	return pod, s.save(slot)
}

// Collect drops the slots of pods that are gone. A slot whose pod the kubelet
// never named is kept for a while: it may be about to be.
func (s *Slots) Collect(ctx context.Context) error {
	held, err := s.pods.Devices(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, slot := range s.slots {
		pods := held[slot.Device]
		switch {
		case slot.Pod.Name != "" && !slices.Contains(pods, slot.Pod):
			s.drop(slot)
		case slot.Pod.Name == "" && len(pods) == 0 && time.Since(slot.Made) > unclaimedSlot:
			s.drop(slot)
		}
	}
	return nil
}

// unclaimedSlot is how long a slot may be without a pod: the kubelet allocates
// before it starts a pod, and pulls the pod's images in between.
const unclaimedSlot = time.Hour

// drop closes and forgets a slot. Its folder may be busy in a pod that is just
// going; the mount holds it, and the name is never used again.
func (s *Slots) drop(slot *slot) {
	slot.listener.Close()
	s.erase(slot)
	delete(s.slots, slot.ID)
	s.freed[slot.Device] = time.Now()
}

func (s *Slots) erase(slot *slot) {
	if err := errors.Join(os.RemoveAll(s.folder(slot)), os.Remove(s.record(slot))); err != nil {
		s.log.Error(err, "remove slot", "slot", slot.ID)
	}
}

// Prefer orders free devices by how long they have been free, the longest
// first: the shorter one was free, the likelier its last pod still lingers.
func (s *Slots) Prefer(available []string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	ordered := slices.Clone(available)
	slices.SortStableFunc(ordered, func(a, b string) int { return s.freed[a].Compare(s.freed[b]) })
	return ordered
}

// Close stops listening; the slots stay for the next virt-handler.
func (s *Slots) Close() {
	s.mu.Lock()
	for _, slot := range s.slots {
		slot.listener.Close()
	}
	s.mu.Unlock()
	s.wait.Wait()
}
