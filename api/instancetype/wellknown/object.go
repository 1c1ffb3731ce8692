// Package wellknown has the cluster-wide instancetypes and preferences of KubeVirt's project
// common-instancetypes, with the same names and the same values. A table has a row for each. The
// objects are made from the rows on demand, so a program that needs none holds none in memory.
// Everything in the package is pure.
package wellknown

import (
	"encoding/json"
	"fmt"

	"sigs.k8s.io/yaml"

	"github.com/kubeqemu/kubeqemu/api/instancetype/v1beta1"
)

// Version is the version of common-instancetypes that the table follows.
const Version = "v1.7.0"

// Kinds of the objects.
const (
	Instancetype = "VirtualMachineClusterInstancetype"
	Preference   = "VirtualMachineClusterPreference"
)

// prefix begins the labels, and annotations of instancetypes.
const prefix = "instancetype.kubevirt.io/"

// Object is an instancetype or a preference.
type Object struct {
	Kind, Name string
	// Manifest is the object with all of its fields, as JSON.
	Manifest []byte
	// WaitsFor are the fields that Kubeqemu does not support yet. Only an object that waits for
	// none can be installed: without such a field it would be another machine than the name says.
	WaitsFor []string
}

// Objects returns all instancetypes and preferences, the instancetypes first.
func Objects() ([]Object, error) {
	var all []Object
	for _, s := range allSeries() {
		sizes, err := s.instancetypes()
		if err != nil {
			return nil, err
		}
		all = append(all, sizes...)
	}
	for _, g := range guests {
		o, err := g.preference()
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	return all, nil
}

// fields is a JSON object.
type fields = map[string]any

func newObject(kind, name string, annotations, labels, spec fields) (Object, error) {
	named := fields{prefix + "vendor": "kubevirt.io", prefix + "common-instancetypes-version": Version}
	for label, value := range labels {
		named[prefix+label] = value
	}
	text, err := json.Marshal(fields{"apiVersion": v1beta1.GroupVersion.String(), "kind": kind,
		"metadata": fields{"name": name, "annotations": annotations, "labels": named}, "spec": spec})
	if err != nil {
		return Object{}, fmt.Errorf("encode %s %q: %w", kind, name, err)
	}
	o := Object{Kind: kind, Name: name, Manifest: text}
	o.WaitsFor, err = waitsFor(o)
	return o, err
}

// assemble makes one object of several, each as YAML.
func assemble(parts ...string) (fields, error) {
	whole := fields{}
	for _, text := range parts {
		var part fields
		if err := yaml.UnmarshalStrict([]byte(text), &part); err != nil {
			return nil, err
		}
		merge(whole, part)
	}
	return whole, nil
}

// merge adds the fields of more. An object that both have gets the fields of both.
func merge(into, more fields) {
	for name, value := range more {
		have, both := into[name].(fields)
		below, object := value.(fields)
		if both && object {
			merge(have, below)
			continue
		}
		into[name] = value
	}
}
