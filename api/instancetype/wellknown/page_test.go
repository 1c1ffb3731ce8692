package wellknown

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
)

const introduction = `# Well-known instancetypes and preferences

KubeVirt installs cluster-wide instancetypes and preferences of its project common-instancetypes, such as ` + "`u1.small` and `ubuntu`" + `. Manifests,
container disks and consoles for KubeVirt name them. Kubeqemu has them too, with the same names, values and labels: those of
common-instancetypes ` + Version + `. The descriptions are our own.

An instancetype or a preference that sets a field which Kubeqemu does not support yet is **not installed**. Without the field, a guest would be
another machine than the name promises. [What waits, and for which field](#what-waits) lists each of them.

` + "`go test ./api/instancetype/wellknown -update`" + ` makes this page and
[config/instancetypes/objects.yaml](../config/instancetypes/objects.yaml) from the table in ` + "`api/instancetype/wellknown`" + `. Kubeqemu's own validation
says what waits. So when a field becomes supported, the objects that waited for it are installed, without a change of the table.

## How to have them

| way | what it does |
|---|---|
| ` + "`spec.configuration.commonInstancetypesDeployment.enabled: true`" + ` in the [KubeVirt object](kubevirt.md) | virt-controller creates them at once |
| ` + "`kubectl apply -k config/instancetypes`, or `make deploy OVERLAY=config/instancetypes`" + ` | config/default, with virt-controller's flag ` + "`--common-instancetypes`" + `: virt-controller creates them unless the KubeVirt object says ` + "`enabled: false`" + ` |
| Helm's value ` + "`instancetypes: true`" + ` | the same flag |
| ` + "`kubectl apply -f config/instancetypes/objects.yaml`" + `, after the installation | the objects are yours: virt-controller neither changes nor deletes them |

- **Unset is off.** In KubeVirt ` + "`enabled`" + ` is true unless it is set. Here nothing is created unless somebody asks. Kubeqemu is for small
  clusters, and the API server keeps every object in memory.
- **` + "`enabled: true`" + `.** virt-controller creates the objects with the labels ` + "`app.kubernetes.io/managed-by: virt-controller`" + ` and
  ` + "`kubeqemu.io/common-instancetype: NAME`" + `. It compares them again when it
  starts, when a KubeVirt object changes, and every hour. It writes back what somebody changed, and keeps labels and annotations that somebody added.
- **` + "`enabled: false`" + `.** virt-controller deletes the objects with its labels. A copy under another name is yours, because its second label is not
  its name. As in KubeVirt, it does not look whether a VM names them. A VM that
  named one while it was there keeps it in a ControllerRevision. Other VMs that name a deleted object get the condition Failure.
- **To take them away again,** say ` + "`enabled: false`" + `. If you only remove ` + "`enabled: true`" + ` or the flag, the objects stay as they are.
- **Your own objects.** If you created an object of the same name, virt-controller neither changes nor deletes it. The KubeVirt's condition
  CommonInstancetypesDeployed is then False with the reason NamesTaken, and names the object. To keep an object of virt-controller's with changes
  of yours, remove the label ` + "`app.kubernetes.io/managed-by`" + ` from the object. The policy ` + "`kubevirt-controller-instancetypes`" + ` has the API server refuse
  every change by virt-controller to an object without the label.
- **Without an owner.** A KubeVirt object is in a namespace, and an object of the whole cluster cannot have an owner in a namespace. So
  ` + "`kubectl delete kubevirt` and `helm uninstall`" + ` leave the objects. ` + "`make undeploy`" + ` deletes the CustomResourceDefinitions, and the objects with them.
- **Memory.** The table takes no memory until virt-controller makes the objects of it. Nothing watches or caches them.

The label ` + "`instancetype.kubevirt.io/common-instancetypes-version`" + ` says which version of common-instancetypes the values are of.
` + "`kubectl get vmcf -L instancetype.kubevirt.io/cpu,instancetype.kubevirt.io/memory`" + ` shows the sizes.

`

// TestPageIsUpToDate: docs/instancetypes.md is what the table and the validation say.
func TestPageIsUpToDate(t *testing.T) {
	all := objects(t)
	page := &strings.Builder{}
	page.WriteString(introduction)
	writeInstalled(t, page, all)
	writeWaiting(page, all)
	golden.Compare(t, "../../../docs/instancetypes.md", page.String())
}

func writeInstalled(t *testing.T, page *strings.Builder, all []Object) {
	t.Helper()
	page.WriteString("## What is installed\n\n| series | |\n|---|---|\n")
	for _, s := range allSeries() {
		if slices.ContainsFunc(all, func(o Object) bool {
			return o.Kind == Instancetype && strings.HasPrefix(o.Name, s.name+".") && len(o.WaitsFor) == 0
		}) {
			fmt.Fprintf(page, "| %s, %s | %s |\n", s.name, s.title, s.about)
		}
	}
	page.WriteString("\n| instancetype | CPUs | memory | the pod requests |\n|---|---|---|---|\n")
	for _, o := range all {
		if o.Kind != Instancetype || len(o.WaitsFor) > 0 {
			continue
		}
		var size v1beta1.VirtualMachineClusterInstancetype
		if err := json.Unmarshal(o.Manifest, &size); err != nil {
			t.Fatal(err)
		}
		memory := &size.Spec.Memory
		fmt.Fprintf(page, "| `%s` | %d | %s | %d %% |\n", o.Name, size.Spec.CPU.Guest, memory.Guest.String(), 100-memory.OvercommitPercent)
	}
	page.WriteString("\nThe last column is how much of the guest's memory the pod requests. To it comes what QEMU and virt-launcher need.\n\n" +
		"| preference | guest | needs at least | sets |\n|---|---|---|---|\n")
	for _, o := range all {
		if o.Kind != Preference || len(o.WaitsFor) > 0 {
			continue
		}
		i := slices.IndexFunc(guests, func(g guest) bool { return g.name == o.Name })
		spec := tree(t, o)["spec"].(fields)
		delete(spec, "requirements")
		delete(spec, "annotations")
		var sets []string
		for _, path := range leaves(spec, nil) {
			sets = append(sets, path[len(path)-1])
		}
		fmt.Fprintf(page, "| `%s` | %s | %s | %s |\n", o.Name, guests[i].title, needs(guests[i]), strings.Join(sets, ", "))
	}
	page.WriteString("\nEach preference also sets the annotation `vm.kubevirt.io/os`.\n\n")
}

// needs are a guest's requirements.
func needs(g guest) string {
	switch {
	case g.cpus == 0:
		return ""
	case g.cpus == 1:
		return "1 CPU, " + g.memory
	}
	return fmt.Sprintf("%d CPUs, %s", g.cpus, g.memory)
}

// writeWaiting lists by object, and by field.
func writeWaiting(page *strings.Builder, all []Object) {
	page.WriteString("## What waits\n\nA path that begins with `spec` or `metadata` is of the VirtualMachineInstance that the object fills in. Other paths are below the object's own\n`spec`.\n")
	byField := map[string][]string{}
	for _, kind := range []string{Instancetype, Preference} {
		fmt.Fprintf(page, "\n| %s | waits for |\n|---|---|\n", strings.ToLower(strings.TrimPrefix(kind, "VirtualMachineCluster")))
		rows := map[string][]string{}
		var order []string
		for _, o := range all {
			if o.Kind != kind || len(o.WaitsFor) == 0 {
				continue
			}
			what := "`" + strings.Join(o.WaitsFor, "`, `") + "`"
			if rows[what] == nil {
				order = append(order, what)
			}
			rows[what] = append(rows[what], "`"+o.Name+"`")
			for _, field := range o.WaitsFor {
				byField[field] = append(byField[field], o.Name)
			}
		}
		for _, what := range order {
			fmt.Fprintf(page, "| %s | %s |\n", strings.Join(rows[what], ", "), what)
		}
	}
	page.WriteString("\nThe same by field, those first that most objects wait for. The last column is how many objects wait for this field only.\n\n| field | objects | only for it |\n|---|---|---|\n")
	alone := map[string]int{}
	for _, o := range all {
		if len(o.WaitsFor) == 1 {
			alone[o.WaitsFor[0]]++
		}
	}
	for _, field := range slices.SortedFunc(maps.Keys(byField), func(a, b string) int {
		return cmp.Or(len(byField[b])-len(byField[a]), cmp.Compare(a, b))
	}) {
		fmt.Fprintf(page, "| `%s` | %d | %d |\n", field, len(byField[field]), alone[field])
	}
}
