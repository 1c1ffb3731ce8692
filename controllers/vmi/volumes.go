package vmi

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/storageclass"
)

// claimIndex indexes VMIs by the names of the PersistentVolumeClaims they use.
const claimIndex = "claim"

func indexByClaim(o client.Object) []string {
	var names []string
	if vmi, ok := o.(*v1.VirtualMachineInstance); ok {
		for i := range vmi.Spec.Volumes {
			if c := vmi.Claim(&vmi.Spec.Volumes[i]); c != nil {
				names = append(names, c.Name)
			}
		}
		if info := vmi.StateClaimInfo(); info != nil {
			names = append(names, info.ClaimName)
		}
	}
	return names
}

// usersOfClaim returns the VMIs that use a claim.
func (r *Reconciler) usersOfClaim(ctx context.Context, claim client.Object) []ctrl.Request {
	var vmis v1.VirtualMachineInstanceList
	if err := r.Client.List(ctx, &vmis, client.InNamespace(claim.GetNamespace()),
		client.MatchingFields{claimIndex: claim.GetName()}); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "find the VMIs that use a claim", "claim", client.ObjectKeyFromObject(claim))
		return nil
	}
	var requests []ctrl.Request
	for i := range vmis.Items {
		requests = append(requests, ctrl.Request{NamespacedName: client.ObjectKeyFromObject(&vmis.Items[i])})
	}
	return requests
}

// TrimClaim drops the fields of a PersistentVolumeClaim that this package does not read, so that claims that no
// VMI uses take little memory in the cache.
func TrimClaim(object any) (any, error) {
	claim, ok := object.(*corev1.PersistentVolumeClaim)
	if !ok {
		return object, nil
	}
	var owners []metav1.OwnerReference
	if owner := filler(claim); owner != nil {
		owners = []metav1.OwnerReference{*owner}
	}
	trimmed := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			ResourceVersion: claim.ResourceVersion, OwnerReferences: owners},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: claim.Spec.AccessModes, VolumeMode: claim.Spec.VolumeMode,
			Resources: corev1.VolumeResourceRequirements{Requests: v1.OnlyStorage(claim.Spec.Resources.Requests)}},
		Status: corev1.PersistentVolumeClaimStatus{Phase: claim.Status.Phase,
			Capacity: v1.OnlyStorage(claim.Status.Capacity)},
	}
	if claim.Status.Phase != corev1.ClaimBound {
		trimmed.Spec.StorageClassName, trimmed.Spec.VolumeName = storageclass.OfClaim(claim), claim.Spec.VolumeName
	}
	trimState(claim, trimmed)
	return trimmed, nil
}

// lackingClasses returns why claims of the VMI get no volumes, in words, or "" if their classes are there. It
// asks for classes if a claim is not bound.
func (r *Reconciler) lackingClasses(ctx context.Context, vmi *v1.VirtualMachineInstance) (string, error) {
	var classes *storagev1.StorageClassList
	var lacks []string
	for _, name := range indexByClaim(vmi) {
		claim := &corev1.PersistentVolumeClaim{}
		if err := r.Client.Get(ctx,
			types.NamespacedName{Namespace: vmi.Namespace, Name: name}, claim); apierrors.IsNotFound(err) {
			continue
		} else if err != nil {
			return "", fmt.Errorf("get PersistentVolumeClaim %s: %w", name, err)
		}
		if claim.Status.Phase == corev1.ClaimBound {
			continue
		}
		if classes == nil {
			classes = &storagev1.StorageClassList{}
			if err := r.Live.List(ctx, classes); err != nil {
				return "", fmt.Errorf("list StorageClasses: %w", err)
			}
		}
		if why := storageclass.Lacks(claim, classes.Items); why != "" && len(lacks) < maxUnmet {
			lacks = append(lacks, why)
		}
	}
	return strings.Join(lacks, "; "), nil
}

// noteVolumes brings the status of the volumes up to date, with the claim of the guest's state. It finds the first
// claim that does not exist. Known facts about a claim stay when the claim is missing: a volume that a pod uses cannot
// go.
func (r *Reconciler) noteVolumes(ctx context.Context, t *turn) (time.Duration, error) {
	vmi := t.vmi
	claims := map[string]*corev1.PersistentVolumeClaim{}
	for i := range vmi.Spec.Volumes {
		source := vmi.Claim(&vmi.Spec.Volumes[i])
		if source == nil {
			continue
		}
		claim := &corev1.PersistentVolumeClaim{}
		err := r.Client.Get(ctx, types.NamespacedName{Namespace: vmi.Namespace, Name: source.Name}, claim)
		switch {
		case err == nil:
			claims[source.Name] = claim
		case !apierrors.IsNotFound(err):
			return 0, fmt.Errorf("get PersistentVolumeClaim %s: %w", source.Name, err)
		case t.missing == "":
			t.missing = source.Name
		}
	}
	vmi.Status.VolumeStatus = append(volumeStatus(vmi, claims), stateEntry(vmi)...)
	return 0, r.observeState(ctx, vmi, t.pod)
}

// volumeStatus returns the status of the VMI's volumes. It is pure.
func volumeStatus(vmi *v1.VirtualMachineInstance, claims map[string]*corev1.PersistentVolumeClaim) []v1.VolumeStatus {
	targets := diskTargets(vmi.Spec.Domain.Devices.Disks)
	var out []v1.VolumeStatus
	for i := range vmi.Spec.Volumes {
		v := &vmi.Spec.Volumes[i]
		s := v1.VolumeStatus{Name: v.Name, Target: targets[v.Name]}
		if old := vmi.Status.Volume(v.Name); old != nil {
			s.Moves, s.MovesTo = old.Moves, old.MovesTo
		}
		if source := vmi.Claim(v); source != nil {
			s.PersistentVolumeClaimInfo = vmi.Status.ClaimInfo(v.Name)
			if claim := claims[source.Name]; claim != nil {
				s.PersistentVolumeClaimInfo = v1.InfoOfClaim(claim)
			}
		}
		out = append(out, s)
	}
	return out
}

// diskTargets returns KubeVirt's names of disks, which count by bus, in order.
func diskTargets(disks []v1.Disk) map[string]string {
	targets, used := map[string]string{}, map[string]int{}
	for _, d := range disks {
		prefix := "sd"
		if bus, _ := d.Target(); bus == v1.DiskBusVirtio {
			prefix = "vd"
		}
		targets[d.Name] = prefix + letters(used[prefix])
		used[prefix]++
	}
	return targets
}

// letters returns the name with a number: a, b, …, z, aa, ab, …
func letters(n int) string {
	s := ""
	for ; n >= 0; n = n/26 - 1 {
		s = string(rune('a'+n%26)) + s
	}
	return s
}
