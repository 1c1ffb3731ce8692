package launcher

import (
	"slices"
	"testing"
)

func TestSearchDomainsWithAService(t *testing.T) {
	pod := []string{"team-a.svc.cluster.local", "svc.cluster.local", "cluster.local"}
	for _, tt := range []struct {
		search  []string
		service string
		want    []string
	}{
		{pod, "", pod},
		{pod, "web.team-a.svc", append([]string{"web.team-a.svc.cluster.local"}, pod...)},
		{pod, "web.team-b.svc", pod},
		{nil, "web.team-a.svc", nil},
	} {
		if got := withService(tt.search, tt.service); !slices.Equal(got, tt.want) {
			t.Errorf("%v with %q: %v, want %v", tt.search, tt.service, got, tt.want)
		}
	}
}
