package rights

import (
	"maps"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

// userRoles are the roles for users, by name without "kubevirt.io:", and which
// of Kubernetes' own they add to.
var userRoles = map[string]string{"admin": "admin", "edit": "edit", "view": "view", "migrate": "", "default": ""}

const aggregate = "rbac.authorization.k8s.io/aggregate-to-"

func userRole(t *testing.T, m *Manifests, name string) rbacv1.ClusterRole {
	t.Helper()
	role, ok := m.ClusterRoles["kubevirt.io:"+name]
	if !ok || len(role.Rules) == 0 {
		t.Fatalf("there is no role kubevirt.io:%s, or it is empty", name)
	}
	return role
}

// single are the rights of a role, one "verb group/resource" each.
func single(rules []rbacv1.PolicyRule) map[string]bool {
	all := map[string]bool{}
	for _, r := range rules {
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					all[verb+" "+group+"/"+resource] = true
				}
			}
		}
	}
	return all
}

// TestUserRolesAreKubeVirts: the roles are KubeVirt's, add to the roles they should add to,
// and none reaches what is the components'.
func TestUserRolesAreKubeVirts(t *testing.T) {
	m := shipped(t)
	for name := range m.ClusterRoles {
		if short, ok := strings.CutPrefix(name, "kubevirt.io:"); ok {
			if _, known := userRoles[short]; !known {
				t.Errorf("role %s is not looked at here", name)
			}
		}
	}
	for name, to := range userRoles {
		role := userRole(t, m, name)
		for label, value := range role.Labels {
			if strings.HasPrefix(label, aggregate) && (label != aggregate+to || value != "true") {
				t.Errorf("%s has the label %s=%s", role.Name, label, value)
			}
		}
		if to != "" && role.Labels[aggregate+to] != "true" {
			t.Errorf("%s does not add to %s", role.Name, to)
		}
		for _, r := range role.Rules {
			if len(r.NonResourceURLs) > 0 || len(r.ResourceNames) > 0 || wildcard(Grant{PolicyRule: r}) != "" {
				t.Errorf("%s: %v is more, or less, than rights on kinds", role.Name, r)
			}
		}
		for _, wrong := range beyondUsers(single(role.Rules)) {
			t.Errorf("%s: %s", role.Name, wrong)
		}
	}
}

// beyondUsers are the rights that no role for users may have.
func beyondUsers(rights map[string]bool) []string {
	var wrong []string
	for _, right := range slices.Sorted(maps.Keys(rights)) {
		verb, what, _ := strings.Cut(right, " ")
		group, resource, _ := strings.Cut(what, "/")
		_, sub, _ := strings.Cut(resource, "/")
		reads := verb == "get" || verb == "list" || verb == "watch"
		switch {
		case group == "instancetype.kubevirt.io" && strings.Contains(resource, "cluster") && !reads:
			wrong = append(wrong, right+": it is for all namespaces")
		case group == "instancetype.kubevirt.io" && sub == "":
		case group == "migrations.kubevirt.io" && !reads:
			wrong = append(wrong, right+": a policy is for all namespaces")
		case group == "migrations.kubevirt.io" && sub == "":
		case slices.Contains([]string{"snapshot.kubevirt.io", "export.kubevirt.io", "clone.kubevirt.io"}, group) && sub == "": // KubeVirt's, which there are not yet
		case group == "pool.kubevirt.io" && (sub == "" || sub == "scale"):
		case group != "kubevirt.io" && group != "subresources.kubevirt.io":
			wrong = append(wrong, right+": not a kind of ours")
		case group == "kubevirt.io" && (sub == "status" || sub == "finalizers"):
			wrong = append(wrong, right+": the components' to write")
		case group == "kubevirt.io" && sub != "" && sub != "scale":
			wrong = append(wrong, right+": a subresource that is not known here")
		case resource == "kubevirts" && !reads:
			wrong = append(wrong, right+": it configures the cluster")
		case group == "subresources.kubevirt.io" && sub == "vsock":
			wrong = append(wrong, right+": in none of KubeVirt's roles")
		}
	}
	return wrong
}

// TestUserRolesNameWhatKubeVirtsName: KubeVirt 1.7's names for what Kubeqemu does not serve yet, by role. Programs ask whether their user may.
func TestUserRolesNameWhatKubeVirtsName(t *testing.T) {
	m := shipped(t)
	reads := []string{"get subresources.kubevirt.io/virtualmachineinstances/sev/fetchcertchain", "get subresources.kubevirt.io/virtualmachineinstances/sev/querylaunchmeasurement",
		"get subresources.kubevirt.io/virtualmachines/objectgraph", "get subresources.kubevirt.io/virtualmachineinstances/objectgraph",
		"watch snapshot.kubevirt.io/virtualmachinesnapshots", "list snapshot.kubevirt.io/virtualmachinesnapshotcontents", "get snapshot.kubevirt.io/virtualmachinerestores",
		"get export.kubevirt.io/virtualmachineexports", "get clone.kubevirt.io/virtualmachineclones"}
	writes := []string{"update subresources.kubevirt.io/virtualmachineinstances/sev/setupsession", "update subresources.kubevirt.io/virtualmachineinstances/sev/injectlaunchsecret",
		"update subresources.kubevirt.io/virtualmachines/memorydump", "update subresources.kubevirt.io/virtualmachineinstances/addvolume",
		"get subresources.kubevirt.io/virtualmachineinstances/usbredir", "get subresources.kubevirt.io/virtualmachineinstances/vnc/screenshot",
		"create snapshot.kubevirt.io/virtualmachinesnapshots", "delete export.kubevirt.io/virtualmachineexports", "patch clone.kubevirt.io/virtualmachineclones"}
	for role, want := range map[string][2]bool{"admin": {true, true}, "edit": {true, true}, "view": {true, false}, "migrate": {}, "default": {}} {
		may := single(userRole(t, m, role).Rules)
		for i, rights := range [][]string{reads, writes} {
			for _, right := range rights {
				if may[right] != want[i] {
					t.Errorf("%s may %s: %v", role, right, may[right])
				}
			}
		}
	}
}

// TestWalkFindsRightsBeyondUsers: the walk finds what it must find.
func TestWalkFindsRightsBeyondUsers(t *testing.T) {
	for right, bad := range map[string]bool{
		"update instancetype.kubevirt.io/virtualmachinepreferences": false, "update instancetype.kubevirt.io/virtualmachineclusterpreferences": true,
		"get kubevirt.io/virtualmachines": false, "update kubevirt.io/virtualmachineinstances/status": true,
		"update kubevirt.io/virtualmachineinstances/finalizers": true, "get /secrets": true, "patch kubevirt.io/kubevirts": true,
		"list kubevirt.io/kubevirts": false, "create /pods/exec": true, "patch kubevirt.io/virtualmachineinstancereplicasets/scale": false,
		"patch pool.kubevirt.io/virtualmachinepools/scale": false, "patch pool.kubevirt.io/virtualmachinepools/status": true,
		"delete snapshot.kubevirt.io/virtualmachinesnapshots": false, "update export.kubevirt.io/virtualmachineexports/status": true,
		"list migrations.kubevirt.io/migrationpolicies": false, "patch migrations.kubevirt.io/migrationpolicies": true,
		"get subresources.kubevirt.io/virtualmachineinstances/vsock": true, "get kubevirt.io/virtualmachines/console": true,
	} {
		if wrong := beyondUsers(map[string]bool{right: true}); (len(wrong) > 0) != bad {
			t.Errorf("%s: %v", right, wrong)
		}
	}
}

// TestUserRolesNest: view reads, edit is more, admin more still; what opens a
// guest is not for those who only look.
func TestUserRolesNest(t *testing.T) {
	m := shipped(t)
	rights := map[string]map[string]bool{}
	for name := range userRoles {
		rights[name] = single(userRole(t, m, name).Rules)
	}
	for right := range rights["view"] {
		// Its answer is what a VirtualMachine would be; nothing changes.
		const computes = "update subresources.kubevirt.io/expand-vm-spec"
		if verb, _, _ := strings.Cut(right, " "); verb != "get" && verb != "list" && verb != "watch" && right != computes {
			t.Errorf("view may %s", right)
		}
		for _, opens := range []string{"console", "vnc", "portforward", "usbredir"} {
			if strings.Contains(right, "/"+opens) {
				t.Errorf("view may %s", right)
			}
		}
	}
	// Everybody has the rights of default.
	within := func(less, more string) {
		for right := range rights[less] {
			if !rights[more][right] && !rights["default"][right] {
				t.Errorf("%s may %s, and %s may not", less, right, more)
			}
		}
	}
	within("view", "edit")
	within("edit", "admin")
	for right := range rights["admin"] {
		if strings.Contains(right, "deletecollection") && rights["edit"][right] {
			t.Errorf("edit may %s", right)
		}
	}
	for _, name := range []string{"admin", "edit", "view", "default"} {
		for right := range rights[name] {
			if verb, what, _ := strings.Cut(right, " "); strings.Contains(what, "migrat") && verb != "get" && verb != "list" && verb != "watch" {
				t.Errorf("%s may %s", name, right)
			}
		}
	}
}

// boundForAll are the roles that the installation binds, and what they permit.
var boundForAll = map[string][]string{
	"kubevirt.io:default": {"get kubevirt.io/kubevirts", "get subresources.kubevirt.io/guestfs", "get subresources.kubevirt.io/ui", "get subresources.kubevirt.io/version",
		"list kubevirt.io/kubevirts", "list subresources.kubevirt.io/guestfs", "list subresources.kubevirt.io/ui", "list subresources.kubevirt.io/version"},
	"instancetype.kubevirt.io:view": {
		"get instancetype.kubevirt.io/virtualmachineclusterinstancetypes", "get instancetype.kubevirt.io/virtualmachineclusterpreferences",
		"list instancetype.kubevirt.io/virtualmachineclusterinstancetypes", "list instancetype.kubevirt.io/virtualmachineclusterpreferences",
		"watch instancetype.kubevirt.io/virtualmachineclusterinstancetypes", "watch instancetype.kubevirt.io/virtualmachineclusterpreferences"},
}

// TestOnlyTwoRolesAreBoundForAll: the installation binds no other roles for users, and binds these
// to who has said who they are.
func TestOnlyTwoRolesAreBoundForAll(t *testing.T) {
	m, bound := shipped(t), map[string]bool{}
	for _, b := range m.Bindings {
		if !strings.Contains(b.Role.Name, "kubevirt.io:") {
			continue
		}
		bound[b.Role.Name] = true
		if boundForAll[b.Role.Name] == nil || len(b.Subjects) != 1 || b.Subjects[0].Name != "system:authenticated" || b.Subjects[0].Kind != rbacv1.GroupKind {
			t.Errorf("binding %s gives %s to %v", b.Name, b.Role.Name, b.Subjects)
		}
	}
	for name, want := range boundForAll {
		if got := slices.Sorted(maps.Keys(single(m.ClusterRoles[name].Rules))); !bound[name] || !slices.Equal(got, want) {
			t.Errorf("%s is bound: %v, and permits %q", name, bound[name], got)
		}
	}
}
