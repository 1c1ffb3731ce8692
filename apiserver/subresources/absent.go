package subresources

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/kubeqemu/kubeqemu/apiserver/callers"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// absence is an endpoint of KubeVirt's that is not served, and what a user of it is told.
type absence struct {
	// name is the path without namespace and object, such as virtualmachines/memorydump.
	name string
	text string
}

const (
	noHotplug  = "volumes of a running VM cannot be changed, because hotplug is not supported by Kubeqemu yet: change the VM's spec.template and restart the VM"
	noDump     = "memory dumps are not supported by Kubeqemu yet"
	noGraph    = "the graph of a VM's objects is not supported by Kubeqemu yet"
	noBackup   = "backups are not supported by Kubeqemu yet"
	noSEV      = "confidential VMs (AMD SEV) are not supported by Kubeqemu yet"
	noProfiler = "Kubeqemu's components have no profiler"
)

// absences returns KubeVirt's endpoints that are not served. Every method of them is absent, so
// that RBAC is not asked about them.
func absences() []absence {
	all := []absence{
		{machines + "/memorydump", noDump},
		{machines + "/removememorydump", noDump},
		{instances + "/usbredir", "USB redirection is not supported by Kubeqemu yet"},
		{instances + "/vsock", "vsock is not supported by Kubeqemu yet"},
		{instances + "/backup", noBackup},
		{instances + "/redefine-checkpoint", noBackup},
		{"guestfs", "Kubeqemu has no image of libguestfs: name an image, such as with virtctl guestfs --image IMAGE --kvm=false"},
	}
	for _, resource := range []string{machines, instances} {
		all = append(all, absence{resource + "/addvolume", noHotplug}, absence{resource + "/removevolume", noHotplug},
			absence{resource + "/objectgraph", noGraph})
	}
	for _, sub := range []string{"fetchcertchain", "querylaunchmeasurement", "setupsession", "injectlaunchsecret"} {
		all = append(all, absence{instances + "/sev/" + sub, noSEV})
	}
	for _, name := range []string{"start-cluster-profiler", "stop-cluster-profiler", "dump-cluster-profiler"} {
		all = append(all, absence{name, noProfiler})
	}
	return all
}

// unserved returns the answer to a path that has no route. It says more of an endpoint that KubeVirt
// has: virtctl prints nothing else, and the bare words could as well mean that there is no such VM.
func unserved(method, path string) error {
	name := withoutObject(path)
	for _, a := range absences() {
		if a.name == name {
			return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
				Message: fmt.Sprintf("%s is not served: %s", a.name, a.text), Details: &metav1.StatusDetails{Group: Group, Kind: a.name}}}
		}
	}
	return callers.NoRoute(method, Group)
}

// withoutObject returns an endpoint's path without namespace and object, or "".
func withoutObject(path string) string {
	rest, ok := strings.CutPrefix(path, root+"/")
	if !ok {
		return ""
	}
	parts := strings.SplitN(rest, "/", 5)
	switch {
	case len(parts) == 1:
		return parts[0]
	case len(parts) == 5 && parts[0] == "namespaces":
		return parts[2] + "/" + parts[4]
	}
	return ""
}
