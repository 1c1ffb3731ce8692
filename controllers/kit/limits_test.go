package kit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"
)

// parse reads an object from YAML.
func parse[T any](t *testing.T, text string) (out T) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), &out); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	return out
}

// limitsOf lists a pod's requests and limits, container by container.
func limitsOf(pod *corev1.Pod) string {
	var out []string
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, list := range []struct {
			what string
			of   corev1.ResourceList
		}{{"requests", c.Resources.Requests}, {"limits", c.Resources.Limits}} {
			for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
				if q, ok := list.of[name]; ok && (list.what == "limits" || name == corev1.ResourceEphemeralStorage) {
					out = append(out, fmt.Sprintf("%s %s %s %s", c.Name, list.what, name, q.String()))
				}
			}
		}
	}
	return strings.Join(out, ", ")
}

const twoContainers = `
metadata: {namespace: ns, name: pod}
spec:
  initContainers: [{name: side, restartPolicy: Always, resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {memory: 64Mi}}}]
  containers: [{name: main, resources: {requests: {cpu: 400m, memory: 300Mi}}}]
`

// TestPodGetsTheLimitsThatItsNamespaceAsks: and none that the namespace does not ask for, or that LimitRanges give by themselves.
func TestPodGetsTheLimitsThatItsNamespaceAsks(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		quota, limits, labels, pod, want string
		uses                             int64 // bytes
	}{
		"a guest that uses more than it requests": {quota: `{limits.memory: 4Gi}`, uses: 1000 * mib, want: "side limits memory 64Mi, main limits memory 1000Mi"},
		"and less than twice":                     {quota: `{limits.memory: 4Gi}`, uses: 500 * mib, want: "side limits memory 64Mi, main limits memory 600Mi"},
		"more than the default limit":             {limits: `[{type: Container, default: {memory: 128Mi}}]`, uses: 1000 * mib, want: "side limits memory 64Mi, main limits memory 1000Mi"},
		"more than the largest container":         {quota: `{limits.memory: 4Gi}`, limits: `[{type: Container, max: {memory: 500Mi}, default: {memory: 256Mi}}]`, uses: 1000 * mib, want: "side limits memory 64Mi, main limits memory 1000Mi"},
		"nothing is asked":                        {want: "side limits memory 64Mi"},
		"a quota of memory":                       {quota: `{limits.memory: 4Gi}`, want: "side limits memory 64Mi, main limits memory 600Mi"},
		"a ratio":                                 {quota: `{limits.memory: 4Gi}`, labels: `{alpha.kubevirt.io/auto-memory-limits-ratio: "1.5"}`, want: "side limits memory 64Mi, main limits memory 450Mi"},
		"a ratio below 1":                         {quota: `{limits.memory: 4Gi}`, labels: `{alpha.kubevirt.io/auto-memory-limits-ratio: "0.5"}`, want: "side limits memory 64Mi, main limits memory 600Mi"},
		"no ratio":                                {quota: `{limits.memory: 4Gi}`, labels: `{alpha.kubevirt.io/auto-memory-limits-ratio: NaN}`, want: "side limits memory 64Mi, main limits memory 600Mi"},
		"a large ratio":                           {quota: `{limits.memory: 4Gi}`, labels: `{alpha.kubevirt.io/auto-memory-limits-ratio: "1e300"}`, want: "side limits memory 64Mi, main limits memory 30000Mi"},
		"a quota of CPUs":                         {quota: `{limits.cpu: "8"}`, want: "side limits cpu 1, side limits memory 64Mi, main limits cpu 4"},
		"a quota of disk": {quota: `{requests.ephemeral-storage: 1Gi}`,
			want: "side requests ephemeral-storage 50M, side limits memory 64Mi, main requests ephemeral-storage 50M"},
		"a quota of disk, and a least": {quota: `{requests.ephemeral-storage: 1Gi}`,
			limits: `[{type: Container, min: {ephemeral-storage: 60M}}]`,
			want:   "side requests ephemeral-storage 60M, side limits memory 64Mi, main requests ephemeral-storage 60M"},
		"a quota of requests":                     {quota: `{requests.cpu: "8", requests.memory: 8Gi, pods: "3"}`, want: "side limits memory 64Mi"},
		"its own limits":                          {quota: `{limits.memory: 4Gi, limits.cpu: "8"}`, pod: strings.Replace(twoContainers, "memory: 300Mi}}", "memory: 300Mi}, limits: {memory: 301Mi, cpu: 3}}", 1), want: "side limits cpu 1, side limits memory 64Mi, main limits cpu 3, main limits memory 301Mi"},
		"default limits":                          {quota: `{limits.memory: 4Gi}`, limits: `[{type: Container, default: {memory: 512Mi}}]`, want: "side limits memory 64Mi"},
		"default limits below the request":        {limits: `[{type: Container, default: {memory: 128Mi, cpu: 200m}}]`, want: "side limits memory 64Mi, main limits cpu 400m, main limits memory 300Mi"},
		"a largest container":                     {quota: `{limits.memory: 4Gi}`, limits: `[{type: Container, max: {memory: 500Mi}, default: {memory: 256Mi}}]`, want: "side limits memory 64Mi, main limits memory 300Mi"},
		"a largest container, too small":          {limits: `[{type: Container, max: {memory: 200Mi}, default: {memory: 200Mi}}]`, want: "side limits memory 64Mi, main limits memory 300Mi"},
		"a largest pod":                           {limits: `[{type: Pod, max: {memory: 400Mi, cpu: 3}}]`, want: "side limits cpu 1, side limits memory 64Mi, main limits cpu 2, main limits memory 336Mi"},
		"a ratio of limit and request":            {limits: `[{type: Container, maxLimitRequestRatio: {memory: "1.1", cpu: 2}}]`, want: "side limits cpu 200m, side limits memory 64Mi, main limits cpu 800m, main limits memory 330Mi"},
		"a ratio that the default does not keep":  {limits: `[{type: Container, default: {cpu: 2}, maxLimitRequestRatio: {cpu: 4}}]`, want: "side limits cpu 400m, side limits memory 64Mi, main limits cpu 1600m"},
		"claims are no concern of the containers": {limits: `[{type: PersistentVolumeClaim, max: {storage: 1Gi}}]`, want: "side limits memory 64Mi"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.pod == "" {
				c.pod = twoContainers
			}
			pod := parse[corev1.Pod](t, c.pod)
			before := pod.DeepCopy()
			policies := namespacePolicies{memoryRatio: memoryRatio(parse[map[string]string](t, c.labels))}
			if c.quota != "" {
				policies.quotas = []corev1.ResourceQuota{parse[corev1.ResourceQuota](t, "spec: {hard: "+c.quota+"}")}
			}
			if c.limits != "" {
				policies.ranges = []corev1.LimitRange{parse[corev1.LimitRange](t, "spec: {limits: "+c.limits+"}")}
			}
			if got := limitsOf(policies.limit(&pod, Room{CPUs: 4, Memory: c.uses})); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if limitsOf(&pod) != limitsOf(before) {
				t.Error("the pod that was asked for has changed")
			}
		})
	}
}

// TestPodRequestsWhatItsNamespaceAsks: a container that requests too little for a LimitRange requests more. So does one
// whose limit is too high above its request, but for the first container: its limits are the VMI's.
func TestPodRequestsWhatItsNamespaceAsks(t *testing.T) {
	const small = `
metadata: {namespace: ns, name: pod}
spec:
  initContainers: [{name: side, resources: {requests: {cpu: 1m, memory: 2Mi}, limits: {memory: 40M}}}]
  containers: [{name: main, resources: {requests: {cpu: 100m, memory: 300Mi}, limits: {memory: 900Mi}}}]
`
	for name, c := range map[string]struct{ limits, side, main, breaks string }{
		"nothing is asked": {`[{type: Container, default: {cpu: 1}}]`, "1m 2Mi/40M", "100m 300Mi/900Mi", ""},
		"a least":          {`[{type: Container, min: {cpu: 5m, memory: 8Mi}}]`, "5m 8Mi/40M", "100m 300Mi/900Mi", ""},
		"a least above the limit": {`[{type: Container, min: {cpu: 200m, memory: 64Mi}}]`, "200m 64Mi/64Mi",
			"200m 300Mi/900Mi", ""},
		"a ratio": {`[{type: Container, maxLimitRequestRatio: {memory: "4"}}]`, "1m 10000001/40M", "100m 300Mi/900Mi", ""},
		"a ratio that the VMI's own limits do not keep": {`[{type: Container, maxLimitRequestRatio: {memory: "2"}}]`,
			"1m 20000001/40M", "100m 300Mi/900Mi", "the LimitRange small does not permit the container main: it requests " +
				"300Mi of memory with the limit 900Mi, and the maxLimitRequestRatio is 2"},
		"a ratio of the pod": {`[{type: Pod, maxLimitRequestRatio: {memory: "4"}}]`, "1m 10000001/40M",
			"100m 300Mi/900Mi", ""},
		"a ratio of 1": {`[{type: Container, maxLimitRequestRatio: {memory: "1"}}]`, "1m 40M/40M", "100m 300Mi/900Mi",
			"the container main"},
		"a largest": {`[{type: Container, max: {memory: 32Mi}}]`, "1m 2Mi/40M", "100m 300Mi/900Mi",
			"the LimitRange small does not permit the container side: it needs 40M of memory, and its max is 32Mi"},
		"a least of the pod": {`[{type: Pod, min: {memory: 8Mi}}]`, "1m 2Mi/40M", "100m 300Mi/900Mi", ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := parse[corev1.Pod](t, small)
			policies := namespacePolicies{memoryRatio: defaultMemoryRatio,
				ranges: []corev1.LimitRange{
					parse[corev1.LimitRange](t, "{metadata: {name: small}, spec: {limits: "+c.limits+"}}")}}
			limited := policies.limit(&pod, Room{CPUs: 1, Memory: 900 << 20})
			for i, want := range []string{c.side, c.main} {
				r := slices.Concat(limited.Spec.InitContainers, limited.Spec.Containers)[i].Resources
				if got := fmt.Sprintf("%s %s/%s", r.Requests.Cpu(), r.Requests.Memory(), r.Limits.Memory()); got != want {
					t.Errorf("container %d has %s, want %s", i, got, want)
				}
			}
			if got := policies.broken(limited); (got == "") != (c.breaks == "") || !strings.Contains(got, c.breaks) {
				t.Errorf("%q, want %q", got, c.breaks)
			}
		})
	}
}

// TestRefusalNamesLimitRangeAndContainer: what the API server refuses for a LimitRange is a refusal still, and names
// both.
func TestRefusalNamesLimitRangeAndContainer(t *testing.T) {
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "pod",
		fmt.Errorf("maximum memory usage is 32Mi"))
	limits := parse[corev1.LimitRange](t, `
metadata: {namespace: ns, name: small}
spec: {limits: [{type: Container, max: {memory: 32Mi}}]}
`)
	refuse := func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return refused }
	cluster := fake.NewClientBuilder().WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}, &limits).
		WithInterceptorFuncs(interceptor.Funcs{Create: refuse}).Build()
	pod := parse[corev1.Pod](t, twoContainers)
	err := CreatePod(t.Context(), cluster, cluster, &pod, Room{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), refused.Error()) ||
		!strings.Contains(err.Error(), "LimitRange small") || !strings.Contains(err.Error(), "container side") {
		t.Errorf("%v", err)
	}
}

// TestRefusedPodIsCreatedWithLimits: a pod is created once where the API server takes it, a second time with limits where they are asked
// for, and not again where limits would not help.
func TestRefusedPodIsCreatedWithLimits(t *testing.T) {
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "pod", fmt.Errorf("must specify limits.memory"))
	for name, c := range map[string]struct {
		objects string // "quota", "" for none
		room    Room
		refuse  func(*corev1.Pod) error
		want    []string
		fails   bool
	}{
		"taken":         {refuse: func(*corev1.Pod) error { return nil }, want: []string{"side limits memory 64Mi"}},
		"limits help":   {objects: "quota", refuse: func(p *corev1.Pod) error { return lacks(p, refused) }, want: []string{"side limits memory 64Mi", "side limits memory 64Mi, main limits memory 600Mi"}},
		"limits do not": {objects: "quota", refuse: func(*corev1.Pod) error { return refused }, want: []string{"side limits memory 64Mi", "side limits memory 64Mi, main limits memory 600Mi"}, fails: true},
		"nothing asks":  {refuse: func(*corev1.Pod) error { return refused }, want: []string{"side limits memory 64Mi"}, fails: true},
		"another error": {objects: "quota", refuse: func(*corev1.Pod) error {
			return apierrors.NewConflict(schema.GroupResource{}, "q", fmt.Errorf("in use"))
		}, want: []string{"side limits memory 64Mi"}, fails: true},
		"a selected namespace": {room: Room{CPUs: 2, Limited: &metav1.LabelSelector{MatchLabels: map[string]string{"limits": "yes"}}}, refuse: func(*corev1.Pod) error { return nil },
			want: []string{"side limits cpu 1, side limits memory 64Mi, main limits cpu 2"}},
		"another namespace": {room: Room{CPUs: 2, Limited: &metav1.LabelSelector{MatchLabels: map[string]string{"limits": "no"}}}, refuse: func(*corev1.Pod) error { return nil },
			want: []string{"side limits memory 64Mi"}},
		"no selector": {room: Room{CPUs: 2, Limited: &metav1.LabelSelector{MatchLabels: map[string]string{"-": "-"}}}, refuse: func(*corev1.Pod) error { return nil },
			want: []string{"side limits memory 64Mi"}},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{"limits": "yes"}}}}
			if c.objects == "quota" {
				quota := parse[corev1.ResourceQuota](t, "{metadata: {namespace: ns, name: q}, spec: {hard: {limits.memory: 4Gi}}}")
				objects = append(objects, &quota)
			}
			var tried []string
			cluster := fake.NewClientBuilder().WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{
				Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
					tried = append(tried, limitsOf(o.(*corev1.Pod)))
					return c.refuse(o.(*corev1.Pod))
				}}).Build()
			pod := parse[corev1.Pod](t, twoContainers)
			if err := CreatePod(t.Context(), cluster, cluster, &pod, c.room); (err != nil) != c.fails {
				t.Errorf("%v", err)
			}
			if !slices.Equal(tried, c.want) {
				t.Errorf("tried\n%s\nwant\n%s", strings.Join(tried, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// lacks returns err for a pod whose last container has no memory limit.
func lacks(pod *corev1.Pod, err error) error {
	if pod.Spec.Containers[0].Resources.Limits.Memory().IsZero() {
		return err
	}
	return nil
}
