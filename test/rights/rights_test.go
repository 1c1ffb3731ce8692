package rights

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	sigsyaml "sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/testkit/golden"
)

func TestMain(m *testing.M) { golden.Main(m, "testdata/*.golden") }

// loaded is what config/default has: to read the CRDs beside it takes a second.
var loaded = sync.OnceValues(func() (*Manifests, error) { return Load("../../config/default") })

// shipped returns what config/default has. The caller may add to it.
func shipped(t *testing.T) *Manifests {
	t.Helper()
	all, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	m := &Manifests{
		Accounts: slices.Clone(all.Accounts), ClusterRoles: maps.Clone(all.ClusterRoles), Roles: maps.Clone(all.Roles),
		Bindings: slices.Clone(all.Bindings), DaemonSets: slices.Clone(all.DaemonSets), Deployments: slices.Clone(all.Deployments),
	}
	if len(m.Accounts) < 2 || len(m.DaemonSets) == 0 || len(m.Deployments) == 0 || len(m.Bindings) < 2 {
		t.Fatalf("the manifests are not all there: %d accounts, %d DaemonSets, %d Deployments, %d bindings",
			len(m.Accounts), len(m.DaemonSets), len(m.Deployments), len(m.Bindings))
	}
	return m
}

// TestRightsGolden: every right that is granted is there to be read, and a
// change of it to be reviewed.
func TestRightsGolden(t *testing.T) {
	m := shipped(t)
	var got strings.Builder
	for _, a := range m.Accounts {
		grants, err := m.Of(a.Namespace, a.Name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&got, "%s/%s\n", a.Namespace, a.Name)
		var lines []string
		for _, g := range grants {
			lines = append(lines, "  "+g.String()+"\n")
		}
		slices.Sort(lines)
		got.WriteString(strings.Join(lines, ""))
	}
	golden.Compare(t, "testdata/rights.golden", got.String())
}

// TestNoComponentsRightLeadsToOthers: nothing that is shipped has a right that leads to others'.
func TestNoComponentsRightLeadsToOthers(t *testing.T) {
	m := shipped(t)
	for _, a := range m.Accounts {
		grants, err := m.Of(a.Namespace, a.Name)
		if err != nil {
			t.Error(err)
		}
		if len(grants) == 0 {
			t.Errorf("%s has no rights: the test checks nothing", a.Name)
		}
		for _, wrong := range Forbidden(Component, grants) {
			t.Errorf("%s may %s", a.Name, wrong)
		}
	}
}

// TestNoRoleGrantsMoreThanItsOwn: no role that is shipped, bound or not, for users too, grants more
// than its own.
func TestNoRoleGrantsMoreThanItsOwn(t *testing.T) {
	m := shipped(t)
	for name, role := range m.ClusterRoles {
		if role.AggregationRule != nil {
			t.Errorf("%s takes its rules from elsewhere", name)
		}
		for _, rule := range role.Rules {
			for _, wrong := range Forbidden(Component, []Grant{{PolicyRule: rule}}) {
				t.Errorf("%s: %s", name, wrong)
			}
		}
	}
}

// TestTakenNodeLeadsNoFurther: whoever takes a node has the tokens of the pods that run on
// every node, and of launchers. None leads any further.
func TestTakenNodeLeadsNoFurther(t *testing.T) {
	m := shipped(t)
	for _, d := range m.DaemonSets {
		account := d.Spec.Template.Spec.ServiceAccountName
		if account == "" || account == "default" {
			t.Errorf("DaemonSet %s has no account of its own", d.Name)
		}
		grants, err := m.Of(d.Namespace, account)
		if err != nil {
			t.Error(err)
		}
		if len(grants) == 0 {
			t.Errorf("%s has no rights: the test checks nothing", account)
		}
		for _, wrong := range Forbidden(Worker, grants) {
			t.Errorf("%s, on every node, may %s", account, wrong)
		}
		for _, path := range secretsIn(d.Spec.Template.Spec) {
			t.Errorf("DaemonSet %s brings a secret to every node: %s", d.Name, path)
		}
		for _, other := range m.Deployments {
			if s := other.Spec.Template.Spec; s.ServiceAccountName == account {
				t.Errorf("Deployment %s shares the account %s", other.Name, account)
			}
		}
	}
}

// secretsIn are the places of a pod that bring it a secret or another token.
func secretsIn(spec corev1.PodSpec) []string {
	var found []string
	for _, v := range spec.Volumes {
		if v.Secret != nil || v.Projected != nil {
			found = append(found, "volume "+v.Name)
		}
	}
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				found = append(found, "variable "+e.Name)
			}
		}
		for _, e := range c.EnvFrom {
			if e.SecretRef != nil {
				found = append(found, "variables of "+e.SecretRef.Name)
			}
		}
	}
	return found
}

// TestLauncherPodsHaveNoToken: launcher pods have no token but the one that a VMI's volume brings into the guest.
func TestLauncherPodsHaveNoToken(t *testing.T) {
	files, err := filepath.Glob("../../controllers/vmi/testdata/*/pod.golden.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no launcher pods: the test checks nothing", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var pod corev1.Pod
		if err := sigsyaml.Unmarshal(text, &pod); err != nil {
			t.Fatal(err)
		}
		if mount := pod.Spec.AutomountServiceAccountToken; mount == nil || *mount {
			t.Errorf("%s has a token", file)
		}
		account := serviceAccount(t, filepath.Join(filepath.Dir(file), "vmi.yaml"))
		for _, v := range pod.Spec.Volumes {
			if v.HostPath != nil || v.Projected != nil && (account == "" || pod.Spec.ServiceAccountName != account) {
				t.Errorf("%s has the volume %+v", file, v)
			}
		}
	}
}

// serviceAccount is the service account whose token a VMI asks for; empty for none.
func serviceAccount(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var vmi v1.VirtualMachineInstance
	if err := sigsyaml.Unmarshal(text, &vmi); err != nil {
		t.Fatal(err)
	}
	for _, v := range vmi.Spec.Volumes {
		if v.ServiceAccount != nil {
			return v.ServiceAccount.ServiceAccountName
		}
	}
	return ""
}

// TestWalkFindsEachWayOfARight: the walk finds what it must find, in manifests and not only in
// rules, through each way in which a right is granted.
func TestWalkFindsEachWayOfARight(t *testing.T) {
	const account = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a, namespace: ns}\n---\n"
	role := func(rule string) string {
		return "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: r}\nrules: [" + rule + "]\n---\n"
	}
	binding := func(subject string) string {
		return "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: b}\n" +
			"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: r}\nsubjects: [" + subject + "]\n---\n"
	}
	local := func(rule string) string {
		return "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: r, namespace: ns}\nrules: [" + rule + "]\n---\n" +
			"apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: b, namespace: ns}\n" +
			"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: r}\nsubjects: [{kind: ServiceAccount, name: a, namespace: ns}]\n"
	}
	const toAccount = "{kind: ServiceAccount, name: a, namespace: ns}"
	rule := func(group, resource, verb string) string {
		return fmt.Sprintf("{apiGroups: [%q], resources: [%q], verbs: [%q]}", group, resource, verb)
	}
	cluster := func(group, resource, verb string) string {
		return role(rule(group, resource, verb)) + binding(toAccount)
	}
	for name, c := range map[string]struct {
		manifests string
		holder    Holder
		want      string // empty: nothing is wrong
	}{
		"get secrets":              {cluster("", "secrets", "get"), Component, "keep secret"},
		"list secrets here":        {local(rule("", "secrets", "list")), Component, "keep secret"},
		"a secret everywhere":      {role(`{apiGroups: [""], resources: [secrets], resourceNames: [x], verbs: [get]}`) + binding(toAccount), Component, "keep secret"},
		"one secret here":          {local(`{apiGroups: [""], resources: [secrets], resourceNames: [x], verbs: [get]}`), Component, ""},
		"create secrets":           {local(rule("", "secrets", "create")), Component, "keep secret"},
		"exec":                     {cluster("", "pods/exec", "create"), Component, "runs code in others' pods"},
		"exec by get":              {cluster("", "pods/exec", "get"), Component, "runs code in others' pods"},
		"ephemeral containers":     {cluster("", "pods/ephemeralcontainers", "patch"), Component, "runs code in others' pods"},
		"tokens":                   {local(rule("", "serviceaccounts/token", "create")), Component, "another account's rights"},
		"escalate":                 {cluster("rbac.authorization.k8s.io", "clusterroles", "escalate"), Component, "any right"},
		"bind":                     {cluster("rbac.authorization.k8s.io", "roles", "bind"), Component, "any right"},
		"impersonate":              {cluster("", "users", "impersonate"), Component, "any right"},
		"impersonate accounts":     {local(rule("", "serviceaccounts", "impersonate")), Component, "any right"},
		"one user's rights":        {role(`{apiGroups: [""], resources: [users], resourceNames: [x], verbs: [impersonate]}`) + binding(toAccount), Component, ""},
		"one group's rights":       {role(`{apiGroups: [""], resources: [groups], resourceNames: [x], verbs: [impersonate]}`) + binding(toAccount), Component, "any right"},
		"one user, on a node":      {role(`{apiGroups: [""], resources: [users], resourceNames: [x], verbs: [impersonate]}`) + binding(toAccount), Worker, "another account's rights"},
		"impersonate a node":       {cluster("authentication.k8s.io", "userextras/authentication.kubernetes.io/node-name", "impersonate"), Component, "any right"},
		"bindings":                 {local(rule("rbac.authorization.k8s.io", "rolebindings", "create")), Component, "grants rights"},
		"webhooks":                 {cluster("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "patch"), Component, "every write"},
		"update webhooks":          {cluster("admissionregistration.k8s.io", "validatingwebhookconfigurations", "update"), Component, "every write"},
		"one webhook":              {role(`{apiGroups: [admissionregistration.k8s.io], resources: [validatingwebhookconfigurations], resourceNames: [x], verbs: [update]}`) + binding(toAccount), Component, ""},
		"one webhook, deleted":     {role(`{apiGroups: [admissionregistration.k8s.io], resources: [validatingwebhookconfigurations], resourceNames: [x], verbs: [delete]}`) + binding(toAccount), Component, "every write"},
		"one webhook on each node": {role(`{apiGroups: [admissionregistration.k8s.io], resources: [validatingwebhookconfigurations], resourceNames: [x], verbs: [update]}`) + binding(toAccount), Worker, "every write"},
		"policies":                 {cluster("admissionregistration.k8s.io", "validatingadmissionpolicybindings", "delete"), Component, "held by"},
		"API services":             {cluster("apiregistration.k8s.io", "apiservices", "update"), Component, "answers for"},
		"one API service":          {role(`{apiGroups: [apiregistration.k8s.io], resources: [apiservices], resourceNames: [x], verbs: [update]}`) + binding(toAccount), Component, ""},
		"a status of API services": {cluster("apiregistration.k8s.io", "apiservices/status", "update"), Component, "answers for"},
		"all verbs":                {cluster("", "events", "*"), Component, "wildcard in verbs"},
		"all groups":               {cluster("*", "events", "get"), Component, "wildcard in groups"},
		"all resources":            {cluster("kubevirt.io", "*", "get"), Component, "wildcard in resources"},
		"all subresources":         {cluster("apps", "*/scale", "get"), Component, "wildcard in resources"},
		"all URLs":                 {role(`{nonResourceURLs: ["*"], verbs: [get]}`) + binding(toAccount), Component, "wildcard in URLs"},
		"patch nodes":              {cluster("", "nodes", "patch"), Worker, "lures pods to this node"},
		"get nodes":                {cluster("", "nodes", "get"), Worker, "lures pods to this node"},
		"node status":              {cluster("", "nodes/status", "patch"), Worker, "lures pods to this node"},
		"delete nodes":             {cluster("", "nodes", "delete"), Component, "nothing to do with nodes"},
		"status of nodes":          {cluster("", "nodes/status", "patch"), Component, "lures"},
		"configuration":            {cluster("kubevirt.io", "kubevirts", "patch"), Worker, "configures"},
		"create pods":              {local(rule("", "pods", "create")), Worker, "under any account"},
		"list pods":                {cluster("", "pods", "list"), Worker, "under any account"},
		"patch DaemonSets":         {cluster("apps", "daemonsets", "patch"), Worker, "under any account"},
		"approve certificates":     {cluster("certificates.k8s.io", "certificatesigningrequests/approval", "update"), Worker, "certifies"},
		"sign":                     {cluster("certificates.k8s.io", "signers", "sign"), Worker, "certifies"},
		"update VMIs":              {cluster("kubevirt.io", "virtualmachineinstances", "update"), Worker, "changes others' VMIs"},
		"to a user":                {role(rule("", "secrets", "get")) + binding(`{kind: User, name: "system:serviceaccount:ns:a"}`), Component, "keep secret"},
		"to its namespace's group": {role(rule("", "secrets", "get")) + binding(`{kind: Group, name: "system:serviceaccounts:ns"}`), Component, "keep secret"},
		"to all":                   {role(rule("", "secrets", "get")) + binding(`{kind: Group, name: "system:authenticated"}`), Component, "keep secret"},
		"to another":               {role(rule("", "secrets", "get")) + binding(`{kind: ServiceAccount, name: b, namespace: ns}`), Component, ""},
		"a role from elsewhere":    {strings.ReplaceAll(binding(toAccount), "name: r}", "name: cluster-admin}"), Component, "cluster-admin, which is not among"},
		"read VMIs":                {cluster("kubevirt.io", "virtualmachineinstances", "list"), Worker, ""},
		"pods, but no worker":      {cluster("", "pods", "create"), Component, ""},
	} {
		m, err := loadText(t, account+c.manifests)
		var wrong []string
		if err == nil {
			var grants []Grant
			if grants, err = m.Of("ns", "a"); err == nil {
				wrong = Forbidden(c.holder, grants)
			}
		}
		if err != nil {
			wrong = append(wrong, err.Error())
		}
		got := strings.Join(wrong, "; ")
		if c.want == "" && got != "" || c.want != "" && !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// loadText loads manifests through a kustomization of one file.
func loadText(t *testing.T, text string) (*Manifests, error) {
	t.Helper()
	folder := t.TempDir()
	for name, content := range map[string]string{"kustomization.yaml": "resources: [all.yaml]\n", "all.yaml": text} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Load(folder)
}

// TestStrangeKustomizationIsAnError: a kustomization that may change rights in a way not read
// here is an error.
func TestStrangeKustomizationIsAnError(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte("resources: []\npatches: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(folder); err == nil {
		t.Error("patches were not seen")
	}
}

// TestDeploymentsRunRestricted: what is not on every node runs as the restricted Pod Security
// Standard has it.
func TestDeploymentsRunRestricted(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	level := podsecurity.LevelVersion{Level: podsecurity.LevelRestricted, Version: podsecurity.LatestVersion()}
	for _, d := range shipped(t).Deployments {
		pod := &d.Spec.Template
		if r := policy.AggregateCheckResults(evaluator.EvaluatePod(level, &pod.ObjectMeta, &pod.Spec)); !r.Allowed {
			t.Errorf("Deployment %s: %s", d.Name, r.ForbiddenDetail())
		}
		for _, c := range pod.Spec.Containers {
			if c.SecurityContext == nil || c.SecurityContext.ReadOnlyRootFilesystem == nil || !*c.SecurityContext.ReadOnlyRootFilesystem {
				t.Errorf("Deployment %s: container %s can write to its root", d.Name, c.Name)
			}
		}
	}
}
