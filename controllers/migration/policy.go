package migration

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeqemu/kubeqemu/api/migrations/v1alpha1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// Policies finds the MigrationPolicies of VMIs. Policies and namespaces are not watched: the caches of a watch would cost
// memory at all times.
type Policies struct {
	// Live reads past the cache.
	Live  client.Reader
	Clock clock.PassiveClock

	mu         sync.Mutex
	read       time.Time // of what follows
	policies   []v1alpha1.MigrationPolicy
	namespaces map[string]labels.Set
}

// policiesAge is how long Recent believes what it has read.
const policiesAge = 10 * time.Second

// Recent is Now, but may be some seconds old. It is asked often.
func (p *Policies) Recent(ctx context.Context, vmi *v1.VirtualMachineInstance) (*v1alpha1.MigrationPolicy, error) {
	policies, set, fresh := p.kept(vmi.Namespace)
	if !fresh {
		now, err := p.list(ctx)
		if err != nil {
			return nil, err
		}
		policies, set = now, nil
		p.keep(func() { p.read, p.policies, p.namespaces = p.Clock.Now(), now, map[string]labels.Set{} })
	}
	if len(policies) == 0 {
		return nil, nil
	}
	if set == nil {
		var err error
		if set, err = p.labels(ctx, vmi.Namespace); err != nil {
			return nil, err
		}
		p.keep(func() { p.namespaces[vmi.Namespace] = set })
	}
	return chosen(policies, vmi.Labels, set), nil
}

// kept is what was read lately. The labels are nil if they were not read. Nothing is read under the mutex: an API server that is
// slow would hold up everybody.
func (p *Policies) kept(namespace string) (policies []v1alpha1.MigrationPolicy, set labels.Set, fresh bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	age := p.Clock.Since(p.read)
	return p.policies, p.namespaces[namespace], age >= 0 && age <= policiesAge && p.namespaces != nil
}

func (p *Policies) keep(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

// Now returns the MigrationPolicy that holds for a VMI, or nil.
func (p *Policies) Now(ctx context.Context, vmi *v1.VirtualMachineInstance) (*v1alpha1.MigrationPolicy, error) {
	policies, err := p.list(ctx)
	if err != nil || len(policies) == 0 {
		return nil, err
	}
	set, err := p.labels(ctx, vmi.Namespace)
	if err != nil {
		return nil, err
	}
	return chosen(policies, vmi.Labels, set), nil
}

func (p *Policies) list(ctx context.Context) ([]v1alpha1.MigrationPolicy, error) {
	var policies v1alpha1.MigrationPolicyList
	err := p.Live.List(ctx, &policies)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil, nil // an installation without this kind
	}
	if err != nil {
		return nil, fmt.Errorf("list MigrationPolicies: %w", err)
	}
	return policies.Items, nil
}

func (p *Policies) labels(ctx context.Context, name string) (labels.Set, error) {
	var namespace corev1.Namespace
	if err := p.Live.Get(ctx, client.ObjectKey{Name: name}, &namespace); err != nil {
		return nil, fmt.Errorf("get the namespace, for MigrationPolicies: %w", err)
	}
	if namespace.Labels == nil {
		return labels.Set{}, nil
	}
	return namespace.Labels, nil
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
	out.AllowPostCopy = cmp.Or(spec.AllowPostCopy, out.AllowPostCopy)
	out.AllowWorkloadDisruption = cmp.Or(spec.AllowWorkloadDisruption, out.AllowWorkloadDisruption)
	return out
}
