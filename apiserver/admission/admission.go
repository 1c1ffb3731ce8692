// Package admission serves the admission webhooks for our kinds. It fills in defaults, and
// refuses an invalid object as it is applied, with all of its errors at once.
//
// The defaults and rules are pure functions of api/v1 and api/validation, which the controllers call too. So if a
// webhook was not asked, a controller refuses the same object later, in its status.
package admission

import (
	"context"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kubeqemu/kubeqemu/api/pool/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/internal/intake"
)

// Facts are what answers may depend on beside the object.
type Facts struct {
	// Cluster is the configuration in force.
	Cluster *v1.KubeVirtConfiguration
	// KubeVirts are all in the components' namespace.
	KubeVirts []v1.KubeVirt
	// Presets says whether there may be presets in the namespace of a new object that takes presets.
	Presets bool
	// New is the UID of the admission request, if it creates the object; otherwise it is empty.
	// The API server makes a random UUID for each request.
	New types.UID
}

// kinds are what admission knows: defaults and rules of each kind, by resource.
func kinds() []kind {
	return []kind{
		of("virtualmachineinstances", "VirtualMachineInstance", defaultVMI, validateVMI, warnVMI),
		of("virtualmachineinstancepresets", "VirtualMachineInstancePreset", nil, validatePreset, warnPreset),
		of("virtualmachines", "VirtualMachine", nil, validateVM, warnVM),
		of("virtualmachineinstancereplicasets", "VirtualMachineInstanceReplicaSet", nil, validateReplicaSet, warnReplicaSet),
		of("virtualmachinepools", "VirtualMachinePool", nil, validatePool, warnPool).in(v1beta1.GroupVersion.Group),
		of("kubevirts", "KubeVirt", nil, validateKubeVirt, warnKubeVirt),
	}
}

// kind has the functions for one kind, without its Go type.
type kind struct {
	resource string
	kind     schema.GroupKind
	// fill applies defaults to an object's JSON. It returns the JSON of the object as read
	// (before) and with defaults (after). It is nil if the kind has no defaults.
	fill func(raw []byte, facts Facts) (before, after []byte, err error)
	// check returns what is wrong with an object, and what it asks for and does not get; old is empty when the object is new.
	check func(raw, old []byte, facts Facts) (errs field.ErrorList, warnings []string, err error)
}

// in says that a kind is of another group than kubevirt.io.
func (k kind) in(group string) kind {
	k.kind.Group = group
	return k
}

// of makes a kind from its pure functions. validate and warn get a nil old if the object is new; warn gets the object
// before validate fills in defaults. No function is called for an object that is being deleted: webhooks.yaml leaves it out
// for fill, the check below for the others.
func of[T any, P interface {
	*T
	metav1.Object
}](resource, name string, fill func(P, Facts), validate func(object, old P, facts Facts) field.ErrorList,
	warn func(object, old P, facts Facts) []string) kind {
	k := kind{resource: resource, kind: schema.GroupKind{Group: v1.GroupVersion.Group, Kind: name}}
	if fill != nil {
		k.fill = func(raw []byte, facts Facts) (before, after []byte, err error) {
			return filled(raw, func(object *T) { fill(object, facts) })
		}
	}
	k.check = func(raw, old []byte, facts Facts) (field.ErrorList, []string, error) {
		object, err := decode[T](raw)
		if err != nil {
			return nil, nil, err
		}
		if P(object).GetDeletionTimestamp() != nil {
			return nil, nil, nil
		}
		var before P
		if len(old) > 0 {
			if before, err = decode[T](old); err != nil {
				before = nil // unreadable: the object counts as new
			}
		}
		warnings := warn(object, before, facts)
		return validate(object, before, facts), warnings, nil
	}
	return k
}

// Presets says whether there are presets in a namespace.
type Presets func(ctx context.Context, namespace string) (bool, error)

// Register serves the webhooks of all kinds, below the paths that
// config/api/webhooks.yaml names. bodies bounds the reviews that are read.
func Register(mux *http.ServeMux, facts func(context.Context) (Facts, error), presets Presets, bodies *intake.Bodies) {
	s := &server{facts: facts, presets: presets, bodies: bodies, deciding: intake.Budget{Size: maxDeciding}, asking: intake.Budget{Size: maxAsking}}
	for _, k := range kinds() {
		if k.fill != nil {
			mux.Handle("POST /"+k.resource+"-mutate", s.serve(k.mutate, takesPresets))
		}
		mux.Handle("POST /"+k.resource+"-validate", s.serve(k.validate, nil))
	}
	mux.Handle("POST /lists-mutate", s.serve(boundLists, nil))
}
