package slots

import (
	"context"
	"slices"
	"time"
)

const (
	// missingSlot is how long a slot may have neither a listed pod nor a connection. A
	// launcher dials again every two seconds.
	missingSlot = 6 * time.Second
	// unclaimedSlot is the same for a slot whose pod is not known yet. The kubelet allocates
	// the slot at the pod's admission, and lists the pod from then on.
	unclaimedSlot = 30 * time.Second
	// doubtedSlot is the same for a slot whose connection was ended because the kubelet did
	// not list the pod. The kubelet may list that pod again, and a launcher whose slot is gone
	// is never found again.
	doubtedSlot = 10 * time.Minute
	// absentPod is how long a kubelet that knows all its pods must not list a launcher's pod
	// before the launcher's connection is ended.
	absentPod = 30 * time.Second
)

// Collect drops the slots of pods that are gone. The kubelet's list alone does not show that:
// a kubelet that was just restarted, and cannot reach the API server, lists no pod. But a
// living launcher is connected, or dials again within seconds. So a slot goes when for a while
// its pod was not listed and it had no connection. A slot whose pod the kubelet never named is
// kept a little longer.
//
// A connection alone does not prove a living launcher either: a launcher can hand its socket
// to a process of another pod, which would keep the slot, session and network namespace for
// ever. So a connection ends when for a while a kubelet that knows all its pods did not list
// the slot's pod. A guest there goes on, and its launcher is let in again once the kubelet
// lists its pod.
func (s *Slots) Collect(ctx context.Context) error {
	asked := s.clock.Now()
	held, whole, err := s.pods.Devices(ctx, s.resource.Name)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// A kubelet that was restarted after the question may have answered before it had its
	// pods.
	knows := whole && !s.registered.IsZero() && s.registered.Before(asked)
	for _, slot := range s.slots {
		if slot.Made.After(asked) {
			continue // the answer may name the device's previous pod
		}
		pods := held[slot.Device]
		if slot.Pod.Name == "" && len(pods) == 1 {
			// This names also a pod that never dials, because its image is missing, say.
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
	case slot.absent.IsZero() || slot.absent.Before(s.registered): // an earlier kubelet did not list it
		slot.absent = s.clock.Now()
	case s.clock.Since(slot.absent) >= absentPod && !slot.Doubted && s.connect.Connected(slot.ID):
		s.log.Info("end a connection: the kubelet knows no such pod any more", "slot", slot.ID, "pod", slot.Pod.String())
		slot.Doubted = true
		s.connect.End(slot.ID)
		return s.save(slot)
	}
	return nil
}

// allowed returns how long the slot may be without pod and connection.
func (slot *slot) allowed() time.Duration {
	switch {
	case slot.Doubted:
		return doubtedSlot
	case slot.Pod.Name == "":
		return unclaimedSlot
	}
	return missingSlot
}

// Registered notes that the running kubelet has registered the device plugin.
func (s *Slots) Registered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registered = s.clock.Now()
}

// Unregistered notes that a new kubelet may be running.
func (s *Slots) Unregistered() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registered = time.Time{}
}

// CollectRepeatedly collects at intervals until ctx ends. No VMI waits for it: a leftover slot
// costs an empty folder.
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
