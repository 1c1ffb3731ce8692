package v1

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
)

const kubeVirtIntroduction = `# The KubeVirt object

The ` + "`KubeVirt`" + ` object holds the cluster's configuration. Its schema has every field of KubeVirt's own, so manifests for KubeVirt's operator are
accepted; only a value that no pod or guest could have, such as the machine type pc-i440fx-6.2, is refused. There is no operator here. This page says which fields have an effect, and is made from the code by
` + "`go test ./api/v1 -update`" + `.

- **Where it is.** The object may be in any namespace. A cluster has one: virt-api refuses a second. If there are several all the same, the
  oldest in the namespace ` + "`kubevirt`" + ` is used, or else the oldest of all. The condition Available of the others says so.
- **Who may write it.** The object configures the whole cluster. To create or change one in another namespace, a user also needs this right in
  the namespace ` + "`kubevirt`" + ` (policy ` + "`kubevirt-anywhere`" + `).
- **What has no effect.** A field without an effect is kept. The condition FieldsWithoutEffect is True then, and its message names each such
  field and why: ` + "`kubectl -n kubevirt get kubevirt kubevirt -o jsonpath='{.status.conditions[?(@.type==\"FieldsWithoutEffect\")].message}'`" + `.
- **When a change holds.** At once for ` + "`useEmulation`, `logVerbosity`, `virtualMachineInstancesPerNode` and `commonInstancetypesDeployment`" + `. At a
  guest's next start on a node for ` + "`smbios` and `disableFreePageReporting`" + `. For VMIs whose pods are created later for everything else. Running
  guests keep what they have.
- **What differs from KubeVirt.** In KubeVirt ` + "`commonInstancetypesDeployment.enabled`" + ` is true unless it is set. Here it is unset: an installation
  creates no object that nobody asked for. [Instancetypes](instancetypes.md) has more.

## Fields with an effect

| field below ` + "`spec`" + ` | effect |
|---|---|
`

// TestKubeVirtPageIsUpToDate: docs/kubevirt.md is what the schema and the list of ineffective fields say.
func TestKubeVirtPageIsUpToDate(t *testing.T) {
	text, err := os.ReadFile("../../config/crd/kubevirt.io_kubevirts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd any
	if err := yaml.Unmarshal(text, &crd); err != nil {
		t.Fatal(err)
	}
	versions := lookup(crd, []string{"spec", "versions"}).([]any)
	page := &strings.Builder{}
	page.WriteString(kubeVirtIntroduction)
	for _, path := range slices.Sorted(maps.Keys(effective)) {
		schema := lookup(versions[0], strings.Split("schema.openAPIV3Schema.properties.spec.properties."+strings.ReplaceAll(path, ".", ".properties."), "."))
		description, _ := lookup(schema, []string{"description"}).(string)
		if description == "" {
			t.Errorf("%s has no description", path)
		}
		fmt.Fprintf(page, "| `%s` | %s |\n", path, strings.Join(strings.Fields(description), " "))
	}
	page.WriteString("\n## Fields without an effect\n\nThe condition does not name a field that has a value of the last column.\n\n| field below `spec` | why | not named |\n|---|---|---|\n")
	for _, f := range ineffectiveFields {
		fmt.Fprintf(page, "| `%s` | %s | %s |\n", f.path, f.why, f.asHere)
	}
	golden.Compare(t, "../../docs/kubevirt.md", page.String())
}
