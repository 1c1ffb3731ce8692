// Command virt-components is virt-api, virt-controller and virt-handler in one program, which
// runs the component that its name says. The processes of the three share the pages of the
// program's file, most of which are packages that all three use.
package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	virtapi "github.com/kubeqemu/kubeqemu/cmd/virt-api"
	virtcontroller "github.com/kubeqemu/kubeqemu/cmd/virt-controller"
	virthandler "github.com/kubeqemu/kubeqemu/cmd/virt-handler"
	"github.com/kubeqemu/kubeqemu/controllers/node/cpuprobe"
	"github.com/kubeqemu/kubeqemu/internal/kvmcheck"
)

func main() { os.Exit(run(os.Args)) }

// run is the program. args are its arguments, the first of which is its own name. It returns
// the exit status. The component's name is the name of the program, as in "virt-api
// --verbose", or else the first argument, as in "virt-components virt-api --verbose".
func run(args []string) int {
	components := map[string]func(args []string) int{
		"virt-api":        virtapi.Main,
		"virt-controller": virtcontroller.Main,
		"virt-handler":    virthandler.Main,
		// virt-handler runs this program again to check KVM in a process of its own.
		kvmcheck.Argument:       func([]string) int { return kvmcheck.Main(os.Stdout) },
		kvmcheck.OffersArgument: func([]string) int { return kvmcheck.MainOffers(os.Stdout) },
		// And to become a QEMU that says which CPUs it can give guests.
		cpuprobe.Argument: func(args []string) int { return cpuprobe.Main(args, os.Stderr) },
	}
	names := []string{filepath.Base(args[0])}
	if len(args) > 1 {
		names = append(names, args[1])
	}
	for i, name := range names {
		if component, ok := components[name]; ok {
			return component(args[i+1:])
		}
	}
	delete(components, kvmcheck.Argument)
	delete(components, kvmcheck.OffersArgument)
	delete(components, cpuprobe.Argument)
	fmt.Fprintf(os.Stderr, "usage: virt-components COMPONENT [FLAG]...\ncomponents: %s; with --help each lists its flags\n",
		strings.Join(slices.Sorted(maps.Keys(components)), ", "))
	return 2
}
