package kubevirt

import (
	"context"
	"testing"

	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func TestVerbosity(t *testing.T) {
	ctx := context.Background()
	kv := kubeVirt("elsewhere", "kv", 1, false)
	kv.Spec.Configuration.DeveloperConfiguration.LogVerbosity = &v1.LogVerbosity{VirtHandler: 3, NodeVerbosity: map[string]int32{"node-1": 6}}
	c, set := newClient(t, kv), -1
	for node, want := range map[string]int{"node-1": 6, "node-2": 3} {
		v := &Verbosity{Client: c, Component: v1.VirtHandler, Node: node, Set: func(n int) { set = n }}
		if _, err := v.Reconcile(ctx, ctrl.Request{}); err != nil || set != want {
			t.Errorf("%s: %d, want %d (%v)", node, set, want, err)
		}
	}
	if err := c.Delete(ctx, kv); err != nil {
		t.Fatal(err)
	}
	v := &Verbosity{Client: c, Component: v1.VirtHandler, Node: "node-1", Set: func(n int) { set = n }}
	if _, err := v.Reconcile(ctx, ctrl.Request{}); err != nil || set != 0 {
		t.Errorf("without a KubeVirt: %d, want 0 (%v)", set, err)
	}
}
