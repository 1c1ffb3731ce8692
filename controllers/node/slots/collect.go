package slots

import (
	"context"
	"slices"
	"time"
)

const (
	// missingSlot is how long a slot may be without pod and connection; a
	// launcher dials again every two seconds.
	missingSlot = 6 * time.Second
	// unclaimedSlot is the same for a slot whose pod was never named. The
	// kubelet lists a pod from its admission on, when it asks for the slot.
	unclaimedSlot = 30 * time.Second
	// doubtedSlot is the same for one whose connection was ended because of its
	// pod: the kubelet may list that pod again, and a launcher without its slot
	// is never found again.
	doubtedSlot = 10 * time.Minute
	// absentPod is how long a kubelet that would know must not have listed a pod
	// before the connection of its launcher is ended.
	absentPod = 30 * time.Second
)

// Collect drops the slots of pods that are gone. The kubelet's word alone is not
// enough: just restarted, and cut off from the API server, it lists none. A
// launcher that lives is on the line, or dials again within seconds; so a slot
// goes when for a while it neither was listed nor had a connection. One whose
// pod the kubelet never named is kept a little longer.
//
// A connection alone is not enough either: whoever has had a slot can hand its
// socket to a process of another pod, which would keep slot, session and network
// namespace for ever. So a connection ends when for a while the pod was not listed
// by a kubelet that would know it. The guest, if there is one, goes on, and its
// launcher is let in again once the kubelet lists its pod.
func (s *Slots) Collect(ctx context.Context) error {
	asked := s.clock.Now()
	held, whole, err := s.pods.Devices(ctx)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// A kubelet that was restarted since the question may have answered before it
	// read its pods.
	knows := whole && !s.registered.IsZero() && s.registered.Before(asked)
	for _, slot := range s.slots {
		if slot.Made.After(asked) {
			continue // the answer may be about the device's last pod
		}
		pods := held[slot.Device]
		if slot.Pod.Name == "" && len(pods) == 1 {
			// A pod that never dials, for want of an image, say.
			slot.Pod = pods[0]
			if err := s.save(slot); err != nil {
				return err
			}
		}
		listed := slices.Contains(pods, slot.Pod) || slot.Pod.Name == "" && len(pods) > 0
		if err := s.doubt(slot, knows && !listed); err != nil {
			return err
		}
		switch {
		case listed || s.connect.Connected(slot.ID) && !slot.Doubted:
			slot.missing = time.Time{}
		case slot.missing.IsZero():
			slot.missing = s.clock.Now()
		case s.clock.Since(slot.missing) >= slot.allowed():
			s.drop(slot)
		}
	}
	return nil
}

// doubt ends the connection of a slot whose pod has been absent for a while.
func (s *Slots) doubt(slot *slot, absent bool) error {
	switch {
	case !absent:
		slot.absent = time.Time{}
	case slot.absent.IsZero() || slot.absent.Before(s.registered): // said by another kubelet
		slot.absent = s.clock.Now()
	case s.clock.Since(slot.absent) >= absentPod && !slot.Doubted && s.connect.Connected(slot.ID):
		s.log.Info("end a connection: the kubelet knows no such pod any more", "slot", slot.ID, "pod", slot.Pod.String())
		slot.Doubted = true
		s.connect.End(slot.ID)
		return s.save(slot)
	}
	return nil
}

// allowed is how long the slot may be without pod and connection.
func (slot *slot) allowed() time.Duration {
	switch {
	case slot.Doubted:
		return doubtedSlot
	case slot.Pod.Name == "":
		return unclaimedSlot
	}
	return missingSlot
}

// Registered says that the kubelet that runs has registered the device plugin.
func (s *Slots) Registered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registered = s.clock.Now()
}

// Unregistered says that another kubelet may run.
func (s *Slots) Unregistered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registered = time.Time{}
}

// CollectRepeatedly collects now and then until ctx ends. No VMI waits for it: a slot
// left over costs an empty folder.
func (s *Slots) CollectRepeatedly(ctx context.Context, interval time.Duration, failed func(error)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := s.Collect(ctx); err != nil && ctx.Err() == nil {
				failed(err)
			}
		}
	}
}
