package migration

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeqemu/kubeqemu/api/migrations/v1alpha1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// policy returns the MigrationPolicy that holds for a VMI, or nil. Policies and namespaces are read when a migration
// begins, and are not watched: the caches of a watch would cost memory at all other times.
func (r *Reconciler) policy(ctx context.Context, vmi *v1.VirtualMachineInstance) (*v1alpha1.MigrationPolicy, error) {
	var policies v1alpha1.MigrationPolicyList
	err := r.Live.List(ctx, &policies)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil, nil // an installation whose kinds are of an earlier version
	}
	if err != nil {
		return nil, fmt.Errorf("list MigrationPolicies: %w", err)
	}
	if len(policies.Items) == 0 {
		return nil, nil
	}
	var namespace corev1.Namespace
	if err := r.Live.Get(ctx, client.ObjectKey{Name: vmi.Namespace}, &namespace); err != nil {
		return nil, fmt.Errorf("get the namespace, for MigrationPolicies: %w", err)
	}
	return chosen(policies.Items, vmi.Labels, namespace.Labels), nil
}

// chosen returns the policy that holds for a guest of these labels in a namespace of these labels, or nil. It
// is pure.
func chosen(policies []v1alpha1.MigrationPolicy, guest, namespace labels.Set) *v1alpha1.MigrationPolicy {
	var best *v1alpha1.MigrationPolicy
	for i := range policies {
		p := &policies[i]
		s := p.Spec.Selectors
		if s == nil || !labels.SelectorFromSet(s.VirtualMachineInstanceSelector).Matches(guest) || !labels.SelectorFromSet(s.NamespaceSelector).Matches(namespace) {
			continue
		}
		if best == nil || precedes(p, best) {
			best = p
		}
	}
	return best
}

// precedes says whether, of two policies with selectors, the first holds. The order is KubeVirt's.
func precedes(a, b *v1alpha1.MigrationPolicy) bool {
	guest := func(p *v1alpha1.MigrationPolicy) int { return len(p.Spec.Selectors.VirtualMachineInstanceSelector) }
	all := func(p *v1alpha1.MigrationPolicy) int { return guest(p) + len(p.Spec.Selectors.NamespaceSelector) }
	return cmp.Or(cmp.Compare(all(b), all(a)), cmp.Compare(guest(b), guest(a)), cmp.Compare(a.Name, b.Name)) < 0
}

// overridden returns the configuration with what the policy sets in it. It is pure.
func overridden(config *v1.MigrationConfiguration, p *v1alpha1.MigrationPolicy) *v1.MigrationConfiguration {
	out := &v1.MigrationConfiguration{}
	if config != nil {
		out = config.DeepCopy()
	}
	spec := p.Spec.DeepCopy()
	out.BandwidthPerMigration = cmp.Or(spec.BandwidthPerMigration, out.BandwidthPerMigration)
	out.CompletionTimeoutPerGiB = cmp.Or(spec.CompletionTimeoutPerGiB, out.CompletionTimeoutPerGiB)
	out.MaxDowntimeMs = cmp.Or(spec.MaxDowntimeMs, out.MaxDowntimeMs)
	out.AllowAutoConverge = cmp.Or(spec.AllowAutoConverge, out.AllowAutoConverge)
	return out
}
