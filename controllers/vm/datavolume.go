package vm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeqemu/kubeqemu/api/instancetype/choice"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/datavolume"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// errDisks means that a DataVolume cannot be made before somebody changes something.
var errDisks = errors.New("cannot make the DataVolumes")

// errUnread means that a DataVolume or a claim could not be read. The VM's status stays as it is.
var errUnread = errors.New("cannot look at the DataVolumes")

// disks are the DataVolumes of a VM's templates.
type disks struct {
	// taken says which objects are in the way, and failed which DataVolumes CDI could not fill.
	taken, failed texts
	// waits says what the VM's start waits for, failed included.
	waits texts
	// lost are the claims to which migrations have copied disks, and that are gone.
	lost []string
}

// missing is a DataVolume to be made.
type missing struct {
	template *v1.DataVolumeTemplate
	// claimed: a claim of the DataVolume's name exists, and becomes the DataVolume's as it is.
	claimed bool
}

// wantsDisks reports whether a VM's DataVolumes are looked at. They are looked at before the VM's VMI is made,
// and while the VMI waits for a disk or the migration of a disk waits for its claim. As in KubeVirt, a halted
// VM's disks are filled too, unless an annotation puts that off.
func wantsDisks(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance, p *plan) bool {
	if len(vm.Spec.DataVolumeTemplates) == 0 {
		return false
	}
	if vmi != nil {
		return vmi.DeletionTimestamp == nil && (waitsForDisk(vmi) || p.volumes.unready != "")
	}
	return vm.Annotations[v1.ImmediateDataVolumeCreationAnnotation] != "false" || p.action == start
}

// waitsForDisk reports whether a VMI has no launcher pod because of a disk. A VMI whose launcher pod a node
// rejected is Scheduling.
func waitsForDisk(vmi *v1.VirtualMachineInstance) bool {
	return (vmi.Status.Phase == v1.Pending || vmi.Status.Phase == v1.Scheduling) &&
		(vmi.Status.Condition(v1.ConditionProvisioning) != nil || vmi.Status.ComplaintOf(v1.OwnerDisks))
}

// note adds to d how the disk of a template is. It returns the DataVolume that is to be made for the template,
// or nil. It is pure but for d.
func (d *disks) note(vm *v1.VirtualMachine, template *v1.DataVolumeTemplate, state datavolume.State) *missing {
	name := template.ObjectMeta.Name
	kind, object := "DataVolume", state.Volume
	if object == nil {
		kind, object = "claim", state.Claim
	}
	switch {
	case object == nil:
		d.waits.add("DataVolume %s is to be made", name)
		return &missing{template: template}
	case datavolume.Earlier(vm, object):
		d.waits.add("%s %s belongs to an earlier VirtualMachine of this name, and is deleted with that", kind, name)
	case object.DeletionTimestamp != nil:
		d.waits.add("%s %s is being deleted, and is made again", kind, name)
	case state.Volume == nil && datavolume.Left(object):
		d.waits.add("claim %s is deleted with its DataVolume, which is gone, and is made again", name)
	case datavolume.Foreign(vm, object) != "":
		d.taken.add("%s %s belongs to %s: name another one in the template, or remove the template to share this one",
			kind, name, datavolume.Foreign(vm, object))
	case state.Volume == nil && state.Collected():
	case state.Volume == nil:
		d.waits.add("DataVolume %s is to be made", name)
		return &missing{template, true}
	case state.Progress.Failed:
		d.failed.add("%s", state.Progress.Message)
		d.waits.add("%s", state.Progress.Message)
	case !state.Progress.Done && !state.Progress.Unbound: // the VMI says how a claim becomes bound
		d.waits.add("%s", state.Progress.Message)
	}
	return nil
}

// texts are what is said of up to MaxDataVolumeTemplates disks.
type texts []string

func (t *texts) add(format string, args ...any) { *t = append(*t, fmt.Sprintf(format, args...)) }

// String returns the texts in one, cut to a bound.
func (t texts) String() string {
	const most = 4 << 10
	text := strings.Join(t, "; ")
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// provide looks at the VM's disks, one after the other, and makes the DataVolumes that are missing. It stops at
// the first disk for which somebody has to change something, so that no VM costs many requests in vain. A disk
// that a migration has copied to another claim needs no DataVolume.
func (r *Reconciler) provide(ctx context.Context, vm *v1.VirtualMachine, moved elsewhere) (disks, error) {
	d := disks{lost: moved.lost, waits: moved.waits()}
	classOf := sync.OnceValues(func() (string, error) { return r.storageClass(ctx, vm) })
	for i := range vm.Spec.DataVolumeTemplates {
		template := &vm.Spec.DataVolumeTemplates[i]
		if moved.kept[template.ObjectMeta.Name] {
			continue
		}
		state, err := datavolume.Look(ctx, r.Live, client.ObjectKey{Namespace: vm.Namespace, Name: template.ObjectMeta.Name})
		switch {
		case apierrors.IsForbidden(err):
			return d, err
		case err != nil:
			return d, fmt.Errorf("%w: %w", errUnread, err)
		case state.NoCDI && !state.Collected():
			return d, datavolume.ErrNoCDI
		}
		m := d.note(vm, template, state)
		if len(d.taken) > 0 {
			return d, fmt.Errorf("%w: %s", errDisks, d.taken)
		}
		if m == nil {
			continue
		}
		if err := r.makeDataVolume(ctx, vm, *m, classOf); err != nil {
			return d, err
		}
	}
	return d, nil
}

// fill makes the DataVolumes that are missing, and puts the start off until all are filled. They are filled
// side by side, whether or not the VM is stopped meanwhile.
func (r *Reconciler) fill(ctx context.Context, vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance,
	p *plan) (*failure, error) {
	moved, err := r.findElsewhere(ctx, vm, p.action == start || vmi != nil)
	if err != nil {
		return nil, err
	}
	if vmi != nil && len(moved.lost) > 0 {
		p.postpone(waitsSince(vm, vmi), r.Clock.Now())
		return &failure{v1.ReasonPvcNotFound, fmt.Sprintf("claim %s, to which a migration copied a disk, is gone: restart the VM, and the disk is made anew from its template", texts(moved.lost))}, nil
	}
	d, err := r.provide(ctx, vm, moved)
	if errors.Is(err, errUnread) {
		return nil, err
	}
	if vmi == nil { // a VMI says what it waits for
		p.disks = d
	}
	switch {
	case errors.Is(err, datavolume.ErrUnauthorized):
		return unfilled(v1.ReasonUnauthorizedDataVolumeCreate, err)
	case err != nil:
		return unfilled(findReason(err, v1.ReasonFailedDataVolumeCreate), err)
	}
	if len(d.waits) > 0 || vmi != nil {
		p.postpone(waitsSince(vm, vmi), r.Clock.Now())
	}
	if len(d.failed) > 0 {
		return &failure{v1.ReasonDataVolumeFailed, d.failed.String()}, nil
	}
	return nil, nil
}

// waitsSince returns when a VM began to wait for its disks, or nil if it has not waited yet.
func waitsSince(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance) *metav1.Time {
	if vmi != nil {
		return &vmi.CreationTimestamp
	}
	if c := vm.Status.Condition(v1.ConditionProvisioning); c != nil {
		return &c.LastTransitionTime
	}
	return nil
}

// unfilled returns the failure of an error, and the error. An error that passes by itself has no failure. An
// error about missing CDI also gets advice.
func unfilled(reason string, err error) (*failure, error) {
	switch {
	case errors.Is(err, errBehind):
		return nil, err
	case errors.Is(err, datavolume.ErrNoCDI):
		err = fmt.Errorf("%w: %w, or remove spec.dataVolumeTemplates", errDisks, err)
	}
	return &failure{reason, datavolume.Short(err.Error())}, err
}

// postpone puts a start off, and sets when to look at the DataVolumes again, because nobody tells when they
// change. The longer the VM has been waiting, the longer the pause.
func (p *plan) postpone(since *metav1.Time, now time.Time) {
	pause := datavolume.SoonestLook
	if since != nil {
		pause = datavolume.Pause(now.Sub(since.Time))
	}
	if p.action == start {
		p.action = wait
	}
	if p.after == 0 || p.after > pause {
		p.after = pause
	}
}

// storageClass returns the storage class that the VM's preference has for the DataVolumes to be made, or "".
// The preference may be inferred along a template, which nobody has checked. So in other namespaces
// storageClass reads only what the VM's account may clone.
func (r *Reconciler) storageClass(ctx context.Context, vm *v1.VirtualMachine) (string, error) {
	if vm.Spec.Preference == nil {
		return "", nil
	}
	without := *vm
	without.Spec.Instancetype = nil
	chosen, err := choice.Find(ctx, func(ctx context.Context, key types.NamespacedName, into choice.Object) error {
		if key.Namespace != "" && key.Namespace != vm.Namespace {
			err := r.cloner().MayKnow(ctx, vm, into.GetObjectKind().GroupVersionKind().Kind, key)
			if errors.Is(err, datavolume.ErrUnauthorized) {
				return apierrors.NewNotFound(schema.GroupResource{}, key.Name) // as if it did not exist
			}
			if err != nil {
				return err
			}
		}
		return r.Live.Get(ctx, key, into)
	}, &without)
	if err != nil {
		return "", fmt.Errorf("read the storage class of DataVolumes: %w", err)
	}
	return chosen.StorageClass(), nil
}

// makeDataVolume makes the DataVolume of a template. It asks first whether the VM's account may clone the
// source. After that it asks classOf for the storage class.
func (r *Reconciler) makeDataVolume(ctx context.Context, vm *v1.VirtualMachine, m missing,
	classOf func() (string, error)) error {
	name := m.template.ObjectMeta.Name
	source, err := r.cloner().Source(ctx, vm, m.template)
	if errors.Is(err, datavolume.ErrUnauthorized) || errors.Is(err, datavolume.ErrUnresolved) {
		return fmt.Errorf("%w: DataVolume %s: %w", errDisks, name, err)
	}
	if err != nil {
		return err
	}
	class, err := classOf()
	if err != nil {
		return err
	}
	volume, err := datavolume.Make(vm, m.template, source, class)
	if err != nil {
		return err
	}
	err = kit.SortedRefusal(r.Client.Create(ctx, volume))
	switch {
	// A conflict is a quota's, which others use at the same time.
	case apierrors.IsAlreadyExists(err), apierrors.IsConflict(err):
		return errBehind
	case apierrors.IsNotFound(err): // the kind went after it was looked up
		return datavolume.ErrNoCDI
	case err != nil:
		return fmt.Errorf("create DataVolume %s: %w", name, err)
	}
	note := "Created DataVolume %s"
	if m.claimed {
		note = "Created DataVolume %s, which takes over the claim of its name as it is"
	}
	r.Events.Eventf(vm, volume, corev1.EventTypeNormal, v1.ReasonSuccessfulDataVolumeCreate, "Provision", note, name)
	return nil
}
