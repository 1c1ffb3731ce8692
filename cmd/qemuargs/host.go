package main

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeqemu/kubeqemu/cmd/qemuargs/cluster"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/compare"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/hostfile"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/manifest"
)

// silence is the age of a Lease from which on its virt-handler counts as gone, as for virt-controller.
const silence = 5 * time.Minute

// asked is what "qemuargs host" is asked for.
type asked struct{ node, vmi, namespace, kubeconfig, context string }

func hostCommand() *cobra.Command {
	var a asked
	c := &cobra.Command{
		Use:   "host --node NODE | --vmi NAME",
		Short: "Print the facts of a cluster's node, or of a running guest, as a file for --host",
		Long: `host prints the facts from which a cluster makes QEMU's arguments, as a file for --host. Each field of the file
has a comment.

With --node these are the facts that virt-handler of a node publishes. They are the same for all guests of the node.
"render --host" adds what the presets say of a pod: of disks, links and the moment of the start. The user must have the
right to get Leases in the namespace kubevirt.

With --vmi these are all facts from which the arguments of a running guest were made, of the node and of its pod.
"render --host" prints the very arguments of the running QEMU, but for the numbers of inherited files, and for -incoming
of a guest that has come from another node. host warns if it does not, as for a guest that another release of Kubeqemu
has started. A user who may view the VMI may read these facts.

host asks the cluster of the kubeconfig, as kubectl does.`,
		Example: `  qemuargs host --node node-1 > node-1.yaml
  qemuargs render --host node-1.yaml vm.yaml

  qemuargs host --vmi web -n shop > web-host.yaml
  kubectl get vmi web -n shop -o yaml | qemuargs render --host web-host.yaml -`,
		Args: wrong(cobra.NoArgs),
	}
	c.Flags().StringVar(&a.node, "node", "", "the node whose facts are printed")
	c.Flags().StringVar(&a.vmi, "vmi", "", "the VirtualMachineInstance whose facts are printed")
	c.Flags().StringVarP(&a.namespace, "namespace", "n", "", "the VMI's namespace; without it, that of the context")
	c.Flags().StringVar(&a.kubeconfig, "kubeconfig", "", "the kubeconfig; without it, $KUBECONFIG or ~/.kube/config")
	c.Flags().StringVar(&a.context, "context", "", "the context of the kubeconfig; without it, the current one")
	c.RunE = func(c *cobra.Command, _ []string) error {
		switch {
		case (a.node == "") == (a.vmi == ""):
			return &usageError{c.CommandPath(), errors.New("name either a node (--node) or a VMI (--vmi)")}
		case a.node != "" && a.namespace != "":
			return &usageError{c.CommandPath(), errors.New("a node has no namespace")}
		}
		heading, host, err := a.ask(c)
		if err != nil {
			return err
		}
		return hostfile.Write(c.OutOrStdout(), heading, host)
	}
	return c
}

// ask asks the cluster.
func (a asked) ask(c *cobra.Command) (heading []string, host resolve.Host, err error) {
	from, err := cluster.Open(a.kubeconfig, a.context)
	switch {
	case err != nil:
		return nil, host, err
	case a.node != "":
		return a.askNode(c, from)
	case a.namespace == "":
		a.namespace = from.Namespace
	}
	guest, err := from.Guest(c.Context(), a.namespace, a.vmi)
	if err == nil {
		err = verify(c, guest)
	}
	return []string{
		fmt.Sprintf("All facts from which the arguments of the running guest of VMI %s/%s were made.", a.namespace, a.vmi),
		fmt.Sprintf("kubectl get vmi %s -n %s -o yaml | qemuargs render --host FILE -", a.vmi, a.namespace),
	}, guest.Host, err
}

// askNode asks for the facts of a node. It warns of a node from which nothing has been heard for long.
func (a asked) askNode(c *cobra.Command, from *cluster.Cluster) ([]string, resolve.Host, error) {
	host, renewed, err := from.Node(c.Context(), a.node)
	if err == nil && time.Since(renewed) > silence {
		fmt.Fprintf(c.ErrOrStderr(), "warning: virt-handler of node %s was last heard of at %s\n",
			a.node, renewed.UTC().Format(time.RFC3339))
	}
	return []string{
		fmt.Sprintf("What guests find on node %s, as its virt-handler publishes it.", a.node),
		"Where the file is read, what presets say of a pod is added.",
		"qemuargs render --host FILE vm.yaml",
	}, host, err
}

// verify warns if this program makes other arguments of a guest's facts than its QEMU has.
func verify(c *cobra.Command, guest cluster.Guest) error {
	set, err := manifest.Read("the VMI", bytes.NewReader(guest.VMI))
	if err != nil {
		return err
	}
	found, err := set.Instances()
	if err != nil {
		return err
	}
	if len(found) != 1 {
		return fmt.Errorf("the API server answers with %d VMIs", len(found))
	}
	machine, err := found[0].Machine(manifest.HostOf("the VMI's", guest.Host))
	if err != nil {
		return fmt.Errorf("make the arguments of the facts: %w", err)
	}
	running := compare.Words(guest.Arguments)
	running = slices.DeleteFunc(running, func(a compare.Argument) bool { return a == incoming })
	for _, change := range compare.Diff(compare.Arguments(machine.Args()), running) {
		fmt.Fprintf(c.ErrOrStderr(), "warning: the running QEMU has other arguments than these facts make here: %s\n",
			printable(change.Part))
	}
	return nil
}

// incoming is the argument of a QEMU whose guest has come from another node. It is not the machine's.
const incoming compare.Argument = "-incoming defer"
