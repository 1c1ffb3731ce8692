// Package imports holds the direction in which the module's packages import
// each other (docs/architecture.md).
package imports

import (
	"bytes"
	"encoding/json"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/kubeqemu/kubeqemu"

// listed is what "go list" says of a package.
type listed struct {
	ImportPath   string
	Imports      []string
	Deps         []string // all that it reaches
	TestImports  []string
	XTestImports []string
}

// packages are this module's, without tests.
func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,Deps,TestImports,XTestImports", module+"/...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, stderr.String())
	}
	var all []listed
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := d.Decode(&p); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// within says whether a package is one of the trees: "k8s.io" is itself and
// all below it.
func within(pkg string, trees ...string) bool {
	return slices.ContainsFunc(trees, func(tree string) bool { return pkg == tree || strings.HasPrefix(pkg, tree+"/") })
}

var kubernetes = []string{"k8s.io", "sigs.k8s.io"}

func TestReaches(t *testing.T) {
	netlink := []string{"github.com/vishvananda/netlink", "github.com/mdlayher/netlink", "github.com/google/nftables"}
	rules := []struct {
		from   []string // these and all below
		except []string
		never  []string
	}{
		{[]string{module + "/qemuargs"}, []string{module + "/qemuargs/resolve"}, slices.Concat(kubernetes, netlink, []string{module + "/api", module + "/launcher"})},
		{[]string{module + "/launcher", module + "/cmd/virt-launcher"}, nil, slices.Concat(kubernetes, netlink, []string{module + "/api", module + "/controllers", module + "/qemuargs/resolve"})},
		{[]string{module + "/netsetup"}, nil, slices.Concat(kubernetes, []string{module + "/api", module + "/controllers", module + "/launcher"})},
		{[]string{module + "/api"}, nil, []string{"k8s.io/client-go/kubernetes", "sigs.k8s.io/controller-runtime/pkg/client", module + "/controllers", module + "/launcher", module + "/qemuargs", module + "/netsetup"}},
		{[]string{module + "/apiserver"}, nil, slices.Concat(netlink, []string{module + "/controllers", module + "/launcher", module + "/netsetup", module + "/qemuargs"})},
		{[]string{module + "/qemuargs/resolve"}, nil, slices.Concat(netlink, []string{"k8s.io/client-go/kubernetes", module + "/controllers", module + "/launcher/control", module + "/netsetup"})},
	}
	all := packages(t)
	for _, rule := range rules {
		checked := 0
		for _, p := range all {
			if !within(p.ImportPath, rule.from...) || within(p.ImportPath, rule.except...) {
				continue
			}
			checked++
			for _, dep := range p.Deps {
				if within(dep, rule.never...) {
					t.Errorf("%s reaches %s", p.ImportPath, dep)
				}
			}
		}
		if checked == 0 {
			t.Errorf("no package is below %v: the rule checks nothing", rule.from)
		}
	}
}

// Nothing but cmd imports controllers; controllers import each other.
func TestControllersAreTheTop(t *testing.T) {
	const controllers = module + "/controllers"
	importers := 0
	for _, p := range packages(t) {
		for _, imported := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if !within(imported, controllers) {
				continue
			}
			importers++
			if !within(p.ImportPath, module+"/cmd", module+"/test", controllers) {
				t.Errorf("%s imports %s", p.ImportPath, imported)
			}
		}
	}
	if importers == 0 {
		t.Error("nobody imports controllers: the test checks nothing")
	}
}

// TestLifeIsPure: what decides over a VM's life gets the words of the control
// protocol, and reaches neither files nor processes nor a log.
func TestLifeIsPure(t *testing.T) {
	allowed := []string{"fmt", "slices", "syscall", "time", module + "/launcher/control"}
	for _, p := range packages(t) {
		if p.ImportPath != module+"/launcher/life" {
			continue
		}
		for _, imported := range p.Imports {
			if !slices.Contains(allowed, imported) {
				t.Errorf("%s imports %s", p.ImportPath, imported)
			}
		}
		return
	}
	t.Error("there is no package launcher/life: the test checks nothing")
}
