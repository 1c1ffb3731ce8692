package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/validation"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// subresource returns the path of the subresource qemuargs of a VMI.
func subresource(namespace, name string) []string {
	const group = "apis/subresources.kubevirt.io/v1"
	return []string{group, "namespaces", namespace, "virtualmachineinstances", name, "qemuargs"}
}

// Guest is a VMI's running guest.
type Guest struct {
	// Host holds the facts from which virt-handler made the guest's arguments.
	Host resolve.Host
	// Arguments are those of the guest's QEMU.
	Arguments []string
	// VMI is the object, as JSON.
	VMI []byte
}

// Guest returns a VMI's running guest.
func (c *Cluster) Guest(ctx context.Context, namespace, name string) (Guest, error) {
	if problems := validation.ValidateNamespaceName(namespace, false); len(problems) > 0 {
		return Guest{}, fmt.Errorf("%q is no name of a namespace: %s", namespace, strings.Join(problems, ", "))
	}
	if problems := validation.NameIsDNSSubdomain(name, false); len(problems) > 0 {
		return Guest{}, fmt.Errorf("%q is no name of a VMI: %s", name, strings.Join(problems, ", "))
	}
	var said v1.VirtualMachineInstanceQEMUArguments
	path := subresource(namespace, name)
	err := c.get(ctx, &said, path...)
	guest := Guest{Arguments: said.Arguments}
	if err == nil {
		guest.Host, err = guestHost(said, "/"+strings.Join(path, "/"))
	}
	if err == nil {
		var object json.RawMessage
		err = c.get(ctx, &object, "apis/kubevirt.io/v1/namespaces", namespace, "virtualmachineinstances", name)
		guest.VMI = object
	}
	if err != nil {
		return Guest{}, fmt.Errorf("read the facts of VMI %s/%s: %w", namespace, name, err)
	}
	return guest, nil
}

// guestHost returns the facts of an answer that the subresource at a path gave.
func guestHost(said v1.VirtualMachineInstanceQEMUArguments, path string) (resolve.Host, error) {
	if len(said.Host) == 0 {
		return resolve.Host{}, fmt.Errorf("its virt-launcher has none: the guest has come from a node with another QEMU, "+
			"or an older virt-handler has started it; kubectl get --raw %s shows its arguments", path)
	}
	host, err := readHost(said.Host)
	if said.ClockStart != 0 {
		host.Now = said.ClockStart // of QEMU, a moment after virt-handler has looked
	}
	return host, err
}
