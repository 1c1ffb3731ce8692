package filler

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	cdi "github.com/kubeqemu/kubeqemu/api/cdi/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// handOver leaves the API of uploads to CDI. It is tried again with the next look.
func (f *Filler) handOver(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if err := handOver(ctx, f.Client, f.Live); err != nil {
		f.log.Error(err, "cannot leave the API of uploads to CDI")
	}
}

// handOver deletes the APIService of uploads if config/datavolumes has made it. CDI's operator makes it
// anew, as its own. If the operator was first, it has changed ours into its own. Then the label of
// virt-api's APIServices is still there, and CDI's owner reference is missing: the APIService would
// outlive CDI, and hold up the deletion of every namespace.
func handOver(ctx context.Context, c client.Client, live client.Reader) error {
	service := &metav1.PartialObjectMetadata{}
	service.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"})
	err := live.Get(ctx, client.ObjectKey{Name: cdi.UploadService}, service)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get APIService %s: %w", cdi.UploadService, err)
	}
	if service.Labels[v1.AppLabel] != "virt-api-aggregator" {
		return nil
	}
	// The version holds what was seen.
	err = c.Delete(ctx, service, client.Preconditions{UID: &service.UID, ResourceVersion: &service.ResourceVersion})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete APIService %s: %w", cdi.UploadService, err)
	}
	return nil
}
