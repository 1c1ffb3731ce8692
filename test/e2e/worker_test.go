package e2e

import (
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// inNowhere makes a VMI that no node of the cluster takes.
func inNowhere(s *v1.VirtualMachineInstanceSpec) {
	s.NodeSelector = map[string]string{"e2e.kubeqemu.test/nowhere": "true"}
}

// TestNodesTokenWritesOnlyItsVMIs: with the token in a node's virt-handler, one can write the
// status of the VMIs of that node. All else is refused.
func TestNodesTokenWritesOnlyItsVMIs(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	own, foreign, unbound := create(t, ns, tiny("own", bootsKernel)), create(t, ns, tiny("foreign", inNowhere)), create(t, ns, tiny("unbound", inNowhere))
	node := own.await(v1.Running).Status.NodeName
	foreign.await(v1.Scheduling)
	unbound.await(v1.Scheduling)
	// What virt-controller would write were there a second node.
	kubectl(t, "-n", ns, "patch", "vmi", "foreign", "--subresource=status", "--type=merge", "--patch", `{"status":{"nodeName":"other-node"}}`)
	apply(t, "kubevirt", `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"virt-handler-other-node"}}`)
	t.Cleanup(func() {
		output("", "kubectl", "-n", "kubevirt", "delete", "lease", "virt-handler-other-node", "--ignore-not-found")
	})
	before := map[string]*v1.VirtualMachineInstance{}
	for _, v := range []vmi{own, foreign, unbound} {
		before[v.name] = v.get()
	}

	worker := newCaller(t, handlerToken(t))
	vmis := "/apis/kubevirt.io/v1/namespaces/" + ns + "/virtualmachineinstances"
	const harmless = `{"status":{"interfaces":[]}}`
	if code, answer := worker.call(http.MethodPatch, vmis+"/own/status", `{"status":{"runtimeUser":107}}`); code != http.StatusOK {
		t.Errorf("the status of an own VMI: %d %s", code, answer)
	}
	for name, c := range map[string]struct{ method, path, body, says string }{
		"status of another node's VMI":       {"PATCH", vmis + "/foreign/status", harmless, "of its own node"},
		"another node's VMI to itself":       {"PATCH", vmis + "/foreign/status", `{"status":{"nodeName":"` + node + `"}}`, "of its own node"},
		"end of another node's VMI":          {"PATCH", vmis + "/foreign/status", `{"status":{"phase":"Failed"}}`, "of its own node"},
		"status of a VMI of no node":         {"PATCH", vmis + "/unbound/status", harmless, "of its own node"},
		"a VMI of no node to itself":         {"PATCH", vmis + "/unbound/status", `{"status":{"nodeName":"` + node + `"}}`, "of its own node"},
		"own VMI to another node":            {"PATCH", vmis + "/own/status", `{"status":{"nodeName":"other-node"}}`, "may not move"},
		"end of an own VMI":                  {"PATCH", vmis + "/own/status", `{"status":{"phase":"Succeeded"}}`, "never to its end"},
		"pods of an own VMI":                 {"PATCH", vmis + "/own/status", `{"status":{"activePods":{"x":"` + node + `"}}}`, "which pods"},
		"status by update":                   {"PUT", vmis + "/own/status", "{}", "cannot update"},
		"spec of another node's VMI":         {"PATCH", vmis + "/foreign", `{"spec":{"priorityClassName":"x"}}`, "cannot patch"},
		"spec of an own VMI":                 {"PATCH", vmis + "/own", `{"spec":{"priorityClassName":"x"}}`, "cannot patch"},
		"labels of an own VMI":               {"PATCH", vmis + "/own", `{"metadata":{"labels":{"kubevirt.io/nodeName":"x"}}}`, "cannot patch"},
		"annotations of an own VMI":          {"PATCH", vmis + "/own", `{"metadata":{"annotations":{"a":"b"}}}`, "cannot patch"},
		"finalizers of an own VMI":           {"PATCH", vmis + "/own", `{"metadata":{"finalizers":null}}`, "cannot patch"},
		"finalizers of another node's VMI":   {"PATCH", vmis + "/foreign", `{"metadata":{"finalizers":null}}`, "cannot patch"},
		"an own VMI's deletion":              {"DELETE", vmis + "/own", "", "cannot delete"},
		"another node's VMI's deletion":      {"DELETE", vmis + "/foreign", "", "cannot delete"},
		"all VMIs' deletion":                 {"DELETE", vmis, "", "cannot deletecollection"},
		"a new VMI":                          {"POST", vmis, `{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachineInstance","metadata":{"name":"x"}}`, "cannot create"},
		"labels of its node":                 {"PATCH", "/api/v1/nodes/" + node, `{"metadata":{"labels":{"kubevirt.io/schedulable":"true"}}}`, "cannot patch"},
		"labels of another node":             {"PATCH", "/api/v1/nodes/other-node", `{"metadata":{"labels":{"kubevirt.io/schedulable":"false"}}}`, "cannot patch"},
		"another node's taints":              {"PATCH", "/api/v1/nodes/other-node", `{"spec":{"taints":[]}}`, "cannot patch"},
		"another node's cordon":              {"PATCH", "/api/v1/nodes/other-node", `{"spec":{"unschedulable":true}}`, "cannot patch"},
		"status of its node":                 {"PATCH", "/api/v1/nodes/" + node + "/status", `{"status":{"capacity":{"devices.kubevirt.io/vm":"1000"}}}`, "cannot patch"},
		"its node":                           {"GET", "/api/v1/nodes/" + node, "", "cannot get"},
		"all nodes":                          {"GET", "/api/v1/nodes", "", "cannot list"},
		"its node's kubelet":                 {"GET", "/api/v1/nodes/" + node + "/proxy/pods", "", "cannot get"},
		"a node's deletion":                  {"DELETE", "/api/v1/nodes/other-node", "", "cannot delete"},
		"secrets of all":                     {"GET", "/api/v1/secrets", "", "cannot list"},
		"the CA's key":                       {"GET", "/api/v1/namespaces/kubevirt/secrets/kubevirt-ca", "", "cannot get"},
		"the published CA":                   {"PATCH", "/api/v1/namespaces/kubevirt/configmaps/kubevirt-ca", `{"data":{}}`, "cannot patch"},
		"pods of all":                        {"GET", "/api/v1/pods", "", "cannot list"},
		"a pod":                              {"POST", "/api/v1/namespaces/kubevirt/pods", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"},"spec":{"containers":[{"name":"x","image":"x"}]}}`, "cannot create"},
		"a binding of a pod":                 {"POST", "/api/v1/namespaces/" + ns + "/pods/" + own.pod().Name + "/binding", "{}", "cannot create"},
		"a shell in a launcher":              {"POST", "/api/v1/namespaces/" + ns + "/pods/" + own.pod().Name + "/exec?command=sh", "", "cannot create"},
		"a shell by GET":                     {"GET", "/api/v1/namespaces/" + ns + "/pods/" + own.pod().Name + "/exec?command=sh", "", "cannot get"},
		"a container in a launcher":          {"PATCH", "/api/v1/namespaces/" + ns + "/pods/" + own.pod().Name + "/ephemeralcontainers", "{}", "cannot patch"},
		"virt-controller's token":            {"POST", "/api/v1/namespaces/kubevirt/serviceaccounts/virt-controller/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest"}`, "cannot create"},
		"its own token":                      {"POST", "/api/v1/namespaces/kubevirt/serviceaccounts/virt-handler/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest"}`, "cannot create"},
		"the policy on it":                   {"DELETE", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/kubevirt-handler-own-node", "", "cannot delete"},
		"the policy's binding":               {"DELETE", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/kubevirt-handler-own-node", "", "cannot delete"},
		"a webhook":                          {"POST", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", "{}", "cannot create"},
		"its role":                           {"PATCH", "/apis/rbac.authorization.k8s.io/v1/clusterroles/kubevirt-handler", `{"rules":[]}`, "cannot patch"},
		"its DaemonSet":                      {"PATCH", "/apis/apps/v1/namespaces/kubevirt/daemonsets/virt-handler", "{}", "cannot patch"},
		"another node's Lease":               {"PATCH", "/apis/coordination.k8s.io/v1/namespaces/kubevirt/leases/virt-handler-other-node", `{"spec":{"holderIdentity":"x"}}`, "own-lease"},
		"a Lease of another node":            {"POST", "/apis/coordination.k8s.io/v1/namespaces/kubevirt/leases", `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"virt-handler-other-node"}}`, "own-lease"},
		"virt-controller's Lease":            {"POST", "/apis/coordination.k8s.io/v1/namespaces/kubevirt/leases", `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"virt-controller"}}`, "own-lease"},
		"nodes' Leases":                      {"PATCH", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/" + node, "{}", "cannot patch"},
		"the configuration":                  {"PATCH", "/apis/kubevirt.io/v1/namespaces/kubevirt/kubevirts/kubevirt", `{"spec":{}}`, "cannot patch"},
		"certificate requests of all":        {"GET", signingRequests, "", "cannot list"},
		"approval of a certificate request":  {"PATCH", signingRequests + "/x/approval", "{}", "cannot patch"},
		"signature of a certificate request": {"PATCH", signingRequests + "/x/status", "{}", "cannot patch"},
	} {
		code, answer := worker.call(c.method, c.path, c.body)
		if code != http.StatusForbidden || !strings.Contains(answer, c.says) {
			t.Errorf("%s: %d %s, want 403: …%s…", name, code, answer, c.says)
		}
	}

	// A patch of the status that brings metadata and spec along changes neither.
	worker.call(http.MethodPatch, vmis+"/own/status", `{"metadata":{"labels":{"a":"b"},"finalizers":null},"spec":{"priorityClassName":"x"}}`)
	for _, v := range []vmi{own, foreign, unbound} {
		// Not the whole status: the real virt-handler and virt-controller go on reporting into it. virt-controller writes reserved labels.
		now, was := v.get(), before[v.name]
		if now.Status.NodeName != was.Status.NodeName || now.Status.Phase != was.Status.Phase ||
			!equality.Semantic.DeepEqual(now.Status.ActivePods, was.Status.ActivePods) || !equality.Semantic.DeepEqual(now.Spec, was.Spec) ||
			!equality.Semantic.DeepEqual(v1.WithoutReservedLabels(now.Labels), v1.WithoutReservedLabels(was.Labels)) || !equality.Semantic.DeepEqual(now.Finalizers, was.Finalizers) {
			t.Errorf("VMI %s changed from\n%+v\nto\n%+v", v.name, was, now)
		}
	}
}
