package parts

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/netsetup/ipv6"
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

// TestResolversOfThePodAloneAreNotTold: servers that only the pod itself can reach are not told.
func TestResolversOfThePodAloneAreNotTold(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	text := "search a.test . b.test.\nnameserver 10.96.0.10\nnameserver fd00:10:96::a\nnameserver ::1\n" +
		"nameserver fe80::53%eth0\nnameserver nonsense\n"
	if err := os.WriteFile(file, []byte(text+strings.Repeat("nameserver fd00::53\n", 20)), 0o644); err != nil {
		t.Fatal(err)
	}
	r := readResolver(file)
	if !slices.Equal(r.servers4, []netip.Addr{netip.MustParseAddr("10.96.0.10")}) || len(r.servers6) != ipv6.MaxServers ||
		r.servers6[0] != netip.MustParseAddr("fd00:10:96::a") || r.servers6[1] != netip.MustParseAddr("fd00::53") ||
		!slices.Equal(r.search, []string{"a.test", "b.test"}) {
		t.Errorf("%+v", r)
	}
}
