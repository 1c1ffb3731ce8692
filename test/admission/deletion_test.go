package admission

import (
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// deletions: virt-api hears of the deletions that name a grace period, and of no other. The node of these guests does not answer, so
// each deletion that virt-api hears of shows a warning.
func (s *testServer) deletions(t *testing.T) {
	const asked = "keeps its own grace period"
	for name, c := range map[string]struct {
		options []client.DeleteOption
		warns   bool
	}{
		"plain":     {nil, false},
		"forced":    {[]client.DeleteOption{client.GracePeriodSeconds(0)}, true},
		"dry-run":   {[]client.DeleteOption{client.GracePeriodSeconds(0), client.DryRunAll}, false},
		"as-it-is":  {[]client.DeleteOption{client.GracePeriodSeconds(v1.DefaultGracePeriodSeconds)}, false},
		"in-longer": {[]client.DeleteOption{client.GracePeriodSeconds(900)}, true},
	} {
		of, _ := s.launched(t, "deleted-"+name, v1.EvictionStrategyNone)
		as, heard := s.warned()
		if err := as.Delete(t.Context(), of, c.options...); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := heard.next(); strings.Contains(got, asked) != c.warns {
			t.Errorf("%s: the API server warns %q", name, got)
		}
	}
}
