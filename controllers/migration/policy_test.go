package migration

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kubeqemu/kubeqemu/api/migrations/v1alpha1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// TestPolicyWithMostLabelsHolds: of the policies that select a guest, the one with the most labels holds.
func TestPolicyWithMostLabelsHolds(t *testing.T) {
	type set = map[string]string
	of := func(name string, guest, namespace set) v1alpha1.MigrationPolicy {
		return v1alpha1.MigrationPolicy{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1alpha1.MigrationPolicySpec{Selectors: &v1alpha1.Selectors{VirtualMachineInstanceSelector: guest, NamespaceSelector: namespace}}}
	}
	all := of("all", nil, nil)
	web, db := of("web", set{"app": "web"}, nil), of("db", set{"app": "db"}, nil)
	team, teams := of("team", nil, set{"team": "a"}), of("teams", nil, set{"team": "b"})
	both, tall := of("both", set{"app": "web"}, set{"team": "a"}), of("tall", set{"app": "web", "tier": "1"}, nil)
	for name, c := range map[string]struct {
		policies         []v1alpha1.MigrationPolicy
		guest, namespace set
		want             string
	}{
		"no policy":                     {nil, set{"app": "web"}, nil, ""},
		"no selectors":                  {[]v1alpha1.MigrationPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "none"}}}, set{"app": "web"}, nil, ""},
		"empty selectors":               {[]v1alpha1.MigrationPolicy{all}, nil, nil, "all"},
		"another value":                 {[]v1alpha1.MigrationPolicy{db}, set{"app": "web"}, nil, ""},
		"no labels":                     {[]v1alpha1.MigrationPolicy{web, team}, nil, nil, ""},
		"a label":                       {[]v1alpha1.MigrationPolicy{all, db, web}, set{"app": "web", "x": "y"}, nil, "web"},
		"the namespace's label":         {[]v1alpha1.MigrationPolicy{teams, team, all}, nil, set{"team": "a"}, "team"},
		"the guest's label comes first": {[]v1alpha1.MigrationPolicy{team, web}, set{"app": "web"}, set{"team": "a"}, "web"},
		"two labels":                    {[]v1alpha1.MigrationPolicy{web, both, team}, set{"app": "web"}, set{"team": "a"}, "both"},
		"half of a policy":              {[]v1alpha1.MigrationPolicy{both}, set{"app": "web"}, set{"team": "b"}, ""},
		"two labels of the guest":       {[]v1alpha1.MigrationPolicy{both, tall}, set{"app": "web", "tier": "1"}, set{"team": "a"}, "tall"},
		"the first name":                {[]v1alpha1.MigrationPolicy{of("b", set{"app": "web"}, nil), of("a", set{"app": "web"}, nil)}, set{"app": "web"}, nil, "a"},
	} {
		got := ""
		if p := chosen(c.policies, c.guest, c.namespace); p != nil {
			got = p.Name
		}
		if got != c.want {
			t.Errorf("%s: %q holds, want %q", name, got, c.want)
		}
	}
}

// TestPolicyChangesOnlyWhatItSets: a policy changes what it sets, and nothing else, of a copy.
func TestPolicyChangesOnlyWhatItSets(t *testing.T) {
	cluster := &v1.MigrationConfiguration{ParallelMigrationsPerCluster: ptr.To[uint32](3), BandwidthPerMigration: ptr.To(resource.MustParse("1Gi")), ProgressTimeout: ptr.To[int64](30),
		MaxDowntimeMs: ptr.To[uint64](50), AllowAutoConverge: ptr.To(true), AllowWorkloadDisruption: ptr.To(true)}
	was := cluster.DeepCopy()
	spec := v1alpha1.MigrationPolicySpec{BandwidthPerMigration: ptr.To(resource.MustParse("8Mi")), CompletionTimeoutPerGiB: ptr.To[int64](7), MaxDowntimeMs: ptr.To[uint64](9), AllowAutoConverge: ptr.To(false), AllowPostCopy: ptr.To(true), AllowWorkloadDisruption: ptr.To(false)}
	for name, c := range map[string]struct {
		config *v1.MigrationConfiguration
		spec   v1alpha1.MigrationPolicySpec
		want   v1.MigrationConfiguration
	}{
		"everything": {cluster, spec, v1.MigrationConfiguration{ParallelMigrationsPerCluster: was.ParallelMigrationsPerCluster, ProgressTimeout: was.ProgressTimeout,
			BandwidthPerMigration: spec.BandwidthPerMigration, CompletionTimeoutPerGiB: spec.CompletionTimeoutPerGiB, MaxDowntimeMs: spec.MaxDowntimeMs, AllowAutoConverge: spec.AllowAutoConverge,
			AllowPostCopy: spec.AllowPostCopy, AllowWorkloadDisruption: spec.AllowWorkloadDisruption}},
		"nothing":       {cluster, v1alpha1.MigrationPolicySpec{}, *was},
		"over defaults": {nil, v1alpha1.MigrationPolicySpec{MaxDowntimeMs: ptr.To[uint64](9)}, v1.MigrationConfiguration{MaxDowntimeMs: ptr.To[uint64](9)}},
	} {
		got := overridden(c.config, &v1alpha1.MigrationPolicy{Spec: c.spec})
		if !equality.Semantic.DeepEqual(*got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, *got, c.want)
		}
		if !equality.Semantic.DeepEqual(cluster, was) {
			t.Fatalf("%s: the cluster's own bounds became %+v", name, cluster)
		}
	}
}

// TestMigrationHasTheBoundsOfItsPolicy: a migration has the bounds of the policy that selects the guest's namespace, and says which policy
// it is.
func TestMigrationHasTheBoundsOfItsPolicy(t *testing.T) {
	for namespace, want := range map[string]string{"a": "slow", "b": ""} {
		c := newCluster(t)
		policy := &v1alpha1.MigrationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "slow"}}
		policy.Spec = v1alpha1.MigrationPolicySpec{Selectors: &v1alpha1.Selectors{NamespaceSelector: map[string]string{"team": "a"}}, CompletionTimeoutPerGiB: ptr.To[int64](7)}
		c.make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{"team": namespace}}}, policy)
		c.vm("a", "1")
		_, vmi := c.steps(c.migration("m", "a"))
		got := vmi.Status.MigrationState
		if got == nil || got.MigrationPolicyName != want || (got.MigrationConfiguration.Completion(1) == 7*time.Second) != (want != "") {
			t.Errorf("team %s: %+v, want the policy %q", namespace, got, want)
		}
	}
}

// TestClusterMayLackPolicies: a cluster that lacks the kind has no policies.
func TestClusterMayLackPolicies(t *testing.T) {
	c := newCluster(t)
	for name, err := range map[string]error{"no kind": &meta.NoKindMatchError{}, "not served": apierrors.NewNotFound(schema.GroupResource{}, "")} {
		c.Live = interceptor.NewClient(c.client, interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return err }})
		if policy, err := (&Policies{Live: c.Live, Clock: c.clock}).Now(t.Context(), &v1.VirtualMachineInstance{}); policy != nil || err != nil {
			t.Errorf("%s: %v, %v", name, policy, err)
		}
	}
}
