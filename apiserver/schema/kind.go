package schema

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"sigs.k8s.io/yaml"
)

// kind has what the API server makes of the stored version of a CRD.
type kind struct {
	crd        *apiextensionsv1.CustomResourceDefinition
	version    *apiextensionsv1.CustomResourceDefinitionVersion
	structural *structuralschema.Structural
	schema     validation.SchemaValidator
	rules      *cel.Validator
}

func newKind(text []byte) (*kind, error) {
	k := &kind{crd: &apiextensionsv1.CustomResourceDefinition{}}
	if err := yaml.UnmarshalStrict(text, k.crd); err != nil {
		return nil, err
	}
	versions := k.crd.Spec.Versions
	stored := slices.IndexFunc(versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Storage })
	if stored < 0 || versions[stored].Schema == nil {
		return nil, errors.New("no version with a schema is stored")
	}
	k.version = &versions[stored]
	internal := &apiextensions.CustomResourceValidation{}
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(k.version.Schema, internal, nil); err != nil {
		return nil, err
	}
	structural, err := structuralschema.NewStructural(internal.OpenAPIV3Schema)
	if err != nil {
		return nil, err
	}
	k.structural = structural.DeepCopy() // defaults are shared, and pruned here
	if err := defaulting.PruneDefaults(k.structural); err != nil {
		return nil, err
	}
	if k.schema, _, err = validation.NewSchemaValidator(internal.OpenAPIV3Schema); err != nil {
		return nil, err
	}
	k.rules = cel.NewValidator(k.structural, true, celconfig.PerCallLimit)
	return k, nil
}

// convert makes of an object what the API server reads if somebody sends the object in the stored
// version. It returns the paths of the fields that the schema does not have.
func (k *kind) convert(object map[string]any) (unknown []string) {
	object["apiVersion"] = k.crd.Spec.Group + "/" + k.version.Name
	unknown = pruning.PruneWithOptions(object, k.structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	defaulting.PruneNonNullableNullsWithoutDefaults(object, k.structural)
	defaulting.Default(object, k.structural)
	return unknown
}

// errors are what the schema and its rules have against an object, in the order in which the API
// server names them. old is nil if the object is new.
func (k *kind) errors(ctx context.Context, object, old map[string]any) field.ErrorList {
	var errs field.ErrorList
	var before any // an old object that is nil is no object
	var options []cel.Option
	if old == nil {
		errs = validation.ValidateCustomResource(nil, object, k.schema)
	} else {
		// What was wrong before, and is as it was, is no error.
		pair := common.NewCorrelatedObject(object, old, &model.Structural{Structural: k.structural})
		errs = validation.ValidateCustomResourceUpdate(nil, object, old, k.schema, validation.WithRatcheting(pair))
		before, options = old, []cel.Option{cel.WithRatcheting(pair)}
	}
	errs = append(errs, k.scaleErrors(object)...)
	if old == nil || len(listtype.ValidateListSetsAndMaps(nil, k.structural, old)) == 0 {
		errs = append(errs, listtype.ValidateListSetsAndMaps(nil, k.structural, object)...)
	}
	if slices.ContainsFunc(errs, keepsRules) {
		return append(errs, field.Invalid(nil, nil, "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation"))
	}
	broken, _ := k.rules.Validate(ctx, nil, k.structural, object, before, celconfig.RuntimeCELCostBudget, options...)
	return append(errs, broken...)
}

// keepsRules says whether the API server checks no rules after an error.
func keepsRules(err *field.Error) bool {
	return slices.Contains([]field.ErrorType{field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong,
		field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid}, err.Type)
}

// scaleErrors are what the subresource scale would not bear.
func (k *kind) scaleErrors(object map[string]any) (errs field.ErrorList) {
	if k.version.Subresources == nil || k.version.Subresources.Scale == nil {
		return nil
	}
	scale := k.version.Subresources.Scale
	for _, path := range []string{scale.SpecReplicasPath, scale.StatusReplicasPath} {
		replicas, _, err := unstructured.NestedInt64(object, steps(path)...)
		switch {
		case err != nil:
			errs = append(errs, field.Invalid(field.NewPath(path), replicas, err.Error()))
		case replicas < 0:
			errs = append(errs, field.Invalid(field.NewPath(path), replicas, "should be a non-negative integer"))
		case replicas > math.MaxInt32:
			errs = append(errs, field.Invalid(field.NewPath(path), replicas, fmt.Sprintf("should be less than or equal to %v", math.MaxInt32)))
		}
	}
	if path := scale.LabelSelectorPath; path != nil {
		if selector, _, err := unstructured.NestedString(object, steps(*path)...); err != nil {
			errs = append(errs, field.Invalid(field.NewPath(*path), selector, err.Error()))
		}
	}
	return errs
}

// steps are the fields of a path such as .spec.replicas.
func steps(path string) []string { return strings.Split(strings.TrimPrefix(path, "."), ".") }
