package e2e

import (
	"strings"
	"testing"
)

// TestUserRoles: who has Kubernetes' own role in a namespace has KubeVirt's
// rights there, and nobody those of the components.
func TestUserRoles(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	r := createReplicas(t, ns, 0)
	roles := []string{"admin", "edit", "view"}
	for _, role := range roles {
		kubectl(t, "-n", ns, "create", "rolebinding", role, "--clusterrole="+role, "--user=e2e-"+role)
		may(t, ns, "--as=e2e-"+role, "get", "virtualmachineinstances.kubevirt.io")
	}
	for _, c := range []struct {
		args []string
		who  string
	}{
		{[]string{"get", "vmi,vmirs"}, "admin edit view"},
		{[]string{"scale", "vmirs", r.name, "--replicas=0"}, "admin edit"},
		{[]string{"annotate", "vmirs", r.name, "--overwrite", "seen=yes"}, "admin edit"},
		{[]string{"delete", "vmirs", r.name, "--dry-run=server"}, "admin edit"},
		{[]string{"patch", "vmirs", r.name, "--subresource=status", "--type=merge", "--patch", `{"status":{"replicas":7}}`}, ""},
	} {
		for _, role := range roles {
			_, err := output("", "kubectl", append([]string{"-n", ns, "--as=e2e-" + role}, c.args...)...)
			if want := strings.Contains(c.who, role); (err == nil) != want || err != nil && !strings.Contains(err.Error(), "forbidden") {
				t.Errorf("%s by %s: %v, want it allowed: %v", strings.Join(c.args, " "), role, err, want)
			}
		}
	}
	// Everybody may look at the configuration, and ask virt-api's version.
	if _, err := output("", "kubectl", "-n", "kubevirt", "--as=e2e-nobody", "get", "kubevirts"); err != nil {
		t.Error(err)
	}
	if _, err := output("", "kubectl", "-n", ns, "--as=e2e-nobody", "get", "vmi"); err == nil {
		t.Error("a user without a role may list VMIs")
	}
}
