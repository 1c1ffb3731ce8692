package rights

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/golden"
)

// TestDataVolumes: what config/datavolumes grants besides config/default is there to be read. One
// right of it is forbidden otherwise: a policy holds virt-controller's connections to importer pods
// (controllers/filler has a test).
func TestDataVolumes(t *testing.T) {
	const account = "virt-controller"
	m := shipped(t)
	before, err := m.Of("kubevirt", account)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.load("../../config/datavolumes/objects"); err != nil {
		t.Fatal(err)
	}
	after, err := m.Of("kubevirt", account)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, g := range after {
		if !slices.ContainsFunc(before, func(b Grant) bool { return fmt.Sprint(b) == fmt.Sprint(g) }) {
			lines = append(lines, g.String()+"\n")
		}
	}
	slices.Sort(lines)
	golden.Compare(t, "testdata/datavolumes.golden", strings.Join(lines, ""))
	if wrong := Forbidden(Component, after); len(wrong) != 1 || !strings.HasPrefix(wrong[0], "create: pods/portforward of core ") {
		t.Errorf("%s may %v, want only to forward of what is forbidden", account, wrong)
	}
	for _, a := range m.Accounts {
		if grants, err := m.Of(a.Namespace, a.Name); err != nil || a.Name != account && len(grants) != len(granted(t, a.Namespace, a.Name)) {
			t.Errorf("%s gets more rights (%v)", a.Name, err)
		}
	}
}

// granted are an account's rights in config/default.
func granted(t *testing.T, namespace, name string) []Grant {
	t.Helper()
	grants, err := shipped(t).Of(namespace, name)
	if err != nil {
		t.Fatal(err)
	}
	return grants
}

// TestDataVolumeRoles: who edits a namespace edits its DataVolumes, and nobody writes their status.
func TestDataVolumeRoles(t *testing.T) {
	m := shipped(t)
	if err := m.load("../../config/datavolumes/objects"); err != nil {
		t.Fatal(err)
	}
	for name, writes := range map[string]bool{"admin": true, "edit": true, "view": false} {
		role := m.ClusterRoles["cdi.kubevirt.io:"+name]
		if role.Labels["rbac.authorization.k8s.io/aggregate-to-"+name] != "true" || len(role.Rules) == 0 {
			t.Errorf("%s: %v", name, role.Labels)
		}
		rights := single(role.Rules)
		for right, want := range map[string]bool{"list cdi.kubevirt.io/datavolumes": true, "watch cdi.kubevirt.io/datasources": true,
			"create cdi.kubevirt.io/datavolumes": writes, "deletecollection cdi.kubevirt.io/datasources": writes, "create cdi.kubevirt.io/datavolumes/source": writes} {
			if rights[right] != want {
				t.Errorf("%s: %s is %v, want %v", name, right, rights[right], want)
			}
		}
		for right := range rights {
			if !strings.Contains(right, " cdi.kubevirt.io/") || strings.Contains(right, "/status") || strings.Contains(right, "/finalizers") {
				t.Errorf("%s may %s", name, right)
			}
		}
		for _, rule := range role.Rules {
			for _, wrong := range Forbidden(Component, []Grant{{PolicyRule: rule}}) {
				t.Errorf("%s: %s", name, wrong)
			}
		}
	}
}
