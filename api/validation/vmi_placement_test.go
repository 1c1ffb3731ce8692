package validation

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func TestValidatePlacement(t *testing.T) {
	edits{
		"hostname":              {func(s *spec) { s.Hostname, s.Subdomain = "web-0", "web" }, ""},
		"hostname that is none": {func(s *spec) { s.Hostname, s.Subdomain = "Web_0", "web.example" }, ".hostname .subdomain"},
		"paused":                {func(s *spec) { s.StartStrategy = v1.StartStrategyPaused }, ""},
		"service account":       {func(s *spec) { s.ServiceAccountName = "No Name" }, ".serviceAccountName"},
		"eviction by migration": {func(s *spec) { s.EvictionStrategy = ptr.To(v1.EvictionStrategyLiveMigrate) }, ""},
		"eviction by nobody": {func(s *spec) { s.EvictionStrategy = ptr.To[v1.EvictionStrategy]("Evict") },
			".evictionStrategy"},
		"eviction by others": {func(s *spec) { s.EvictionStrategy = ptr.To(v1.EvictionStrategyExternal) }, ""},
		"no DNS at all":      {func(s *spec) { s.DNSPolicy = corev1.DNSNone }, ".dnsConfig.nameservers"},
	}.try(t, "spec")
}

// TestValidateNameOfEvictableVMI: an eviction names only the pod, so the pod's name has the VMI's in whole.
func TestValidateNameOfEvictableVMI(t *testing.T) {
	for _, c := range []struct {
		name     string
		strategy v1.EvictionStrategy
		refused  bool
	}{
		{strings.Repeat("a", v1.MaxWholeName), v1.EvictionStrategyExternal, false},
		{strings.Repeat("a", v1.MaxWholeName+1), v1.EvictionStrategyExternal, true},
		{strings.Repeat("a", v1.MaxWholeName), v1.EvictionStrategyLiveMigrate, false},
		{strings.Repeat("a", v1.MaxWholeName+1), v1.EvictionStrategyLiveMigrate, true},
		{strings.Repeat("a", v1.MaxWholeName+1), v1.EvictionStrategyNone, false},
		{strings.Repeat("a", v1.MaxWholeName+1), v1.EvictionStrategyLiveMigrateIfPossible, false},
	} {
		spec := &v1.VirtualMachineInstanceSpec{EvictionStrategy: &c.strategy}
		if errs := validateEvictedName(spec, c.name); (len(errs) > 0) != c.refused || c.refused &&
			errs[0].Field != "metadata.name" {
			t.Errorf("%s, %d characters: %v", c.strategy, len(c.name), errs)
		}
		byDefault := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Name: c.name}}
		v1.ApplyClusterDefaults(byDefault, &v1.KubeVirtConfiguration{EvictionStrategy: &c.strategy})
		if got := byDefault.Spec.EvictionStrategy; (got == nil) != c.refused {
			t.Errorf("%s by default, %d characters: the VMI has %v", c.strategy, len(c.name), got)
		}
		if name := v1.LauncherPodName(c.name, "uid",
			v1.FirstPod); (v1.VMIOfLauncherPod(name) == c.name) != (len(c.name) <= v1.MaxWholeName) {
			t.Errorf("%d characters: the pod %s is of the VMI %q", len(c.name), name, v1.VMIOfLauncherPod(name))
		}
	}
}
