package migration

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// announce makes events of what is new, on the migration and on its VMI.
func (r *Reconciler) announce(before *v1.VirtualMachineInstanceMigration, w *work) {
	m := w.migration
	say := func(kind, reason, action, text string, arguments ...any) {
		r.Events.Eventf(m, nil, kind, reason, action, text, arguments...)
		if w.vmi != nil {
			r.Events.Eventf(w.vmi, m, kind, reason, action, text, arguments...)
		}
	}
	s, last := m.Status.MigrationState, before.Status.MigrationState
	if s != nil && s.PostCopy() && (last == nil || !last.PostCopy()) {
		say(corev1.EventTypeNormal, "PostCopy", "Migrate", "The copying of memory took too long: the VirtualMachineInstance goes on at node %s, and the rest of its memory follows", s.TargetNode)
	}
	if c := m.Status.Condition(v1.MigrationPostCopyRefused); c != nil && before.Status.Condition(v1.MigrationPostCopyRefused) == nil {
		say(corev1.EventTypeWarning, "PostCopyRefused", "Migrate", "%s", c.Message)
	}
	if c := m.Status.Condition(v1.MigrationTargetWaiting); c != nil &&
		before.Status.Condition(v1.MigrationTargetWaiting) == nil {
		say(corev1.EventTypeWarning, c.Reason, "Migrate", "%s", c.Message)
	}
	if before.Status.Phase == m.Status.Phase {
		return
	}
	switch m.Status.Phase {
	case v1.MigrationPreparingTarget:
		say(corev1.EventTypeNormal, "PreparingTarget", "Migrate", "VirtualMachineInstance is to go %s", way(s))
	case v1.MigrationRunning:
		say(corev1.EventTypeNormal, "Migrating", "Migrate", "VirtualMachineInstance is migrating.")
	case v1.MigrationSucceeded:
		say(corev1.EventTypeNormal, "SuccessfulMigration", "Migrate", "The VirtualMachineInstance went %s%s", way(s), downtime(s))
	case v1.MigrationFailed:
		if s.AbortRequested {
			say(corev1.EventTypeNormal, "SuccessfulAbortMigration", "Migrate", "The migration was cancelled")
			return
		}
		say(corev1.EventTypeWarning, "FailedMigration", "Migrate", "%s", s.FailureReason)
	}
}

// way says from where to where the guest goes.
func way(s *v1.VirtualMachineInstanceMigrationState) string {
	if s.SourceNode == s.TargetNode {
		return fmt.Sprintf("from pod %s to pod %s on node %s", s.SourcePod, s.TargetPod, s.SourceNode)
	}
	return fmt.Sprintf("from node %s to node %s", s.SourceNode, s.TargetNode)
}

// downtime says how long the guest stood still.
func downtime(s *v1.VirtualMachineInstanceMigrationState) string {
	if !measured(s) {
		return ""
	}
	return fmt.Sprintf(", and stood still for %d ms", s.SourceState.Progress.DowntimeMilliseconds)
}
