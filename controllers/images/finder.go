package images

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

const (
	// again is how long what was found holds.
	again = time.Minute
	// patience is how long the API server may take for all that is asked.
	patience = 10 * time.Second
	// page is how many nodes are read at once.
	page = 50
)

// Finder finds the way of a cluster. It looks when it is asked, and once a minute at most.
type Finder struct {
	// Client makes a pod without effect (dry run).
	Client client.Client
	// Live reads nodes past the cache, which does not have what is needed of them.
	Live client.Reader
	// Cluster returns the cluster's configuration.
	Cluster func(context.Context) (*v1.KubeVirtConfiguration, error)
	Clock   clock.PassiveClock

	mu    sync.Mutex
	found Way
	at    time.Time
}

// Way returns the way for new pods. After an error, it is the way that was found last.
func (f *Finder) Way(ctx context.Context) (Way, error) {
	config, err := f.Cluster(ctx)
	if err != nil {
		return "", err
	}
	if way, decided := gated(config); decided {
		return way, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.found != "" && f.Clock.Since(f.at) < again {
		return f.found, nil
	}
	// Those who ask wait for each other here, so that the API server's silence must end.
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w := world{config: config}
	if w.served, err = f.serves(ctx); err == nil {
		w.nodes, err = f.nodes(ctx)
	}
	if err != nil && f.found == "" {
		return "", fmt.Errorf("find out whether pods can have image volumes: %w", err)
	}
	f.at = f.Clock.Now()
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "cannot find out whether pods can have image volumes; new pods go on as before",
			"way", f.found)
		return f.found, nil
	}
	if way := decide(w); way != f.found {
		ctrl.LoggerFrom(ctx).Info("images come to new pods in another way", "way", way, "before", f.found)
		f.found = way
	}
	return f.found, nil
}

// serves reports whether the API server takes a pod with an image volume. Where its gate is off, the API server drops
// such a volume from the pod, or refuses the pod. A quota or a webhook may refuse each such pod for a reason of its
// own. Then nothing is known, and containers do in each cluster.
func (f *Finder) serves(ctx context.Context) (bool, error) {
	pod := probe()
	err := f.Client.Create(ctx, pod, client.DryRunAll)
	switch {
	case err == nil:
		return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Image != nil }), nil
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err):
		return false, nil
	}
	return false, fmt.Errorf("make a pod with an image volume without effect: %w", err)
}

// probe returns a pod with an image volume that each Pod Security Standard admits, and the policies that hold
// virt-controller to pods of its own. No such pod is ever made.
func probe() *corev1.Pod {
	const image = "kubeqemu.io/none"
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1.KubeVirtNamespace, Name: "image-volume-probe",
			Labels: map[string]string{v1.AppLabel: "virt-launcher"}},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: ptr.To(false),
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65534),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{Name: "none", Image: image,
				SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}}},
			Volumes: []corev1.Volume{{Name: "image",
				VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: image}}}},
		},
	}
}

// nodes returns what is known of the nodes that take guests.
func (f *Finder) nodes(ctx context.Context) (out []corev1.NodeSystemInfo, err error) {
	list := &corev1.NodeList{}
	for {
		err := f.Live.List(ctx, list, client.MatchingLabels{v1.SchedulableLabel: "true"}, client.Limit(page),
			client.Continue(list.Continue))
		if err != nil {
			return nil, fmt.Errorf("list nodes: %w", err)
		}
		for i := range list.Items {
			info := &list.Items[i].Status.NodeInfo
			out = append(out, corev1.NodeSystemInfo{KubeletVersion: info.KubeletVersion,
				ContainerRuntimeVersion: info.ContainerRuntimeVersion})
		}
		if list.Continue == "" {
			return out, nil
		}
	}
}
