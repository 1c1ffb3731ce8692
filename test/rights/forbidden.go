package rights

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kubeqemu/kubeqemu/apiserver/older"
)

// Holder is who holds a right.
type Holder int

const (
	// Component is any component, wherever it runs.
	Component Holder = iota
	// Worker is what runs on every node: whoever takes one node has its token.
	// Nothing it may do can lead to another account's rights.
	Worker
)

// kind of right that is forbidden. "*" is everything.
type kind struct {
	group, resources, verbs string // the latter two separated by commas
	why                     string
	// holder is the least of those whom it is forbidden to.
	holder Holder
	// named says that it is allowed for objects named one by one, of a kind that
	// has namespaces in one of them.
	named bool
}

const (
	writing  = "create,update,patch,delete,deletecollection"
	webhooks = "mutatingwebhookconfigurations,validatingwebhookconfigurations"
	policies = "validatingadmissionpolicies,validatingadmissionpolicybindings,validatingadmissionpolicies/status,mutatingadmissionpolicies,mutatingadmissionpolicybindings"
)

var forbidden = []kind{
	{"*", "*", "escalate,bind", "it takes any right", Component, false},
	// virt-api acts for one user. This list holds that user's rights, too.
	{"*", "*", "impersonate", "it takes any right", Component, true},
	{"*", "*", "impersonate", "it takes another account's rights", Worker, false},
	{"rbac.authorization.k8s.io", "*", writing, "it grants rights", Component, false},
	{"", "secrets", "*", "it reads what others keep secret", Component, true},
	{"", "serviceaccounts/token", "*", "it takes another account's rights", Component, false},
	{"", "pods/exec,pods/attach,pods/portforward,pods/proxy,pods/ephemeralcontainers,services/proxy,nodes/proxy", "*", "it runs code in others' pods", Component, false},
	{"admissionregistration.k8s.io", webhooks, "create,patch,delete,deletecollection", "it sees or changes every write", Component, false},
	// virt-api writes its CA into its own, which an API server has no narrower right for.
	{"admissionregistration.k8s.io", webhooks, "get,list,watch,update", "it sees or changes every write", Component, true},
	{"admissionregistration.k8s.io", "*", "*", "it sees or changes every write", Worker, false},
	{"admissionregistration.k8s.io", policies, writing + ",list,watch", "it changes what every write is held by", Component, false},
	{"admissionregistration.k8s.io", policies, "get", "it reads what every write is held by", Component, true},
	// virt-api writes its CA into its own, whose name holds it to its group.
	{"apiregistration.k8s.io", "*", "create,patch,delete,deletecollection", "it answers for the API server", Component, false},
	{"apiregistration.k8s.io", "apiservices/status", "*", "it answers for the API server", Component, false},
	{"apiregistration.k8s.io", "apiservices", "update", "it answers for the API server", Component, true},
	{"apiregistration.k8s.io", "*", "*", "it answers for the API server", Worker, false},
	{"apiextensions.k8s.io", "*", writing, "it changes kinds", Component, false},
	{"", "nodes", "create,update,delete,deletecollection", "it has nothing to do with nodes but their labels, by patch", Component, false},
	{"", "nodes/status", writing, "it lures pods, or drives them off", Component, false},
	{"certificates.k8s.io", "certificatesigningrequests/approval,certificatesigningrequests/status", writing, "it certifies", Worker, false},
	{"certificates.k8s.io", "signers", "*", "it certifies", Worker, false},
	{"", "nodes,nodes/status", "*", "it lures pods to this node", Worker, false},
	{"", "pods,pods/status,pods/binding,pods/eviction,replicationcontrollers", "*", "a pod runs under any account", Worker, false},
	{"apps", "*", "*", "a pod runs under any account", Worker, false},
	{"batch", "*", "*", "a pod runs under any account", Worker, false},
	{"", "configmaps", "*", "it configures others", Worker, true},
	{"", "serviceaccounts,namespaces,persistentvolumes,persistentvolumeclaims,services,endpoints", writing, "it changes what is others'", Worker, false},
	{"kubevirt.io", "kubevirts,kubevirts/status", writing, "it configures others", Worker, false},
	{"kubevirt.io", "virtualmachines,virtualmachines/status,virtualmachines/finalizers", writing, "it changes others' VMs", Worker, false},
	{"kubevirt.io", "virtualmachineinstances,virtualmachineinstances/finalizers", writing, "it changes others' VMIs; the status alone is held by a policy", Worker, false},
}

// Forbidden returns what is wrong with a holder's rights, one line each.
func Forbidden(holder Holder, grants []Grant) []string {
	var wrong []string
	for _, g := range grants {
		if w := wildcard(g); w != "" {
			wrong = append(wrong, fmt.Sprintf("%s: a wildcard in %s", g, w))
			continue
		}
		for _, f := range forbidden {
			if holder >= f.holder && f.covers(g) && !(f.named && f.isNamed(g)) {
				wrong = append(wrong, fmt.Sprintf("%s: %s", g, f.why))
			}
		}
	}
	return wrong
}

// callerName is the extra attribute with which virt-api names a request's user. No right follows
// from it.
const callerName = "userextras/" + older.CallerKey

// isNamed says whether a grant is for objects named one by one, in one namespace
// if they are in any.
func (k kind) isNamed(g Grant) bool {
	if slices.Equal(g.Resources, []string{callerName}) {
		return true
	}
	return len(g.ResourceNames) > 0 && (g.Namespace != "" || k.resources == webhooks || k.resources == policies || k.resources == "apiservices" || slices.Equal(g.Resources, []string{"users"}))
}

func wildcard(g Grant) string {
	for where, words := range map[string][]string{"verbs": g.Verbs, "groups": g.APIGroups, "resources": g.Resources} {
		if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(w, "*") }) {
			return where
		}
	}
	// Every account may read below /api/* and the like.
	if slices.Contains(g.NonResourceURLs, "*") {
		return "URLs"
	}
	return ""
}

func (k kind) covers(g Grant) bool {
	groups := k.group == "*" || slices.Contains(g.APIGroups, k.group)
	return groups && meets(k.resources, g.Resources) && meets(k.verbs, g.Verbs)
}

func meets(list string, words []string) bool {
	if list == "*" {
		return len(words) > 0
	}
	return slices.ContainsFunc(strings.Split(list, ","), func(w string) bool { return slices.Contains(words, w) })
}
