package instancetypes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
	"github.com/kubeqemu/kubeqemu/api/instancetype/wellknown"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

// managedBy is the label of the objects that virt-controller created. The policy
// kubevirt-controller-instancetypes keeps virt-controller from all others. A KubeVirt in a namespace
// cannot own an object of the whole cluster, so the objects have no owner.
const managedBy = "app.kubernetes.io/managed-by"

// nameLabel is a label of the same objects, with the object's own name as its value. A copy that
// somebody makes under another name has a label that is not its name, and so is nobody's but theirs.
const nameLabel = "kubeqemu.io/common-instancetype"

// outcome is what was found and done.
type outcome struct {
	// deployed is how many objects are there as they are wanted.
	deployed int
	// taken are the objects that somebody else created, by kind and name.
	taken []string
	// waiting is how many objects cannot be installed, for fields that are not supported yet.
	waiting int
}

// bring creates, corrects and deletes objects, so that virt-controller's are those that are wanted:
// all that can be installed, or none. It goes on after an error.
func (r *Reconciler) bring(ctx context.Context, enabled bool) (outcome, error) {
	var done outcome
	var wanted []client.Object
	if enabled {
		var err error
		if wanted, done.waiting, err = installable(); err != nil {
			return done, err
		}
	}
	had, err := r.ours(ctx)
	if err != nil {
		return done, err
	}
	var failures []error
	for _, want := range wanted {
		name := nameOf(want)
		have := had[name]
		delete(had, name)
		if have == nil {
			err = r.Client.Create(ctx, want)
		} else {
			err = r.correct(ctx, have, want)
		}
		switch {
		case apierrors.IsAlreadyExists(err):
			done.taken = append(done.taken, name)
		case err != nil:
			failures = append(failures, fmt.Errorf("write %s: %w", name, err))
		default:
			done.deployed++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(had)) {
		object := had[name]
		// The object may have got another label, and be somebody else's now.
		precondition := client.Preconditions{UID: ptr.To(object.GetUID()), ResourceVersion: ptr.To(object.GetResourceVersion())}
		if err := r.Client.Delete(ctx, object, precondition); err != nil && !apierrors.IsNotFound(err) {
			failures = append(failures, fmt.Errorf("delete %s: %w", name, err))
		}
	}
	return done, errors.Join(failures...)
}

// installable are the objects that wait for no field, and how many others there are.
func installable() (objects []client.Object, waiting int, err error) {
	all, err := wellknown.Objects()
	if err != nil {
		return nil, 0, fmt.Errorf("make instancetypes and preferences: %w", err)
	}
	for _, o := range all {
		if len(o.WaitsFor) > 0 {
			waiting++
			continue
		}
		var object client.Object = &v1beta1.VirtualMachineClusterPreference{}
		if o.Kind == wellknown.Instancetype {
			object = &v1beta1.VirtualMachineClusterInstancetype{}
		}
		if err := json.Unmarshal(o.Manifest, object); err != nil {
			return nil, 0, fmt.Errorf("decode %s %q: %w", o.Kind, o.Name, err)
		}
		object.GetLabels()[managedBy], object.GetLabels()[nameLabel] = v1.VirtController, object.GetName()
		objects = append(objects, object)
	}
	return objects, waiting, nil
}

// ours are the objects that virt-controller created, by kind and name.
func (r *Reconciler) ours(ctx context.Context) (map[string]client.Object, error) {
	found := map[string]client.Object{}
	for _, list := range []client.ObjectList{&v1beta1.VirtualMachineClusterInstancetypeList{}, &v1beta1.VirtualMachineClusterPreferenceList{}} {
		if err := r.Live.List(ctx, list, client.MatchingLabels{managedBy: v1.VirtController}); err != nil {
			return nil, fmt.Errorf("list instancetypes and preferences: %w", err)
		}
		items, err := meta.ExtractList(list)
		if err != nil {
			return nil, fmt.Errorf("list instancetypes and preferences: %w", err)
		}
		for _, item := range items {
			if object := item.(client.Object); object.GetLabels()[nameLabel] == object.GetName() {
				found[nameOf(object)] = object
			}
		}
	}
	return found, nil
}

// nameOf is an object's kind and name. An object of a list has no kind.
func nameOf(o client.Object) string {
	if _, ok := o.(*v1beta1.VirtualMachineClusterInstancetype); ok {
		return wellknown.Instancetype + " " + o.GetName()
	}
	return wellknown.Preference + " " + o.GetName()
}

// correct writes the fields in which an object differs from the one that is wanted. Labels and
// annotations that somebody added stay.
func (r *Reconciler) correct(ctx context.Context, have, want client.Object) error {
	corrected := have.DeepCopyObject().(client.Object)
	corrected.SetLabels(with(have.GetLabels(), want.GetLabels()))
	corrected.SetAnnotations(with(have.GetAnnotations(), want.GetAnnotations()))
	switch c := corrected.(type) {
	case *v1beta1.VirtualMachineClusterInstancetype:
		c.Spec = want.(*v1beta1.VirtualMachineClusterInstancetype).Spec
	case *v1beta1.VirtualMachineClusterPreference:
		c.Spec = want.(*v1beta1.VirtualMachineClusterPreference).Spec
	}
	if equality.Semantic.DeepEqual(have, corrected) {
		return nil
	}
	return r.Client.Patch(ctx, corrected, client.MergeFromWithOptions(have, client.MergeFromWithOptimisticLock{}))
}

// with are the entries of a map and of another, which counts where both have one.
func with(have, want map[string]string) map[string]string {
	all := map[string]string{}
	for _, entries := range []map[string]string{have, want} {
		for name, value := range entries {
			all[name] = value
		}
	}
	return all
}

// mostNames is how many names the condition has at most.
const mostNames = 10

// condition says in the KubeVirt's status what was done.
func (o outcome) condition(enabled bool, failure error) v1.KubeVirtCondition {
	c := v1.KubeVirtCondition{Type: v1.KubeVirtConditionCommonInstancetypesDeployed, Status: corev1.ConditionFalse}
	there := fmt.Sprintf("%d instancetypes and preferences are there; %d more set fields that are not supported yet, see docs/instancetypes.md", o.deployed, o.waiting)
	switch {
	case failure != nil:
		c.Reason, c.Message = v1.ReasonFailedUpdate, short(failure.Error())
	case !enabled:
		c.Reason, c.Message = v1.ReasonInstancetypesRemoved, "The instancetypes and preferences that virt-controller created are deleted."
	case len(o.taken) > 0:
		names := strings.Join(o.taken[:min(len(o.taken), mostNames)], ", ")
		if more := len(o.taken) - mostNames; more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
		c.Reason = v1.ReasonNamesTaken
		c.Message = fmt.Sprintf("Somebody else created %s: virt-controller leaves them as they are. Delete them to have virt-controller's. %s.", names, there)
	default:
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, v1.ReasonInstancetypesDeployed, there+"."
	}
	return c
}

// short cuts a message to what a status should hold.
func short(message string) string {
	const most = 1024
	if len(message) <= most {
		return message
	}
	return strings.ToValidUTF8(message[:most], "") + "…"
}
