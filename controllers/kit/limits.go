package kit

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// memoryRatioLabel is a namespace's label: how many times its request the memory limit of a launcher pod is where a quota asks
	// for one. It is KubeVirt's.
	memoryRatioLabel = "alpha.kubevirt.io/auto-memory-limits-ratio"
	// defaultMemoryRatio and maxMemoryRatio bound that ratio.
	defaultMemoryRatio, maxMemoryRatio = 2.0, 100.0
	// ephemeralRequest is what a container without a request of ephemeral storage asks for where a quota wants one, in bytes. It is
	// KubeVirt's.
	ephemeralRequest = 50_000_000
	// maxPolicies is how many quotas, and how many LimitRanges, of a namespace are read.
	maxPolicies = 100
)

// namespacePolicies are what a namespace asks of its pods' resources.
type namespacePolicies struct {
	quotas []corev1.ResourceQuota
	ranges []corev1.LimitRange
	// memoryRatio is how many times its request a container's memory limit is.
	memoryRatio float64
}

// Room is what a pod's first container may use at most.
type Room struct {
	// CPUs is how many CPUs the container may use. Another container may use one.
	CPUs int64
	// Memory is what the container uses in the end, in bytes, where that is more than it requests. A limit below it would have the
	// kernel end the guest.
	Memory int64
	// Limited selects the namespaces, by their labels, in which each container has a limit of CPUs. Nil, and what is no selector,
	// select none.
	Limited *metav1.LabelSelector
}

// CreatePod creates a pod. A ResourceQuota or a LimitRange of the namespace may refuse the pod because it has no
// limits, because the LimitRange's own are below what the pod requests, or because a container requests less than the
// LimitRange wants. Then CreatePod adds limits, raises requests that are too small, and creates the pod again. If the
// API server refuses that pod too, the error names the LimitRange and the container. live reads past the cache.
//
// Only a refusal has the namespace's policies read: the usual pod costs one request.
func CreatePod(ctx context.Context, c client.Client, live client.Reader, pod *corev1.Pod, room Room) error {
	if err := room.limitCPUs(ctx, live, pod); err != nil {
		return err
	}
	asked := pod.DeepCopy()
	err := c.Create(ctx, pod)
	if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		return err
	}
	policies, readErr := readPolicies(ctx, live, pod.Namespace)
	if readErr != nil {
		return fmt.Errorf("%w (%v)", SortedRefusal(err), readErr)
	}
	limited := policies.limit(asked, room)
	if !equality.Semantic.DeepEqual(limited.Spec, asked.Spec) {
		limited.DeepCopyInto(pod)
		err = c.Create(ctx, pod)
	}
	if why := policies.broken(limited); why != "" && apierrors.IsForbidden(err) {
		return fmt.Errorf("%w; %s", SortedRefusal(err), why)
	}
	return SortedRefusal(err)
}

// limitCPUs gives the pod's containers a limit of CPUs, if the pod's namespace is selected.
func (r Room) limitCPUs(ctx context.Context, live client.Reader, pod *corev1.Pod) error {
	if r.Limited == nil {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(r.Limited)
	if err != nil {
		return nil // the KubeVirt's status says what is wrong with it
	}
	var of corev1.Namespace
	if err := live.Get(ctx, client.ObjectKey{Name: pod.Namespace}, &of); err != nil {
		return fmt.Errorf("read namespace %s: %w", pod.Namespace, err)
	}
	if !selector.Matches(labels.Set(of.Labels)) {
		return nil
	}
	asks := namespacePolicies{quotas: []corev1.ResourceQuota{{Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourceLimitsCPU: {}}}}}}
	asks.limit(pod, r).DeepCopyInto(pod)
	return nil
}

func readPolicies(ctx context.Context, live client.Reader, namespace string) (namespacePolicies, error) {
	var quotas corev1.ResourceQuotaList
	var ranges corev1.LimitRangeList
	var of corev1.Namespace
	for _, list := range []client.ObjectList{&quotas, &ranges} {
		if err := live.List(ctx, list, client.InNamespace(namespace), client.Limit(maxPolicies)); err != nil {
			return namespacePolicies{}, fmt.Errorf("read the quotas and limits of namespace %s: %w", namespace, err)
		}
	}
	if err := live.Get(ctx, client.ObjectKey{Name: namespace}, &of); err != nil {
		return namespacePolicies{}, fmt.Errorf("read namespace %s: %w", namespace, err)
	}
	return namespacePolicies{quotas.Items, ranges.Items, memoryRatio(of.Labels)}, nil
}

// memoryRatio returns the ratio of a namespace's label.
func memoryRatio(labels map[string]string) float64 {
	ratio, err := strconv.ParseFloat(labels[memoryRatioLabel], 64)
	if err != nil || !(ratio >= 1) { // which NaN is not
		return defaultMemoryRatio
	}
	return min(ratio, maxMemoryRatio)
}

// limit returns the pod with the limits that the policies ask for. room is that of its first container.
func (p namespacePolicies) limit(asked *corev1.Pod, room Room) *corev1.Pod {
	pod := asked.DeepCopy()
	first := pod.Spec.Containers[0].Name
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			c.Resources.Requests, c.Resources.Limits = maps.Clone(c.Resources.Requests), maps.Clone(c.Resources.Limits)
			if _, has := c.Resources.Requests[corev1.ResourceEphemeralStorage]; !has && p.hasQuota("requests.ephemeral-storage", "ephemeral-storage") {
				set(&c.Resources.Requests, corev1.ResourceEphemeralStorage, resource.NewQuantity(ephemeralRequest, resource.DecimalSI))
			}
			p.raise(c, c.Name == first)
			cpus, memory := int64(1), *c.Resources.Requests.Memory()
			limit := times(corev1.ResourceMemory, memory, p.memoryRatio)
			if c.Name == first {
				cpus, memory = max(room.CPUs, 1), most(memory, *resource.NewQuantity(room.Memory, resource.BinarySI))
			}
			p.limitContainer(pod, c, corev1.ResourceCPU, *resource.NewQuantity(cpus, resource.DecimalSI), *c.Resources.Requests.Cpu())
			p.limitContainer(pod, c, corev1.ResourceMemory, most(limit, memory), memory)
		}
	}
	return pod
}

// raise raises what a container requests, and its limits, to the least that the LimitRanges want of a container. The
// requests of a container beside the first one must also keep the ratio to its limits, which the container needs. The
// first one's limits are the VMI's own.
func (p namespacePolicies) raise(c *corev1.Container, first bool) {
	for _, item := range p.items() {
		if item.Type != corev1.LimitTypeContainer {
			continue
		}
		for name, least := range item.Min {
			for _, list := range []corev1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
				if has, ok := list[name]; ok {
					list[name] = most(has, least)
				}
			}
		}
	}
	for _, item := range p.items() {
		for name, ratio := range item.MaxLimitRequestRatio {
			request, asked := c.Resources.Requests[name]
			if limit, ok := c.Resources.Limits[name]; ok && asked && !first {
				// Whole bytes and thousandths are rounded down, and one more is enough.
				enough := plusOne(name, times(name, limit, 1/ratio.AsApproximateFloat64()))
				c.Resources.Requests[name] = least(limit, most(request, enough))
			}
		}
	}
}

// plusOne returns a quantity and one byte or thousandth of a CPU.
func plusOne(name corev1.ResourceName, q resource.Quantity) resource.Quantity {
	if name == corev1.ResourceCPU {
		return *resource.NewMilliQuantity(q.MilliValue()+1, resource.DecimalSI)
	}
	return *resource.NewQuantity(q.Value()+1, resource.BinarySI)
}

// broken returns which LimitRange refuses which container of a pod, and why; "" if none does. The API server names
// neither.
func (p namespacePolicies) broken(pod *corev1.Pod) string {
	for _, r := range p.ranges {
		for _, item := range r.Spec.Limits {
			if item.Type != corev1.LimitTypeContainer {
				continue
			}
			for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
				if why := breaks(&c, item); why != "" {
					return fmt.Sprintf("the LimitRange %s does not permit the container %s: %s", r.Name, c.Name, why)
				}
			}
		}
	}
	return ""
}

// breaks returns why a LimitRange's item does not permit a container; "" if it does.
func breaks(c *corev1.Container, item corev1.LimitRangeItem) string {
	for _, name := range slices.Sorted(maps.Keys(c.Resources.Requests)) {
		request := c.Resources.Requests[name]
		limit, limited := c.Resources.Limits[name]
		if largest, ok := item.Max[name]; ok && (request.Cmp(largest) > 0 || limited && limit.Cmp(largest) > 0) {
			limit = most(request, limit)
			return fmt.Sprintf("it needs %s of %s, and its max is %s", limit.String(), name, largest.String())
		}
		ratio, ok := item.MaxLimitRequestRatio[name]
		if ok && limited && limit.AsApproximateFloat64() > request.AsApproximateFloat64()*ratio.AsApproximateFloat64() {
			return fmt.Sprintf("it requests %s of %s with the limit %s, and the maxLimitRequestRatio is %s",
				request.String(), name, limit.String(), ratio.String())
		}
	}
	return ""
}

// limitContainer gives a pod's container the limit of one resource, if it has none and the policies ask for one. limit is the one that
// they may make smaller, and never smaller than needed: the API server then says which policy refuses that.
func (p namespacePolicies) limitContainer(pod *corev1.Pod, c *corev1.Container, name corev1.ResourceName, limit, needed resource.Quantity) {
	if _, has := c.Resources.Limits[name]; has {
		return
	}
	request := c.Resources.Requests[name]
	lacking, ratio := p.hasQuota("limits."+name), 0.0
	for _, item := range p.items() {
		if largest, ok := item.Max[name]; ok {
			if item.Type == corev1.LimitTypePod { // of a container, the LimitRange's default limit is its maximum
				lacking = true
				largest.Sub(others(pod, c, name))
			}
			limit = least(limit, largest)
		}
		if largest, ok := item.MaxLimitRequestRatio[name]; ok {
			lacking, ratio = true, largest.AsApproximateFloat64()
			limit = least(limit, times(name, request, ratio))
		}
	}
	switch own := p.defaultLimit(name); {
	case own == nil:
	case own.Cmp(request) < 0: // the pod is refused with it
		lacking, limit = true, least(limit, needed)
	case ratio > 0 && own.AsApproximateFloat64() > ratio*request.AsApproximateFloat64():
		// So it is with this one. limit keeps the ratio.
	default:
		return // the LimitRange gives its own limit
	}
	if lacking {
		limit = most(limit, needed)
		set(&c.Resources.Limits, name, &limit)
	}
}

// others returns what a pod's containers besides c may use of a resource: their limits, or their requests.
func others(pod *corev1.Pod, c *corev1.Container, name corev1.ResourceName) (sum resource.Quantity) {
	for _, other := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		used, ok := other.Resources.Limits[name]
		if !ok {
			used = other.Resources.Requests[name]
		}
		if other.Name != c.Name {
			sum.Add(used)
		}
	}
	return sum
}

// times returns a multiple of a quantity, in whole bytes or thousandths of a CPU.
func times(name corev1.ResourceName, q resource.Quantity, ratio float64) resource.Quantity {
	const largest = 1e15 // so that thousandths do not overflow
	if name == corev1.ResourceCPU {
		return *resource.NewMilliQuantity(int64(min(q.AsApproximateFloat64()*ratio, largest)*1000), resource.DecimalSI)
	}
	return *resource.NewQuantity(int64(min(q.AsApproximateFloat64()*ratio, largest)), resource.BinarySI)
}

func set(list *corev1.ResourceList, name corev1.ResourceName, quantity *resource.Quantity) {
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	(*list)[name] = *quantity
}

func least(a, b resource.Quantity) resource.Quantity {
	if b.Cmp(a) < 0 {
		return b
	}
	return a
}

func most(a, b resource.Quantity) resource.Quantity {
	if b.Cmp(a) > 0 {
		return b
	}
	return a
}

// hasQuota reports whether a quota counts one of the resources.
func (p namespacePolicies) hasQuota(names ...corev1.ResourceName) bool {
	for _, q := range p.quotas {
		for _, name := range names {
			if _, ok := q.Spec.Hard[name]; ok {
				return true
			}
		}
	}
	return false
}

// items returns what the LimitRanges say of containers and of pods.
func (p namespacePolicies) items() (out []corev1.LimitRangeItem) {
	for _, r := range p.ranges {
		for _, item := range r.Spec.Limits {
			if item.Type == corev1.LimitTypeContainer || item.Type == corev1.LimitTypePod {
				out = append(out, item)
			}
		}
	}
	return out
}

// defaultLimit returns the least limit of a resource that a LimitRange gives to a container without one; nil if none does.
func (p namespacePolicies) defaultLimit(name corev1.ResourceName) *resource.Quantity {
	var own *resource.Quantity
	for _, item := range p.items() {
		if q, ok := item.Default[name]; ok && item.Type == corev1.LimitTypeContainer && (own == nil || q.Cmp(*own) < 0) {
			own = &q
		}
	}
	return own
}
