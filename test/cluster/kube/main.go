// Command kube is etcd, the Kubernetes control plane, the kubelet and
// kube-proxy in one binary, chosen by the name it is called by (argv[0]).
// One link step instead of six is what keeps a cold build of the test
// cluster to minutes.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	_ "time/tzdata" // CronJob time zones, as kube-controller-manager links them

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	commands := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllers.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kube-proxy":              proxy.NewProxyCommand,
		"kubelet":                 newKubelet,
	}
	switch name := filepath.Base(os.Args[0]); name {
	case "etcd":
		etcdmain.Main(os.Args)
	default:
		newCommand, ok := commands[name]
		if !ok {
			fmt.Fprintf(os.Stderr, "kube: called as %q; link it as etcd, kubelet, kube-proxy, kube-apiserver, kube-scheduler or kube-controller-manager\n", name)
			os.Exit(2)
		}
		os.Exit(cli.Run(newCommand()))
	}
}
