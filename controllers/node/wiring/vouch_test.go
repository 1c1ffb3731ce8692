package wiring

import (
	"errors"
	"net/netip"
	"reflect"
	"testing"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/nodetest"
	"github.com/kubeqemu/kubeqemu/netsetup"
)

// TestNamespaceMustHaveThePodsAddresses: a namespace that lacks an address of the pod is not the pod's.
func TestNamespaceMustHaveThePodsAddresses(t *testing.T) {
	facts := netsetup.Facts{Addresses: []netip.Prefix{netip.MustParsePrefix("10.244.0.5/24"),
		netip.MustParsePrefix("10.9.9.9/32"), netip.MustParsePrefix("fd00::5/64")}}
	tests := []struct {
		name string
		pod  []string
		want []string
		err  error
	}{
		{"not known yet", nil, nil, nil},
		{"the pod's", []string{"10.244.0.5"}, []string{"10.244.0.5"}, nil},
		{"of both families", []string{"fd00::5", "10.244.0.5"}, []string{"10.244.0.5", "fd00::5"}, nil},
		{"written otherwise", []string{"fd00:0::0005", "::ffff:10.244.0.5"}, []string{"10.244.0.5", "fd00::5"}, nil},
		{"another's", []string{"10.244.0.6"}, nil, errForeignNetNS},
		{"one of two", []string{"10.244.0.5", "fd00::6"}, nil, errForeignNetNS},
	}
	for _, tt := range tests {
		if got, err := vouched(facts, tt.pod); !reflect.DeepEqual(got, tt.want) || !errors.Is(err, tt.err) {
			t.Errorf("%s: %v, %v; want %v, %v", tt.name, got, err, tt.want, tt.err)
		}
	}
	if got, err := vouched(facts, []string{"here"}); err == nil {
		t.Errorf("no address is read as %v", got)
	}
}

// TestWiredNamespaceHasThePodsAddresses: the plan of either binding, done, leaves a namespace in which the pod's
// addresses are found again: by a virt-handler that is restarted then, too.
func TestWiredNamespaceHasThePodsAddresses(t *testing.T) {
	pod := []string{"10.244.0.5", "fd00::5"}
	for name, plan := range map[string]func(netsetup.Facts) (*netsetup.Plan, error){
		"masquerade": func(f netsetup.Facts) (*netsetup.Plan, error) {
			return netsetup.PlanMasquerade(f, netsetup.Masquerade{})
		},
		"bridge": func(f netsetup.Facts) (*netsetup.Plan, error) { return netsetup.PlanBridge(f, netsetup.Bridged{}) },
	} {
		t.Run(name, func(t *testing.T) {
			netns := nodetest.PodNetwork(t)
			for range 2 {
				facts, err := netsetup.ReadFacts(netns, v1.PodLink)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := vouched(facts, pod); err != nil || !reflect.DeepEqual(got, pod) {
					t.Errorf("%v, %v, want %v", got, err, pod)
				}
				p, err := plan(facts)
				if err != nil {
					t.Fatal(err)
				}
				if err := netsetup.Apply(netns, p); err != nil && !netsetup.Wired(err) {
					t.Fatal(err)
				}
			}
		})
	}
}
