// Package imports holds the direction in which the module's packages import
// each other. The floors stand above TestNoImportLeadsUp.
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

// packages returns this module's, without tests.
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

// within reports whether a package is one of the trees: "k8s.io" is itself and all below it.
func within(pkg string, trees ...string) bool {
	return slices.ContainsFunc(trees, func(tree string) bool { return pkg == tree || strings.HasPrefix(pkg, tree+"/") })
}

// matches reports whether a pattern of go list's is for a package.
func matches(pattern, pkg string) bool {
	if tree, ok := strings.CutSuffix(pattern, "/..."); ok {
		return within(pkg, tree)
	}
	return pkg == pattern
}

var kubernetes = []string{"k8s.io", "sigs.k8s.io"}

func TestWhatPackagesMustNotReach(t *testing.T) {
	netlink := []string{"github.com/vishvananda/netlink", "github.com/mdlayher/netlink", "github.com/google/nftables"}
	rules := []struct {
		from, except string // as go list takes them: with "/..." all below as well
		never        []string
	}{
		// The core knows nothing of the tool that shows, checks and explains it.
		{"/qemuargs", "", slices.Concat(kubernetes, netlink, []string{module + "/api", module + "/qemuargs/tool"})},
		{"/qemuargs/resolve", "", []string{module + "/qemuargs/tool"}},
		{"/controllers/...", "", []string{module + "/qemuargs/tool"}},
		{"/qemuargs/layout", "", slices.Concat(kubernetes, netlink, []string{module + "/api"})},
		{"/qemuargs/tool/compare", "", slices.Concat(kubernetes, netlink, []string{module + "/api"})},
		{"/qemuargs/...", "", slices.Concat(netlink, []string{"k8s.io/client-go/kubernetes", module + "/netsetup"})},
		// "qemuargs host" reads kubeconfigs and asks the API server, and needs no types of objects for that.
		{"/cmd/qemuargs", "", slices.Concat(netlink, []string{"k8s.io/client-go/kubernetes", "sigs.k8s.io/controller-runtime/pkg/client", module + "/controllers/node", module + "/controllers/vmi"})},
		{"/launcher/...", "", slices.Concat(kubernetes, netlink, []string{module + "/api", module + "/controllers", module + "/qemuargs/resolve", module + "/qemuargs/tool"})},
		{"/cmd/virt-launcher", "", slices.Concat(kubernetes, netlink, []string{module + "/api", module + "/controllers", module + "/qemuargs/resolve",
			"regexp"})}, // each launcher would keep half a MiB of it
		// Each container disk may have one, and would keep half a MiB of these.
		{"/cmd/virt-image", "", []string{"fmt", "net", "encoding/json", "flag", "regexp", "os/signal", module + "/qemuargs"}},
		// "qemuargs run" has the launcher, and nothing that speaks to a cluster or needs root.
		{"/controllers/handover", "", slices.Concat(netlink, []string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime"})},
		{"/cmd/qemuargs/local/...", "", slices.Concat(netlink, []string{"k8s.io/client-go", "sigs.k8s.io/controller-runtime/pkg/client"})},
		{"/netsetup/...", "", kubernetes},
		{"/api/...", "", []string{"k8s.io/client-go/kubernetes", "sigs.k8s.io/controller-runtime/pkg/client"}},
		{"/apiserver/...", "", slices.Concat(netlink, []string{module + "/launcher", module + "/netsetup", module + "/qemuargs"})},
		// What stands in for others in tests is in no program.
		{"/cmd/...", "", []string{module + "/controllers/node/nodetest", module + "/launcher/control/controltest", module + "/launcher/launchertest", module + "/launcher/process/processtest", module + "/internal/authority/authoritytest", module + "/internal/cputime", module + "/internal/importer/webtest", module + "/internal/testkit", "testing"}},
	}
	all := packages(t)
	for _, rule := range rules {
		checked := 0
		for _, p := range all {
			if !matches(module+rule.from, p.ImportPath) || p.ImportPath == module+rule.except {
				continue
			}
			checked++
			for _, dep := range p.Deps {
				if within(dep, rule.never...) && !(rule.from == "/cmd/qemuargs" && dep == module+"/launcher/qmp") {
					t.Errorf("%s reaches %s", p.ImportPath, dep)
				}
			}
		}
		if checked == 0 {
			t.Errorf("no package matches %s: the rule checks nothing", rule.from)
		}
	}
}

// floors are the module's folders, from the top floor down. A folder imports
// folders of lower floors only, and its own.
var floors = [][]string{
	{"test", "tools"},
	{"cmd"},
	{"apiserver", "controllers"},
	{"launcher"},
	{"qemuargs"},
	{"api", "internal", "netsetup"},
}

// rooms are the folders of virt-handler, controllers/node, from the top floor down. "" is the reconciler itself.
var rooms = [][]string{
	{""},
	{"migration", "serve"},
	{"start"},
	{"wiring", "elevate", "slots", "cpus", "nodetest"},
	{"sessions", "peers", "lookup", "accelerator", "cpuprobe", "seccomp"},
}

// groups are the folders of api, from the top floor down: the types of package v1 know no rules.
var groups = [][]string{
	{"cdi", "instancetype", "migrations", "nodefit", "pool"},
	{"validation"},
	{"v1"},
}

// floor counts from the top; ok is false where no floor has the folder.
func floor(of [][]string, folder string) (int, bool) {
	for i, folders := range of {
		if slices.Contains(folders, folder) {
			return i, true
		}
	}
	return 0, false
}

// folderIn returns the folder of a tree that a package is in; "" is the tree itself.
func folderIn(tree, pkg string) (folder string, ok bool) {
	if !within(pkg, tree) {
		return "", false
	}
	folder, _, _ = strings.Cut(strings.TrimPrefix(strings.TrimPrefix(pkg, tree), "/"), "/")
	return folder, true
}

// TestNoImportLeadsUp: no import leads up, nor to another folder of the same floor, tests aside. So it is in the
// module, in virt-handler and in the API.
func TestNoImportLeadsUp(t *testing.T) {
	all := packages(t)
	for tree, floors := range map[string][][]string{
		module: floors, module + "/controllers/node": rooms, module + "/api": groups,
	} {
		arrows := 0
		for _, p := range all {
			from, ok := folderIn(tree, p.ImportPath)
			if !ok {
				continue
			}
			above, ok := floor(floors, from)
			if !ok {
				t.Errorf("%s is on no floor", p.ImportPath)
			}
			for _, imported := range p.Imports {
				to, ok := folderIn(tree, imported)
				if !ok || to == from {
					continue
				}
				arrows++
				if below, _ := floor(floors, to); below <= above {
					t.Errorf("%s imports %s, which is not on a lower floor", p.ImportPath, imported)
				}
			}
		}
		if arrows == 0 {
			t.Errorf("no folder of %s imports another: the test checks nothing", tree)
		}
	}
}

// TestNothingImportsControllers: tests of the other folders import no controller either.
func TestNothingImportsControllers(t *testing.T) {
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

// TestLifeReachesNoFilesOrProcesses: what decides over a VM's life gets the words of the control
// protocol, and reaches neither files nor processes nor a log.
func TestLifeReachesNoFilesOrProcesses(t *testing.T) {
	allowed := []string{"cmp", "fmt", "slices", "syscall", "time", module + "/launcher/control"}
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
