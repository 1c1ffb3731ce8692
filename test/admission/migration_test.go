package admission

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// twoNodes: of a VMI that migrates from node n1 to node n2, each virt-handler writes its own part, and n3's nothing.
// Where the guest runs is decided once.
func (s *testServer) twoNodes(t *testing.T) {
	controller := s.as(controllerAccount)
	vmi := tiny("moving")
	if err := controller.Create(t.Context(), vmi); err != nil {
		t.Fatal(err)
	}
	now := metav1.Now()
	under := v1.VirtualMachineInstanceMigrationState{MigrationUID: "m", SourceNode: "n1", SourcePod: "p1", TargetNode: "n2", TargetPod: "p2"}
	decided := func(d v1.MigrationDecision) v1.VirtualMachineInstanceMigrationState {
		m := under
		m.Decision = d
		return m
	}
	arrived, over := decided(v1.DecisionTarget), decided(v1.DecisionSource)
	arrived.TargetState = &v1.MigrationTargetState{DomainReadyTimestamp: &now}
	over.Completed, over.Failed = true, true
	following := decided(v1.DecisionTarget)
	following.SourceState = &v1.MigrationSourceState{PostCopyTimestamp: &now}
	alone, aloneDecided := under, decided(v1.DecisionSource)
	alone.TargetNode, aloneDecided.TargetNode = "n1", "n1"
	allowed, forbidden, begun := under, under, following
	allowed.MigrationConfiguration = &v1.MigrationConfiguration{AllowPostCopy: ptr.To(true)}
	forbidden.MigrationConfiguration = &v1.MigrationConfiguration{AllowPostCopy: ptr.To(true), AllowWorkloadDisruption: ptr.To(false)}
	late := allowed
	late.Decision = v1.DecisionTarget
	begun.MigrationConfiguration = allowed.MigrationConfiguration
	const state = `{"status":{"migrationState":{%s}}}`
	toPostCopy := fmt.Sprintf(state, `"sourceState":{"postCopyTimestamp":"2026-01-01T00:00:00Z"}`)
	toSource, toTarget := fmt.Sprintf(state, `"decision":"Source"`), fmt.Sprintf(state, `"decision":"Target"`)
	from, to := fmt.Sprintf(state, `"sourceState":{"failure":"x"}`), fmt.Sprintf(state, `"targetState":{"nodeAddress":"10.0.0.2"}`)
	const source, target, once, both, own = "writes sourceState", "writes targetState", "decides once", "begins and ends no migration", "of its own node"
	const postCopy = "begins post-copy once"
	for name, c := range map[string]struct {
		runsOn string
		before v1.VirtualMachineInstanceMigrationState
		patch  string
		// says is what each node's virt-handler is told; nothing where it may.
		n1, n2, n3 string
	}{
		"the source's part":          {"n1", under, from, "", source, own},
		"the target's part":          {"n1", under, to, target, "", own},
		"decide for the source":      {"n1", under, toSource, "", "", own},
		"decide for the target":      {"n1", under, toTarget, once, "", own},
		"both at once":               {"n1", under, fmt.Sprintf(state, `"decision":"Target","targetState":{"domainDetected":true}`), target, "", own},
		"decide again":               {"n1", decided(v1.DecisionSource), toTarget, once, once, own},
		"take back":                  {"n2", decided(v1.DecisionTarget), toSource, once, "", own},
		"take back in post-copy":     {"n2", following, toSource, once, "", own},
		"post-copy":                  {"n1", allowed, toPostCopy, "", source, own},
		"post-copy, not configured":  {"n1", under, toPostCopy, postCopy, source, own},
		"post-copy, forbidden":       {"n1", forbidden, toPostCopy, postCopy, source, own},
		"post-copy, decided":         {"n1", late, toPostCopy, postCopy, source, own},
		"post-copy at another time":  {"n1", begun, toPostCopy, postCopy, source, own},
		"post-copy, taken away":      {"n1", begun, fmt.Sprintf(state, `"sourceState":{"postCopyTimestamp":null}`), postCopy, source, own},
		"more, in post-copy":         {"n1", begun, from, "", source, own},
		"take back what runs":        {"n2", arrived, toSource, once, once, own},
		"take a decision away":       {"n1", decided(v1.DecisionSource), fmt.Sprintf(state, `"decision":null`), both, both, own},
		"the source's part, later":   {"n2", arrived, from, "", source, own},
		"after the end":              {"n1", over, to, target, own, own},
		"the source's part, ended":   {"n2", over, from, own, source, own},
		"another target":             {"n1", under, fmt.Sprintf(state, `"targetNode":"n3"`), both, both, own},
		"the end":                    {"n1", under, fmt.Sprintf(state, `"completed":true`), both, both, own},
		"no migration":               {"n1", under, `{"status":{"migrationState":null}}`, both, "about the migration", own},
		"something else":             {"n1", under, `{"status":{"fsFreezeStatus":"frozen"}}`, "", "about the migration", own},
		"something else, taken away": {"n1", under, `{"status":{"interfaces":null}}`, "", "about the migration", own},
		"the node":                   {"n1", under, `{"status":{"nodeName":"n2"}}`, "to another node", "to another node", own},
		"the pod":                    {"n1", under, `{"status":{"launcherPod":"p2"}}`, "to another node", "to another node", own},
		"on one node":                {"n1", alone, fmt.Sprintf(state, `"decision":"Target","sourceState":{"failure":"x"},"targetState":{"domainDetected":true}`), "", own, own},
		"on one node, again":         {"n1", aloneDecided, toTarget, once, own, own},
		"on one node, the pod":       {"n1", alone, `{"status":{"launcherPod":"p2"}}`, "to another node", own, own},
		"the end of the VMI":         {"n1", under, `{"status":{"phase":"Failed"}}`, "never to its end", "about the migration", own},
	} {
		for node, says := range map[string]string{"n1": c.n1, "n2": c.n2, "n3": c.n3} {
			fresh := &v1.VirtualMachineInstance{}
			if err := controller.Get(t.Context(), client.ObjectKeyFromObject(vmi), fresh); err != nil {
				t.Fatal(err)
			}
			fresh.Status = v1.VirtualMachineInstanceStatus{Phase: v1.Running, NodeName: c.runsOn, Interfaces: []v1.NetworkInterfaceStatus{{Name: "default"}}, MigrationState: c.before.DeepCopy()}
			if err := controller.Status().Update(t.Context(), fresh); err != nil {
				t.Fatal(err)
			}
			err := s.onNode(handlerAccount, node).Status().Patch(t.Context(), fresh, client.RawPatch(types.MergePatchType, []byte(c.patch)))
			if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
				t.Errorf("%s, by %s: %v, want %q", name, node, err, says)
			}
		}
	}
}

// migrations: a migration's spec says whose guest moves, and does not change.
func (s *testServer) migrations(t *testing.T) {
	admin := s.admin
	for name, c := range map[string]struct{ spec, says string }{
		"good":            {`{"vmiName":"a","addedNodeSelector":{"a":"b"},"priority":"user-triggered"}`, ""},
		"no VMI":          {`{}`, "spec.vmiName"},
		"another cluster": {`{"vmiName":"a","sendTo":{"migrationID":"x"}}`, "spec.sendTo"},
		"from another":    {`{"vmiName":"a","receive":{"migrationID":"x"}}`, "spec.receive"},
		"a high priority": {`{"vmiName":"a","priority":"system-critical"}`, "only virt-controller"},
		"priority":        {`{"vmiName":"a","priority":"first"}`, "spec.priority"},
	} {
		m := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "m-"}}
		if err := json.Unmarshal([]byte(c.spec), &m.Spec); err != nil {
			t.Fatal(err)
		}
		err := admin.Create(t.Context(), m)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
		if err == nil {
			err := admin.Patch(t.Context(), m, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"vmiName":"b"}}`)))
			if err == nil || !strings.Contains(err.Error(), "is restricted") {
				t.Errorf("%s: the spec changes: %v", name, err)
			}
		}
	}
}

// migrationCancel: nobody but Kubernetes' own controllers deletes a migration in post-copy before its end.
func (s *testServer) migrationCancel(t *testing.T) {
	for name, c := range map[string]struct {
		phase v1.VirtualMachineInstanceMigrationPhase
		mode  v1.MigrationMode
		by    client.Client
		says  string
	}{
		"pre-copy":                      {v1.MigrationRunning, v1.MigrationPreCopy, s.admin, ""},
		"post-copy":                     {v1.MigrationRunning, v1.MigrationPostCopy, s.admin, "cannot be cancelled any more"},
		"post-copy, ended":              {v1.MigrationSucceeded, v1.MigrationPostCopy, s.admin, ""},
		"post-copy, by virt-controller": {v1.MigrationRunning, v1.MigrationPostCopy, s.as(controllerAccount), ""},
		"not begun":                     {"", "", s.admin, ""},
	} {
		m := &v1.VirtualMachineInstanceMigration{ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "m-"}}
		m.Spec.VMIName = "a"
		if err := s.admin.Create(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		if c.phase != "" {
			m.Status.Phase, m.Status.MigrationState = c.phase, &v1.VirtualMachineInstanceMigrationState{Mode: c.mode}
			if err := s.as(controllerAccount).Status().Update(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
		err := c.by.Delete(t.Context(), m)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

// warnings keeps what the API server warns of.
type warnings struct {
	mu    sync.Mutex
	heard []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heard = append(w.heard, text)
}

// next returns what was heard since the last call.
func (w *warnings) next() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() { w.heard = nil }()
	return strings.Join(w.heard, "\n")
}

// migrationPolicies: a value out of bounds is refused, and of a field that has no effect there is a warning.
func (s *testServer) migrationPolicies(t *testing.T) {
	admin, heard := s.warned()
	policies := func(spec string) *unstructured.Unstructured {
		p := &unstructured.Unstructured{}
		if err := json.Unmarshal([]byte(`{"apiVersion":"migrations.kubevirt.io/v1alpha1","kind":"MigrationPolicy","metadata":{"generateName":"p-"},"spec":`+spec+`}`), p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	// The API server hears of an admission policy a moment after it was made. Until then it warns of nothing.
	s.poll("the API server warns", func() error {
		err := admin.Create(t.Context(), policies(`{"allowWorkloadDisruption":true}`))
		if said := heard.next(); err == nil && said == "" {
			err = errors.New("it does not warn")
		}
		return err
	})
	for name, c := range map[string]struct{ spec, refused, warned string }{
		"KubeVirt's example": {`{"allowAutoConverge":false,"bandwidthPerMigration":"2000Mi","completionTimeoutPerGiB":100,"allowPostCopy":false,"selectors":{"namespaceSelector":{"a":"b"},"virtualMachineInstanceSelector":{"c":"d"}}}`, "", ""},
		"a number":           {`{"bandwidthPerMigration":1000}`, "", ""},
		"less than none":     {`{"bandwidthPerMigration":"-1Mi"}`, "spec.bandwidthPerMigration", ""},
		"less than 0":        {`{"bandwidthPerMigration":-1}`, "spec.bandwidthPerMigration", ""},
		"no time":            {`{"completionTimeoutPerGiB":0}`, "spec.completionTimeoutPerGiB", ""},
		"a minute's pause":   {`{"maxDowntimeMs":60001}`, "spec.maxDowntimeMs", ""},
		"post-copy":          {`{"allowPostCopy":true,"allowWorkloadDisruption":true}`, "", ""},
		"a pause":            {`{"allowWorkloadDisruption":true}`, "", "spec.allowWorkloadDisruption has no effect"},
		"an experiment":      {`{"experimental":{"compression":"zstd"}}`, "", "spec.experimental has no effect"},
	} {
		err := admin.Create(t.Context(), policies(c.spec))
		if (err == nil) != (c.refused == "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%s: %v, want %q", name, err, c.refused)
		}
		if said := heard.next(); (said == "") != (c.warned == "") || !strings.Contains(said, c.warned) {
			t.Errorf("%s: warned of %q, want %q", name, said, c.warned)
		}
	}
}
