package node

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
)

// TestWhosePod: of a launcher the pod's name says which VMI it is for, and only a
// name that virt-controller wrote down does, whatever hash is in it.
func TestWhosePod(t *testing.T) {
	const uid, migration = types.UID("0a1b2c3d-0000-4000-8000-000000000001"), types.UID("0a1b2c3d-0000-4000-8000-000000000002")
	first, target := v1.LauncherPodName("vm", uid, v1.FirstPod), v1.LauncherPodName("vm", uid, migration)
	for what, c := range map[string]struct {
		pod, namespace string
		lists          []string
		active, served bool
	}{
		"its first":                             {first, "ns", []string{first}, true, true},
		"its first, before it was seen":         {first, "ns", nil, false, false},
		"in another namespace":                  {first, "other", []string{first}, true, false},
		"of an earlier VMI":                     {v1.LauncherPodName("vm", migration, v1.FirstPod), "ns", []string{first}, true, false},
		"a migration's":                         {target, "ns", []string{first, target}, true, true},
		"a migration's that nobody knows":       {target, "ns", []string{first}, true, false},
		"a name like it":                        {"virt-launcher-vm-0000000000", "ns", []string{first}, true, false},
		"one that virt-controller took for its": {"x", "ns", []string{first, "x"}, true, true},
	} {
		launcher := &sessions.Session{Pod: types.NamespacedName{Namespace: c.namespace, Name: c.pod}}
		r := &Reconciler{NodeName: "n1", Sessions: connected(t, launcher)}
		object := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", UID: uid}}
		object.Status.NodeName = "n1"
		for _, name := range c.lists {
			object.Status.LauncherPods = append(object.Status.LauncherPods, v1.LauncherPod{Name: name})
		}
		if c.active {
			object.Status.ActivePods = map[types.UID]string{"p": "n1"}
		}
		if served := r.Launcher(object) != nil; served != c.served {
			t.Errorf("%s: served: %v", what, served)
		}
	}
}
