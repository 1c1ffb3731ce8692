package rights

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/apiserver/subresources"
	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
)

// TestDataVolumes: what config/datavolumes grants besides config/default is there to be read. Some of it
// is forbidden otherwise: a policy holds the connections of virt-controller and of virt-api to importer pods
// (controllers/filler has a test), and virt-controller may delete the one APIService that it leaves to CDI.
func TestDataVolumes(t *testing.T) {
	const forwards, handsOver = "create: pods/portforward of core ", "get,delete: apiservices of apiregistration.k8s.io everywhere named v1beta1.upload.cdi.kubevirt.io"
	exceptions := map[string][]string{"virt-controller": {forwards, handsOver}, "virt-api": {forwards}}
	m := shipped(t)
	if err := m.load("../../config/datavolumes/objects"); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, a := range m.Accounts {
		after, err := m.Of(a.Namespace, a.Name)
		if err != nil {
			t.Fatal(err)
		}
		before := granted(t, a.Namespace, a.Name)
		var lines []string
		for _, g := range after {
			if !slices.ContainsFunc(before, func(b Grant) bool { return fmt.Sprint(b) == fmt.Sprint(g) }) {
				lines = append(lines, a.Name+" "+g.String()+"\n")
			}
		}
		slices.Sort(lines)
		text.WriteString(strings.Join(lines, ""))
		if exceptions[a.Name] == nil {
			if len(lines) > 0 {
				t.Errorf("%s gets more rights: %v", a.Name, lines)
			}
			continue
		}
		wrong := Forbidden(Component, after)
		if len(wrong) != len(exceptions[a.Name]) {
			t.Errorf("%s may %v, want %v of what is forbidden", a.Name, wrong, exceptions[a.Name])
		}
		for _, w := range wrong {
			if !slices.ContainsFunc(exceptions[a.Name], func(e string) bool { return strings.HasPrefix(w, e) }) {
				t.Errorf("%s may %s", a.Name, w)
			}
		}
	}
	golden.Compare(t, "testdata/datavolumes.golden", text.String())
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
			"create cdi.kubevirt.io/datavolumes": writes, "deletecollection cdi.kubevirt.io/datasources": writes, "create cdi.kubevirt.io/datavolumes/source": writes,
			"create upload.cdi.kubevirt.io/uploadtokenrequests": writes, "get subresources.kubevirt.io/" + subresources.Upload().Name(): writes} {
			if rights[right] != want {
				t.Errorf("%s: %s is %v, want %v", name, right, rights[right], want)
			}
		}
		for right := range rights {
			if !strings.Contains(right, " cdi.kubevirt.io/") && right != "create upload.cdi.kubevirt.io/uploadtokenrequests" && right != "get subresources.kubevirt.io/datavolumes/upload" || strings.Contains(right, "/status") || strings.Contains(right, "/finalizers") {
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
