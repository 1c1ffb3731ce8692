package images

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocks "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func node(kubelet, runtime string) corev1.NodeSystemInfo {
	return corev1.NodeSystemInfo{KubeletVersion: kubelet, ContainerRuntimeVersion: runtime}
}

// TestWhichWay: images are volumes where the API server and each node that takes guests can have them, or where the
// KubeVirt object says so.
func TestWhichWay(t *testing.T) {
	today := node("v1.36.3", "containerd://2.4.2")
	gate := []string{v1.ImageVolumeGate}
	nodes := func(nodes ...corev1.NodeSystemInfo) []corev1.NodeSystemInfo { return nodes }
	for name, c := range map[string]struct {
		gates, disabled []string
		refused         bool
		nodes           []corev1.NodeSystemInfo
		want            Way
	}{
		"all of today":           {nil, nil, false, nodes(today, today), Volumes},
		"no nodes":               {nil, nil, false, nil, Volumes},
		"the API server":         {nil, nil, true, nodes(today), Containers},
		"a kubelet":              {nil, nil, false, nodes(today, node("v1.34.9", "containerd://2.4.2")), Containers},
		"a k3s of today":         {nil, nil, false, nodes(node("v1.35.0+k3s1", "containerd://2.1.4-k3s2")), Volumes},
		"an older k3s":           {nil, nil, false, nodes(node("v1.33.5+k3s1", "containerd://2.1.4-k3s1")), Containers},
		"containerd":             {nil, nil, false, nodes(node("v1.35.2", "containerd://1.7.28")), Containers},
		"containerd 2.0":         {nil, nil, false, nodes(node("v1.35.2", "containerd://2.0.5")), Containers},
		"CRI-O":                  {nil, nil, false, nodes(node("v1.35.2", "cri-o://1.35.0")), Volumes},
		"another runtime":        {nil, nil, false, nodes(node("v1.35.2", "docker://29.0.0")), Containers},
		"nothing known":          {nil, nil, false, nodes(node("", "")), Containers},
		"the gate, switched on":  {gate, nil, true, nodes(node("v1.33.0", "containerd://2.1.0")), Volumes},
		"the gate, switched off": {nil, gate, false, nodes(today), Containers},
		"both":                   {gate, gate, false, nodes(today), Containers},
		"another gate":           {[]string{"Snapshot"}, nil, true, nil, Containers},
	} {
		config := &v1.KubeVirtConfiguration{DeveloperConfiguration: &v1.DeveloperConfiguration{FeatureGates: c.gates,
			DisabledFeatureGates: c.disabled}}
		if got := decide(world{config: config, served: !c.refused, nodes: c.nodes}); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if got := decide(world{served: true}); got != Volumes {
		t.Errorf("without a configuration: %s", got)
	}
}

// TestFinderLooksOnceAMinute: the way is found when it is asked for, holds for a minute, and stays what it was while
// the API server does not answer.
func TestFinderLooksOnceAMinute(t *testing.T) {
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "p", nil)
	refusal, asked, drops := error(nil), 0, false
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{v1.SchedulableLabel: "true"}}}
	n.Status.NodeInfo = node("v1.36.3", "containerd://2.4.2")
	other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}} // which takes no guests
	c := fake.NewClientBuilder().WithObjects(n, other).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, object client.Object, options ...client.CreateOption) error {
			asked++
			o := client.CreateOptions{}
			for _, option := range options {
				option.ApplyToCreate(&o)
			}
			if pod, ok := object.(*corev1.Pod); !ok || len(o.DryRun) != 1 || pod.Spec.Volumes[0].Image == nil {
				return fmt.Errorf("created %v (%v)", object, o)
			}
			if drops {
				object.(*corev1.Pod).Spec.Volumes = nil
			}
			return refusal
		}}).Build()
	var config v1.KubeVirtConfiguration
	clock := clocks.NewFakePassiveClock(time.Unix(0, 0))
	f := &Finder{Client: c, Live: c, Clock: clock,
		Cluster: func(context.Context) (*v1.KubeVirtConfiguration, error) { return &config, nil }}
	want := func(way Way, looks int) {
		t.Helper()
		if got, err := f.Way(t.Context()); err != nil || got != way || asked != looks {
			t.Errorf("%s (%v) after %d looks, want %s after %d", got, err, asked, way, looks)
		}
	}
	refusal = errors.New("no answer")
	if got, err := f.Way(t.Context()); err == nil || !errors.Is(err, refusal) {
		t.Errorf("without an answer: %q (%v)", got, err)
	}
	refusal = nil
	want(Volumes, 2)
	want(Volumes, 2)
	refusal = invalid
	want(Volumes, 2)
	clock.SetTime(time.Unix(60, 0))
	want(Containers, 3)
	refusal = errors.New("no answer")
	clock.SetTime(time.Unix(120, 0))
	want(Containers, 4)
	want(Containers, 4)
	config.DeveloperConfiguration = &v1.DeveloperConfiguration{FeatureGates: []string{v1.ImageVolumeGate}}
	want(Volumes, 4)
	config.DeveloperConfiguration = nil
	refusal, drops = nil, true
	clock.SetTime(time.Unix(180, 0))
	want(Containers, 5)
	drops = false
	clock.SetTime(time.Unix(240, 0))
	want(Volumes, 6)
	n.Status.NodeInfo = node("v1.34.0", "containerd://2.4.2")
	if err := c.Status().Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	clock.SetTime(time.Unix(300, 0))
	want(Containers, 7)
}

// TestFinderIsRefused: where a quota or a webhook refuses each pod with an image volume, pods come by containers.
func TestFinderIsRefused(t *testing.T) {
	c := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "p", errors.New("exceeded quota"))
		}}).Build()
	f := &Finder{Client: c, Live: c, Clock: clocks.NewFakePassiveClock(time.Unix(0, 0)),
		Cluster: func(context.Context) (*v1.KubeVirtConfiguration, error) { return nil, nil }}
	if got, err := f.Way(t.Context()); got != Containers || err != nil {
		t.Errorf("%q (%v)", got, err)
	}
}
