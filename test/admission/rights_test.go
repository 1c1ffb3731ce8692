package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/test/rights"
)

const theNode, otherNode = "n1", "other-node"

// TestRights asks the API server what accounts may, by their tokens and in their names.
func TestRights(t *testing.T) {
	s := newTestServer(t)
	for _, name := range []string{theNode, otherNode} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
		if err := s.admin.Create(t.Context(), node); err != nil {
			t.Fatal(err)
		}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: v1.KubeVirtNamespace, Name: "virt-handler-x"},
		Spec: corev1.PodSpec{NodeName: theNode, ServiceAccountName: "virt-handler", AutomountServiceAccountToken: ptr.To(false),
			Containers: []corev1.Container{{Name: "c", Image: "image"}}}}
	if err := s.admin.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	of := &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	bound := s.holding(t, "virt-handler", of)
	unbound := s.holding(t, "virt-handler", nil)
	t.Run("virt-handler", func(t *testing.T) { s.handlerRights(t, bound, unbound) })
	t.Run("virt-handler with more rights", func(t *testing.T) { s.policyHoldsAlone(t, bound, unbound) })
	t.Run("leases", func(t *testing.T) { s.leases(t, bound, unbound) })
	t.Run("nodes", s.nodeRights)
	t.Run("users", s.userRights)
}

// holding returns the client of who holds an account's token, and nothing else.
func (s *testServer) holding(t *testing.T, account string, of *authenticationv1.BoundObjectReference) client.Client {
	t.Helper()
	return s.client(s.token(t, account, of))
}

func (s *testServer) token(t *testing.T, account string, of *authenticationv1.BoundObjectReference) *rest.Config {
	t.Helper()
	clients, err := kubernetes.NewForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := clients.CoreV1().ServiceAccounts(v1.KubeVirtNamespace).CreateToken(t.Context(), account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: of}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(s.config)
	config.BearerToken = request.Status.Token
	return config
}

// running makes a VMI that runs on the node.
func (s *testServer) running(t *testing.T, name string) *v1.VirtualMachineInstance {
	t.Helper()
	of, _ := s.launched(t, name, v1.EvictionStrategyNone)
	of.Status.VolumeStatus = []v1.VolumeStatus{{Name: "root"}}
	if err := s.as(controllerAccount).Status().Update(t.Context(), of); err != nil {
		t.Fatal(err)
	}
	return of
}

// patchedStatus says what becomes of a merge patch of a VMI's status.
func patchedStatus(t *testing.T, by client.Client, of *v1.VirtualMachineInstance, patch string) error {
	return by.Status().Patch(t.Context(), of.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)))
}

// handlerRights: virt-handler's account writes the status of VMIs of the node that its token names, takes them no
// further than Running, and little else.
func (s *testServer) handlerRights(t *testing.T, bound, unbound client.Client) {
	of := s.running(t, "handled")
	on := func(node string) client.Client {
		config := s.plane.As(handlerAccount, "system:serviceaccounts", "system:serviceaccounts:kubevirt")
		if node != "" {
			config.Impersonate.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {node}}
		}
		return s.client(config)
	}
	const harmless = `{"status":{"runtimeUser":107,"interfaces":[]}}`
	s.poll("the policy holds", func() error {
		if err := patchedStatus(t, unbound, of, harmless); err == nil || !strings.Contains(err.Error(), "names no node") {
			return fmt.Errorf("without a node: %w", err)
		}
		return nil
	})
	own := on(theNode)
	for name, c := range map[string]struct {
		by      client.Client
		patch   string
		refusal string // empty: allowed
	}{
		"no node":          {on(""), harmless, "kubevirt-handler-own-node"},
		"another node":     {on(otherNode), harmless, "of its own node"},
		"an empty node":    {on(" "), harmless, "of its own node"},
		"move":             {own, `{"status":{"nodeName":"other-node"}}`, "may not move"},
		"unbind":           {own, `{"status":{"nodeName":null}}`, "may not move"},
		"end":              {own, `{"status":{"phase":"Succeeded"}}`, "never back and never to its end"},
		"back":             {own, `{"status":{"phase":"Scheduled"}}`, "never back and never to its end"},
		"another pod":      {own, `{"status":{"activePods":{"00000000-0000-4000-8000-000000000000":"n1"}}}`, "which pods"},
		"pod's addresses":  {own, `{"status":{"launcherPods":null}}`, "which addresses"},
		"pod taken away":   {own, `{"status":{"activePods":null}}`, "which pods"},
		"another size":     {own, `{"status":{"volumeStatus":[{"name":"root","persistentVolumeClaimInfo":{"capacity":{"storage":"1Pi"}}}]}}`, "what a VirtualMachineInstance's volumes are"},
		"token of no node": {unbound, harmless, "names no node"},
		"own node":         {own, harmless, ""},
		"token of its pod": {bound, harmless, ""},
	} {
		err := patchedStatus(t, c.by, of, c.patch)
		if (err == nil) != (c.refusal == "") || err != nil && !strings.Contains(err.Error(), c.refusal) {
			t.Errorf("%s: %v, want %q", name, err, c.refusal)
		}
	}
}

// policyHoldsAlone: were virt-handler given more than its role, the policy still holds it to the status of its own
// node's VMIs; and without a node in the token, to nothing.
func (s *testServer) policyHoldsAlone(t *testing.T, bound, unbound client.Client) {
	of := s.running(t, "held")
	s.plane.MustApply(`
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: more}
rules: [{apiGroups: [kubevirt.io], resources: [virtualmachineinstances], verbs: [patch, update]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: more}
subjects: [{kind: ServiceAccount, namespace: kubevirt, name: virt-handler}]
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: more}
`)
	patched := func(by client.Client, patch string) error {
		return by.Patch(t.Context(), of.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)))
	}
	const annotate, alone = `{"metadata":{"annotations":{"a":"b"}}}`, "touches no finalizer, label, annotation or owner"
	s.poll("it has more rights", func() error {
		if err := patched(bound, annotate); err == nil || !strings.Contains(err.Error(), alone) {
			return fmt.Errorf("an annotation: %w", err)
		}
		return nil
	})
	for name, c := range map[string]struct {
		err  error
		says string
	}{
		"spec":                        {patched(bound, `{"spec":{"terminationGracePeriodSeconds":1}}`), ""}, // the kind's own rules may refuse it first
		"labels":                      {patched(bound, `{"metadata":{"labels":{"a":"b"}}}`), alone},
		"annotations":                 {patched(bound, annotate), alone},
		"finalizers":                  {patched(bound, `{"metadata":{"finalizers":["a/b"]}}`), alone},
		"anything without a node":     {patched(unbound, annotate), "names no node"},
		"the status without a node":   {patchedStatus(t, unbound, of, `{"status":{"runtimeUser":107}}`), "names no node"},
		"nothing at all without node": {patchedStatus(t, unbound, of, `{"status":{"interfaces":[]}}`), "names no node"},
	} {
		if c.err == nil || c.says != "" && (!apierrors.IsForbidden(c.err) || !strings.Contains(c.err.Error(), c.says)) {
			t.Errorf("%s: %v, want to be forbidden: …%s…", name, c.err, c.says)
		}
	}
}

// leases: virt-handler writes no Lease but its own.
func (s *testServer) leases(t *testing.T, bound, unbound client.Client) {
	lease := func(name string) *coordinationv1.Lease {
		return &coordinationv1.Lease{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
			ObjectMeta: metav1.ObjectMeta{Namespace: v1.KubeVirtNamespace, Name: name, Annotations: map[string]string{"test": "x"}}}
	}
	applied := func(by client.Client, name string) error {
		text := fmt.Sprintf(`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":%q,"namespace":"kubevirt","annotations":{"test":"x"}}}`, name)
		return by.Patch(t.Context(), lease(name), client.RawPatch(types.ApplyPatchType, []byte(text)),
			client.FieldOwner("test"), client.ForceOwnership, client.DryRunAll)
	}
	own := lease("virt-handler-" + theNode)
	if err := s.admin.Create(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.admin.Delete(context.Background(), own) })
	for name, c := range map[string]struct {
		by      client.Client
		lease   string
		refusal string // empty: allowed
	}{
		"own":                     {bound, own.Name, ""},
		"another node's":          {bound, "virt-handler-other", "of its own node"},
		"virt-controller's":       {bound, "virt-controller", "of its own node"},
		"with a token of no node": {unbound, own.Name, "names no node"},
	} {
		// What virt-handler does, and the other way to make one.
		for how, err := range map[string]error{"apply": applied(c.by, c.lease), "create": c.by.Create(t.Context(), lease(c.lease), client.DryRunAll)} {
			if c.refusal == "" && apierrors.IsAlreadyExists(err) {
				err = nil
			}
			if (err == nil) != (c.refusal == "") || err != nil && !(strings.Contains(err.Error(), c.refusal) && apierrors.IsForbidden(err)) {
				t.Errorf("%s Lease %s: %v, want %q", how, name, err, c.refusal)
			}
		}
	}
}

// nodeRights: virt-controller writes nothing of nodes but its labels.
func (s *testServer) nodeRights(t *testing.T) {
	controller := s.client(s.plane.As(controllerAccount, "system:serviceaccounts", "system:serviceaccounts:kubevirt"))
	for patch, refusal := range map[string]string{
		`{"metadata":{"labels":{"kubevirt.io/schedulable":"false"}}}`:                                                         "",
		`{"metadata":{"annotations":{"kubevirt.io/heartbeat":"now"}}}`:                                                        "",
		`{"metadata":{"labels":{"cpu-model.node.kubevirt.io/Penryn":"true","cpu-timer.node.kubevirt.io/tsc-frequency":"1"}}}`: "",
		`{"metadata":{"labels":{"scheduling.node.kubevirt.io/tsc-frequency-1":"true"}}}`:                                      "",
		`{"metadata":{"labels":{"scheduling.node.kubevirt.io/other":"true"}}}`:                                                "its own labels",
		`{"metadata":{"labels":{"x.cpu-model.node.kubevirt.io/Penryn":"true"}}}`:                                              "its own labels",
		`{"metadata":{"labels":{"e2e":"x"}}}`:                                                                                 "its own labels",
		`{"metadata":{"labels":{"kubernetes.io/hostname":"x"}}}`:                                                              "its own labels",
		`{"metadata":{"labels":{"kubernetes.io/hostname":null}}}`:                                                             "its own labels",
		`{"metadata":{"annotations":{"e2e":"x"}}}`:                                                                            "its own annotation",
		`{"metadata":{"finalizers":["e2e/x"]}}`:                                                                               "only labels and an annotation",
		`{"spec":{"unschedulable":true}}`:                                                                                     "only labels and an annotation",
		`{"spec":{"taints":[{"key":"e2e","effect":"NoExecute"}]}}`:                                                            "only labels and an annotation",
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: theNode}}
		err := controller.Patch(t.Context(), node, client.RawPatch(types.MergePatchType, []byte(patch)), client.DryRunAll)
		if (err == nil) != (refusal == "") || err != nil && !(strings.Contains(err.Error(), refusal) && apierrors.IsForbidden(err)) {
			t.Errorf("virt-controller patches a node with %s: %v, want %q", patch, err, refusal)
		}
	}
}

// userRights: users may what their roles say. Kubernetes' own roles, which these are added to, are test/e2e's: nobody adds
// here.
func (s *testServer) userRights(t *testing.T) {
	for _, role := range []string{"admin", "edit", "view", "migrate"} {
		s.plane.MustApply(fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: %[1]s}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %[1]s}]
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "kubevirt.io:%[1]s"}
`, role))
	}
	clients, err := kubernetes.NewForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	allowed := func(user, verb, what string) bool {
		group, resource, _ := strings.Cut(what, "/")
		resource, sub, _ := strings.Cut(resource, "/")
		review, err := clients.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: user, Groups: []string{"system:authenticated"},
				ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "default", Verb: verb, Group: group, Resource: resource, Subresource: sub}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return review.Status.Allowed
	}
	const vmis, sets, kv = "kubevirt.io/virtualmachineinstances", "kubevirt.io/virtualmachineinstancereplicasets", "kubevirt.io/kubevirts"
	const served = "subresources.kubevirt.io/virtualmachineinstances"
	all := []string{"admin", "edit", "view", "migrate", "nobody"}
	cases := []struct{ verb, what, who string }{
		{"list", vmis, "admin edit view"},
		{"create", vmis, "admin edit"},
		{"deletecollection", vmis, "admin"},
		{"create", "kubevirt.io/virtualmachineinstancepresets", "admin edit"},
		{"list", "kubevirt.io/virtualmachineinstancepresets", "admin edit view"},
		{"patch", vmis + "/status", ""},
		{"update", vmis + "/finalizers", ""},
		{"update", sets + "/status", ""},
		{"patch", sets + "/scale", "admin edit"},
		{"update", sets + "/finalizers", ""},
		{"create", "pool.kubevirt.io/virtualmachinepools", "admin edit"},
		{"patch", "pool.kubevirt.io/virtualmachinepools/scale", "admin edit"},
		{"update", "pool.kubevirt.io/virtualmachinepools/status", ""},
		{"list", "migrations.kubevirt.io/migrationpolicies", "admin edit view"},
		{"create", "migrations.kubevirt.io/migrationpolicies", ""},
		{"get", served + "/console", "admin edit"},
		{"get", served + "/vnc/screenshot", "admin edit"},
		{"update", served + "/pause", "admin edit"},
		{"get", served + "/guestosinfo", "admin edit view"},
		{"get", served + "/qemuargs", "admin edit view"},
		{"update", "subresources.kubevirt.io/virtualmachines/start", "admin edit"},
		{"update", "subresources.kubevirt.io/virtualmachines/migrate", "migrate"},
		{"create", "kubevirt.io/virtualmachineinstancemigrations", "migrate"},
		{"get", "subresources.kubevirt.io/version", "admin edit view migrate nobody"},
		{"get", "subresources.kubevirt.io/ui", "admin edit view migrate nobody"},
		{"list", kv, "admin edit view migrate nobody"},
		{"patch", kv, ""},
		{"get", "/secrets", ""},
		{"create", "/pods", ""},
	}
	for _, c := range cases {
		for _, user := range all {
			if !slices.Contains(strings.Fields(c.who), user) {
				continue
			}
			s.poll(c.verb+" "+c.what+" by "+user, func() error { // the API server hears of a role by a watch
				if !allowed(user, c.verb, c.what) {
					return errors.New("it is forbidden")
				}
				return nil
			})
		}
	}
	for _, c := range cases {
		for _, user := range all {
			if !slices.Contains(strings.Fields(c.who), user) && allowed(user, c.verb, c.what) {
				t.Errorf("%s %s by %s is allowed", c.verb, c.what, user)
			}
		}
	}
}

// accountRights: what the API server itself says that our accounts may do, with config/datavolumes.
func (s *testServer) accountRights(t *testing.T) {
	for account, c := range map[string]struct {
		holder rights.Holder
		known  string // something that it may
	}{
		"virt-handler":    {rights.Worker, "virtualmachineinstances/status"},
		"virt-controller": {rights.Component, "virtualmachineinstances/status"},
		"virt-api":        {rights.Component, "validatingwebhookconfigurations"},
	} {
		by, err := kubernetes.NewForConfig(s.token(t, account, nil))
		if err != nil {
			t.Fatal(err)
		}
		for _, in := range []string{"kubevirt", "kube-system", "default"} {
			answer, err := by.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(),
				&authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: in}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			grants, known := reviewed(*answer, in), false
			for _, g := range grants {
				known = known || strings.Contains(g.String(), c.known)
			}
			if !known {
				t.Errorf("%s in %s: %v; the test checks nothing", account, in, grants)
			}
			for _, wrong := range rights.Forbidden(c.holder, grants) {
				// virt-controller leaves one APIService to CDI.
				if account == "virt-controller" && strings.Contains(wrong, "delete: apiservices of apiregistration.k8s.io") &&
					strings.Contains(wrong, " named "+cdi.UploadService) {
					continue
				}
				// A policy holds this right to importer pods.
				if account == "virt-handler" || !strings.HasPrefix(wrong, "create: pods/portforward of core ") {
					t.Errorf("%s may, in %s, %s", account, in, wrong)
					continue
				}
				// The API server hears of a policy a moment after it was made.
				s.poll(account+" connects to no pod in "+in, func() error {
					err := by.CoreV1().RESTClient().Post().Namespace(in).Resource("pods").Name("any").SubResource("portforward").
						Do(t.Context()).Error()
					if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "connects to importer pods only") {
						return fmt.Errorf("it connects: %w", err)
					}
					return nil
				})
			}
		}
	}
}

// reviewed are the rights in a review of a namespace. Whether one holds in all
// namespaces it does not say; one in ours may.
func reviewed(answer authorizationv1.SelfSubjectRulesReview, namespace string) []rights.Grant {
	if namespace != "kubevirt" {
		namespace = ""
	}
	var grants []rights.Grant
	for _, r := range answer.Status.ResourceRules {
		grants = append(grants, rights.Grant{Namespace: namespace, PolicyRule: rbacv1.PolicyRule{
			Verbs: r.Verbs, APIGroups: r.APIGroups, Resources: r.Resources, ResourceNames: r.ResourceNames}})
	}
	for _, r := range answer.Status.NonResourceRules {
		grants = append(grants, rights.Grant{PolicyRule: rbacv1.PolicyRule{Verbs: r.Verbs, NonResourceURLs: r.NonResourceURLs}})
	}
	return grants
}
