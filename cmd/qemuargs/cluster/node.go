package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/handlerlease"
	"github.com/kubeqemu/kubeqemu/qemuargs/resolve"
)

// lease is what is read of a virt-handler's Lease.
type lease struct {
	Metadata struct {
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		RenewTime metav1.MicroTime `json:"renewTime"`
	} `json:"spec"`
}

// Node returns the facts that virt-handler publishes of a node, and when it has last renewed them.
func (c *Cluster) Node(ctx context.Context, name string) (host resolve.Host, renewed time.Time, err error) {
	if problems := validation.NameIsDNSSubdomain(name, false); len(problems) > 0 {
		return host, renewed, fmt.Errorf("%q is no name of a node: %s", name, strings.Join(problems, ", "))
	}
	const namespaces = "apis/coordination.k8s.io/v1/namespaces"
	var l lease
	err = c.get(ctx, &l, namespaces, v1.KubeVirtNamespace, "leases", handlerlease.Name(name))
	text := l.Metadata.Annotations[handlerlease.HostKey]
	switch {
	case code(err) == http.StatusNotFound:
		return host, renewed, fmt.Errorf("virt-handler of node %s publishes no facts: there is no Lease %s in the "+
			"namespace %s; kubectl -n %[3]s get pods -o wide shows on which nodes virt-handler is",
			name, handlerlease.Name(name), v1.KubeVirtNamespace)
	case err == nil && text == "":
		return host, renewed, fmt.Errorf("virt-handler of node %s publishes no facts: its Lease has no annotation %s; "+
			"it has just started, or is older than this qemuargs", name, handlerlease.HostKey)
	case code(err) == http.StatusForbidden:
		err = fmt.Errorf("%w; whoever may get Leases in the namespace %s may read them", err, v1.KubeVirtNamespace)
	}
	if err == nil {
		host, err = nodeHost(text)
	}
	if err != nil {
		return host, renewed, fmt.Errorf("read the facts that virt-handler of node %s publishes: %w", name, err)
	}
	if host.Accelerator == "" {
		return host, renewed, fmt.Errorf("node %s can run no guests now; kubectl describe node %[1]s says why", name)
	}
	return host, l.Spec.RenewTime.Time, nil
}

// nodeHost reads the facts of a Lease. A node may be in others' hands.
func nodeHost(text string) (resolve.Host, error) {
	if len(text) > handlerlease.MaxHost {
		return resolve.Host{}, fmt.Errorf("they have %d bytes, more than %d", len(text), handlerlease.MaxHost)
	}
	return readHost([]byte(text))
}

// readHost reads facts. It refuses those that it does not know: the arguments would not be those of the cluster.
func readHost(text []byte) (resolve.Host, error) {
	var host resolve.Host
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&host); err != nil {
		return resolve.Host{}, fmt.Errorf("read the facts, perhaps of a newer Kubeqemu than this qemuargs: %w", err)
	}
	return host, nil
}
