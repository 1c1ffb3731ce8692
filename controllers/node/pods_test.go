package node

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/node/sessions"
)

// TestLauncherIsThatOfTheGuestsPod: a VMI's launcher is that of the pod which has the VMI's guest by the VMI's
// status, whatever hash is in another pod's name.
func TestLauncherIsThatOfTheGuestsPod(t *testing.T) {
	const uid, migration = types.UID("0a1b2c3d-0000-4000-8000-000000000001"), types.UID("0a1b2c3d-0000-4000-8000-000000000002")
	first, target := v1.LauncherPodName("vm", uid, v1.FirstPod), v1.LauncherPodName("vm", uid, migration)
	for what, c := range map[string]struct {
		pod, namespace string
		moved          string
		active, served bool
	}{
		"its first":                        {first, "ns", "", true, true},
		"its first, before it was seen":    {first, "ns", "", false, false},
		"in another namespace":             {first, "other", "", true, false},
		"of an earlier VMI":                {v1.LauncherPodName("vm", migration, v1.FirstPod), "ns", "", true, false},
		"a migration's target":             {target, "ns", "", true, false},
		"where the guest moved":            {target, "ns", target, true, true},
		"its first, after the guest moved": {first, "ns", target, true, false},
		"a name like it":                   {"virt-launcher-vm-0000000000", "ns", "", true, false},
	} {
		launcher := &sessions.Session{Pod: types.NamespacedName{Namespace: c.namespace, Name: c.pod}}
		r := &Reconciler{NodeName: "n1", Sessions: connected(t, launcher)}
		object := &v1.VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "vm", UID: uid}}
		object.Status.NodeName, object.Status.LauncherPod = "n1", c.moved
		for _, name := range []string{first, target} {
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
