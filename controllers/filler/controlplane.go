package filler

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// maxControlPlane is how many addresses of API servers an importer is told.
const maxControlPlane = 64

// config is what an importer pod that is made now needs: sources may not be at the API servers' own addresses either.
func (r *Reconciler) config(ctx context.Context) (Config, error) {
	config := r.Config
	blocks, err := r.controlPlane(ctx)
	config.Forbidden = slices.Concat(config.Forbidden, blocks)
	return config, err
}

// controlPlane are the addresses behind the Service kubernetes, as blocks. An importer on any node reaches the API
// servers there, past the Service's own address, which the importer knows by itself.
func (r *Reconciler) controlPlane(ctx context.Context) ([]string, error) {
	var slicesOf discoveryv1.EndpointSliceList
	err := r.Live.List(ctx, &slicesOf, client.InNamespace(metav1.NamespaceDefault),
		client.MatchingLabels{discoveryv1.LabelServiceName: "kubernetes"}, client.Limit(maxControlPlane))
	if err != nil {
		return nil, fmt.Errorf("list the API servers' addresses: %w", err)
	}
	var blocks []string
	for _, slice := range slicesOf.Items {
		for _, endpoint := range slice.Endpoints {
			for _, text := range endpoint.Addresses {
				if address, err := netip.ParseAddr(text); err == nil { // a name is no address
					blocks = append(blocks, netip.PrefixFrom(address, address.BitLen()).String())
				}
			}
		}
	}
	slices.Sort(blocks)
	blocks = slices.Compact(blocks)
	return blocks[:min(len(blocks), maxControlPlane)], nil
}
