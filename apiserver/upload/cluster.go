package upload

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	"github.com/kubeqemu/kubeqemu/internal/owner"
)

// cluster reads from the API server, never from a cache: uploads are rare, and must see the present
// state.
type cluster struct{ core, volumes rest.Interface }

func newCluster(config *rest.Config) (*cluster, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), cdi.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("make scheme: %w", err)
	}
	client := func(group schema.GroupVersion, path string) (rest.Interface, error) {
		config := rest.CopyConfig(config)
		config.GroupVersion, config.APIPath = &group, path
		config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
		config.QPS = -1 // no limit here: the API server limits its clients itself
		return rest.RESTClientFor(config)
	}
	core, err := client(corev1.SchemeGroupVersion, "/api")
	volumes, err2 := client(cdi.GroupVersion, "/apis")
	if err := errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return &cluster{core, volumes}, nil
}

// target is a claim with the DataVolume that fills it, or nil.
type target struct {
	claim  *corev1.PersistentVolumeClaim
	volume *cdi.DataVolume
}

// find reads a claim and its DataVolume.
func (c *cluster) find(ctx context.Context, namespace, name string) (target, error) {
	claim := &corev1.PersistentVolumeClaim{}
	if err := c.core.Get().Namespace(namespace).Resource("persistentvolumeclaims").Name(name).Do(ctx).Into(claim); err != nil {
		return target{}, err
	}
	volume := &cdi.DataVolume{}
	err := c.volumes.Get().Namespace(namespace).Resource("datavolumes").Name(claim.Name).Do(ctx).Into(volume)
	if apierrors.IsNotFound(err) || err == nil && !owner.Controls(cdi.DataVolumeGroupVersionKind.GroupKind(), volume, claim) && !cdi.Fills(volume, claim) {
		return target{claim: claim}, nil
	}
	if err != nil {
		return target{}, err
	}
	return target{claim, volume}, nil
}

// open says why no image may be uploaded into a claim, or nothing.
func (t target) open() error {
	name := t.claim.Name
	switch {
	case t.volume == nil:
		return fmt.Errorf("PersistentVolumeClaim %s has no DataVolume that waits for an upload: the claim was not made for one, or was filled already", name)
	case t.volume.Spec.Source == nil || t.volume.Spec.Source.Upload == nil:
		return fmt.Errorf("DataVolume %s has another source than upload", name)
	case t.volume.DeletionTimestamp != nil || t.claim.DeletionTimestamp != nil:
		return fmt.Errorf("DataVolume %s is being deleted", name)
	case t.filled():
		return fmt.Errorf("DataVolume %s is filled already", name)
	}
	return nil
}

func (t target) filled() bool {
	_, filled := t.claim.Annotations[cdi.PopulatedForAnnotation]
	return filled || t.volume.Status.Phase == cdi.Succeeded
}

// ready says whether the importer takes an image. virt-controller has found out that the pod of that name is
// the DataVolume's, and that an importer answers in it. So virt-api needs no right to read pods. Whoever
// puts another pod in its place may make pods in the namespace, and so read the claim anyway.
func (t target) ready() bool { return t.volume.Status.Phase == cdi.UploadReady }
