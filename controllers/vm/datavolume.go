package vm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/controllers/datavolume"
	"github.com/kubeqemu/kubeqemu/controllers/kit"
)

// errDisks means that a DataVolume cannot be made before somebody changes something.
var errDisks = errors.New("cannot make the DataVolumes")

// disks are the DataVolumes of a VM's templates.
type disks struct {
	// missing are the templates whose DataVolumes are to be made.
	missing []*v1.DataVolumeTemplate
	// taken says which DataVolumes are in the way, and failed which ones CDI could not fill.
	taken, failed string
	// waits says what the VM's start waits for, failed included.
	waits string
}

// wantsDisks says whether a VM's DataVolumes are looked at: before its VMI is made. As in KubeVirt,
// a halted VM's disks are filled too, unless an annotation puts that off. The disks of a VMI are
// the VMI's matter.
func wantsDisks(vm *v1.VirtualMachine, vmi *v1.VirtualMachineInstance, p *plan) bool {
	putOff := vm.Annotations[v1.ImmediateDataVolumeCreationAnnotation] == "false" && p.action != start
	return vmi == nil && len(vm.Spec.DataVolumeTemplates) > 0 && !putOff
}

// survey says how the VM's DataVolumes are, given those that exist by name. The template of a name
// in collected needs no DataVolume any more. survey is pure.
func survey(vm *v1.VirtualMachine, there map[string]*unstructured.Unstructured, collected map[string]bool) disks {
	var d disks
	var taken, failed, waits []string
	for i := range vm.Spec.DataVolumeTemplates {
		template := &vm.Spec.DataVolumeTemplates[i]
		name := template.ObjectMeta.Name
		volume := there[name]
		switch {
		case collected[name]:
			continue
		case volume == nil:
			d.missing = append(d.missing, template)
			waits = append(waits, datavolume.Of(name, &unstructured.Unstructured{}).Message)
			continue
		}
		other := datavolume.Foreign(vm, volume)
		progress := datavolume.Of(name, volume)
		switch {
		case datavolume.Earlier(vm, volume):
			waits = append(waits, fmt.Sprintf("DataVolume %s belongs to an earlier VirtualMachine of this name, and is deleted with that", name))
		case other != "":
			taken = append(taken, fmt.Sprintf("DataVolume %s belongs to %s: name another one in the template, or remove the template to share this one", name, other))
		case volume.GetDeletionTimestamp() != nil:
			waits = append(waits, fmt.Sprintf("DataVolume %s is being deleted, and is made again", name))
		case progress.Failed:
			failed = append(failed, progress.Message)
			waits = append(waits, progress.Message)
		case !progress.Done && !progress.Unbound: // the VMI says how a claim becomes bound
			waits = append(waits, progress.Message)
		}
	}
	d.taken, d.failed, d.waits = strings.Join(taken, "; "), strings.Join(failed, "; "), strings.Join(waits, "; ")
	return d
}

// find reads the DataVolumes of the VM's templates: those that were made for the VM in one request,
// and each of the others in one of its own. Where a DataVolume is missing, CDI may have deleted it
// after it filled the claim (collected).
func (r *Reconciler) find(ctx context.Context, vm *v1.VirtualMachine) (there map[string]*unstructured.Unstructured, collected map[string]bool, err error) {
	if there, err = datavolume.MadeFor(ctx, r.Live, vm); err != nil {
		return nil, nil, err
	}
	collected = map[string]bool{}
	for i := range vm.Spec.DataVolumeTemplates {
		key := client.ObjectKey{Namespace: vm.Namespace, Name: vm.Spec.DataVolumeTemplates[i].ObjectMeta.Name}
		if there[key.Name] != nil {
			continue
		}
		if there[key.Name], err = datavolume.Get(ctx, r.Live, key); err != nil {
			return nil, nil, err
		}
		if there[key.Name] != nil {
			continue
		}
		if collected[key.Name], err = datavolume.Collected(ctx, r.Live, key); err != nil {
			return nil, nil, err
		}
	}
	return there, collected, nil
}

// fill makes the DataVolumes that are missing, and puts off the start until all are filled.
// They are filled side by side, whether or not the VM is stopped meanwhile.
func (r *Reconciler) fill(ctx context.Context, vm *v1.VirtualMachine, p *plan) (*failure, error) {
	there, collected, err := r.find(ctx, vm)
	if err != nil {
		return unfilled(v1.ReasonFailedDataVolumeCreate, err)
	}
	p.disks = survey(vm, there, collected)
	for _, template := range p.disks.missing {
		// The first error ends the round, so that no VM costs many requests in vain.
		if err := r.makeDataVolume(ctx, vm, template); errors.Is(err, datavolume.ErrUnauthorized) {
			return unfilled(v1.ReasonUnauthorizedDataVolumeCreate, err)
		} else if err != nil {
			return unfilled(v1.ReasonFailedDataVolumeCreate, err)
		}
	}
	if taken := p.disks.taken; taken != "" {
		return unfilled(v1.ReasonFailedDataVolumeCreate, fmt.Errorf("%w: %s", errDisks, taken))
	}
	if p.disks.waits == "" {
		return nil, nil
	}
	p.postpone(vm, r.Clock.Now())
	if p.disks.failed != "" {
		return &failure{v1.ReasonDataVolumeFailed, p.disks.failed}, nil
	}
	return nil, nil
}

// unfilled is the failure of an error. Of an error that passes by itself there is none.
func unfilled(reason string, err error) (*failure, error) {
	switch {
	case errors.Is(err, errBehind), apierrors.IsConflict(err):
		return nil, err
	case errors.Is(err, datavolume.ErrNoCDI):
		err = fmt.Errorf("%w: %w; install it, or remove spec.dataVolumeTemplates", errDisks, err)
	}
	return &failure{reason, datavolume.Short(err.Error())}, err
}

// postpone puts a start off, and says when to look at the DataVolumes again: nobody tells when they
// change. The longer the VM has been waiting, the longer the pause.
func (p *plan) postpone(vm *v1.VirtualMachine, now time.Time) {
	const soonest, latest = 5 * time.Second, time.Minute
	pause := soonest
	if c := vm.Status.Condition(v1.ConditionProvisioning); c != nil {
		pause = max(pause, min(now.Sub(c.LastTransitionTime.Time)/60, latest))
	}
	if p.action == start {
		p.action = wait
	}
	if p.after == 0 || p.after > pause {
		p.after = pause
	}
}

// makeDataVolume makes the DataVolume of a template.
func (r *Reconciler) makeDataVolume(ctx context.Context, vm *v1.VirtualMachine, template *v1.DataVolumeTemplate) error {
	name := template.ObjectMeta.Name
	source, err := r.cloner().Source(ctx, vm, template)
	if errors.Is(err, datavolume.ErrUnauthorized) || errors.Is(err, datavolume.ErrUnresolved) {
		return fmt.Errorf("%w: DataVolume %s: %w", errDisks, name, err)
	}
	if err != nil {
		return err
	}
	volume, err := datavolume.Make(vm, template, source)
	if err != nil {
		return err
	}
	err = kit.SortedRefusal(r.Client.Create(ctx, volume))
	switch {
	case apierrors.IsAlreadyExists(err):
		return errBehind
	case apierrors.IsNotFound(err): // the kind went after it was looked up
		return datavolume.ErrNoCDI
	case err != nil:
		return fmt.Errorf("create DataVolume %s: %w", name, err)
	}
	r.Events.Eventf(vm, volume, corev1.EventTypeNormal, v1.ReasonSuccessfulDataVolumeCreate, "Provision", "Created DataVolume %s", name)
	return nil
}
