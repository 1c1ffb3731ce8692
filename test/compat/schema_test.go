package compat

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "kubevirt.io/api/core/v1"
	instancetype "kubevirt.io/api/instancetype/v1beta1"
	migrations "kubevirt.io/api/migrations/v1alpha1"
	pool "kubevirt.io/api/pool/v1beta1"
	cdi "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/yaml"
)

// kinds are KubeVirt's types, and CDI's, of the kinds that are served.
var kinds = map[string]reflect.Type{
	"KubeVirt":                          reflect.TypeFor[v1.KubeVirt](),
	"VirtualMachine":                    reflect.TypeFor[v1.VirtualMachine](),
	"VirtualMachineInstance":            reflect.TypeFor[v1.VirtualMachineInstance](),
	"VirtualMachineInstancePreset":      reflect.TypeFor[v1.VirtualMachineInstancePreset](),
	"VirtualMachineInstanceMigration":   reflect.TypeFor[v1.VirtualMachineInstanceMigration](),
	"VirtualMachineInstanceReplicaSet":  reflect.TypeFor[v1.VirtualMachineInstanceReplicaSet](),
	"VirtualMachineInstancetype":        reflect.TypeFor[instancetype.VirtualMachineInstancetype](),
	"VirtualMachineClusterInstancetype": reflect.TypeFor[instancetype.VirtualMachineClusterInstancetype](),
	"VirtualMachinePreference":          reflect.TypeFor[instancetype.VirtualMachinePreference](),
	"VirtualMachineClusterPreference":   reflect.TypeFor[instancetype.VirtualMachineClusterPreference](),
	"MigrationPolicy":                   reflect.TypeFor[migrations.MigrationPolicy](),
	"VirtualMachinePool":                reflect.TypeFor[pool.VirtualMachinePool](),
	"DataVolume":                        reflect.TypeFor[cdi.DataVolume](),
	"DataSource":                        reflect.TypeFor[cdi.DataSource](),
}

// others are fields that the version of KubeVirt's API in go.mod does not have,
// by the ends of their paths.
var others = []string{
	"KubeVirt.spec.configuration.hostDisk",                       // ours
	"configuration.architectureConfiguration.arm64.useEmulation", // ours
	".status.conditions[].observedGeneration",                    // ours
	"VirtualMachineInstance.status.launcherPods",                 // ours
	"VirtualMachineInstance.status.bindings",                     // ours
	"VirtualMachineInstance.status.launcherPod",                  // ours
	"VirtualMachineInstance.status.interfaces[].ipam",            // ours
	"VirtualMachineInstance.status.volumeStatus[].moves",         // ours
	"VirtualMachineInstance.status.volumeStatus[].movesTo",       // ours
	"VirtualMachine.status.movedClaims",                          // ours
	"MigrationPolicy.spec.allowClaimCopy",                        // ours
	".status.migrationState.migrationName",                       // ours
	".status.migrationState.decision",                            // ours
	".migrationState.sourceState.startTimestamp",                 // ours
	".migrationState.sourceState.progress",                       // ours
	".migrationState.sourceState.postCopyTimestamp",              // ours
	".migrationState.sourceState.postCopyRefused",                // ours
	".migrationState.sourceState.failure",                        // ours
	".migrationState.targetState.failure",                        // ours
	".maxDowntimeMs",                                             // of v1.9
	".configuration.migrations.experimental",                     // of v1.9
	"MigrationPolicy.spec.experimental",                          // of v1.9
	".networks[].resourceClaim",                                  // of v1.9; refused
	".devices.preferredVideoType",                                // of v1.9
	".spec.serviceAccountName",                                   // of v1.9; of CDI after v1.66, refused
	".spec.preferredLaunchSecurity",                              // of v1.9; refused
	".interfaces[].portRanges",                                   // of v1.9; refused
	".configuration.confidentialCompute",                         // of v1.9
	".configuration.persistentReservationConfiguration",          // of v1.9
}

func known(path string) bool {
	return slices.ContainsFunc(others, func(o string) bool { return strings.HasSuffix(path, o) })
}

// schema is as much of an OpenAPI schema as is looked at.
type schema struct {
	Type                 string            `json:"type"`
	Properties           map[string]schema `json:"properties"`
	Items                *schema           `json:"items"`
	AdditionalProperties *schema           `json:"additionalProperties"`
	IntOrString          bool              `json:"x-kubernetes-int-or-string"`
	PreserveUnknown      bool              `json:"x-kubernetes-preserve-unknown-fields"`
}

type definition struct {
	Spec struct {
		Names struct {
			Kind string `json:"kind"`
		} `json:"names"`
		Versions []struct {
			Schema struct {
				OpenAPI schema `json:"openAPIV3Schema"`
			} `json:"schema"`
		} `json:"versions"`
	} `json:"spec"`
}

// TestFieldsHaveKubeVirtsPathsAndTypes: every field that is served has, in KubeVirt's API, the same path
// and type: what is applied means there what it means here.
func TestFieldsHaveKubeVirtsPathsAndTypes(t *testing.T) {
	files, err := filepath.Glob("../../config/crd/*.io_*.yaml")
	dataVolumes, wrong := filepath.Glob("../../config/datavolumes/crd/*.io_*.yaml")
	files = append(files, dataVolumes...)
	if err = errors.Join(err, wrong); err != nil || len(files) < len(kinds) {
		t.Fatalf("%d definitions: the test checks too little (%v)", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d definition
		if err := yaml.Unmarshal(text, &d); err != nil {
			t.Fatal(err)
		}
		theirs, ok := kinds[d.Spec.Names.Kind]
		if !ok {
			t.Errorf("%s is not looked at", d.Spec.Names.Kind)
			continue
		}
		w := walk{t: t}
		w.compare(d.Spec.Names.Kind, d.Spec.Versions[0].Schema.OpenAPI, theirs)
		least := 20
		if d.Spec.Names.Kind == "MigrationPolicy" {
			least = 15
		}
		if w.fields < least {
			t.Errorf("%s: %d fields were compared", d.Spec.Names.Kind, w.fields)
		}
		t.Logf("%s: %d fields", d.Spec.Names.Kind, w.fields)
	}
}

type walk struct {
	t      *testing.T
	fields int
}

func (w *walk) compare(path string, s schema, theirs reflect.Type) {
	for theirs.Kind() == reflect.Pointer {
		theirs = theirs.Elem()
	}
	w.fields++
	// Those say themselves how they are written: quantities, times.
	if reflect.PointerTo(theirs).Implements(reflect.TypeFor[json.Marshaler]()) || theirs.Kind() == reflect.Interface {
		return
	}
	if s.Type != "" && !s.IntOrString && !slices.Contains(types[s.Type], theirs.Kind()) {
		w.t.Errorf("%s is %s here and %s in KubeVirt's API", path, s.Type, theirs)
		return
	}
	switch {
	case len(s.Properties) > 0 && theirs.Kind() == reflect.Struct:
		fields := map[string]reflect.Type{}
		jsonFields(theirs, fields)
		for name, property := range s.Properties {
			below := path + "." + name
			field, ok := fields[name]
			switch {
			case known(below):
			case !ok:
				w.t.Errorf("%s is not in KubeVirt's API", below)
			default:
				w.compare(below, property, field)
			}
		}
	case s.Items != nil && s.Type == "array":
		w.compare(path+"[]", *s.Items, theirs.Elem())
	case s.AdditionalProperties != nil && theirs.Kind() == reflect.Map:
		w.compare(path+"{}", *s.AdditionalProperties, theirs.Elem())
	}
}

var integers = []reflect.Kind{reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64}

var types = map[string][]reflect.Kind{
	"string": {reflect.String, reflect.Slice}, "boolean": {reflect.Bool}, "integer": integers, "number": {reflect.Float64, reflect.Float32},
	"array": {reflect.Slice, reflect.Array}, "object": {reflect.Struct, reflect.Map},
}

// jsonFields are a struct's fields by their names in JSON.
func jsonFields(of reflect.Type, into map[string]reflect.Type) {
	for i := range of.NumField() {
		f := of.Field(i)
		name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
		kind := f.Type
		for kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		switch {
		case (f.Anonymous && name == "" || strings.Contains(rest, "inline")) && kind.Kind() == reflect.Struct:
			jsonFields(kind, into)
		case name != "" && name != "-":
			into[name] = f.Type
		}
	}
}

// TestNothingOfCDIIsDropped: the API server drops no field that CDI's DataVolumes have. What has no
// effect yet is declared, to be refused by its path. What is below a refused field is kept.
func TestNothingOfCDIIsDropped(t *testing.T) {
	for file, theirs := range map[string]reflect.Type{"datavolumes": kinds["DataVolume"], "datasources": kinds["DataSource"]} {
		text, err := os.ReadFile("../../config/datavolumes/crd/cdi.kubevirt.io_" + file + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		var d definition
		if err := yaml.Unmarshal(text, &d); err != nil {
			t.Fatal(err)
		}
		if fields := declared(t, file, d.Spec.Versions[0].Schema.OpenAPI, theirs); fields < 10 {
			t.Errorf("%s: %d fields were looked at", file, fields)
		}
	}
}

// declared counts the fields of a type that a schema has, and names those that it lacks.
func declared(t *testing.T, path string, s schema, theirs reflect.Type) (fields int) {
	t.Helper()
	for theirs.Kind() == reflect.Pointer || theirs.Kind() == reflect.Slice {
		if theirs = theirs.Elem(); s.Items != nil {
			s = *s.Items
		}
	}
	own := reflect.PointerTo(theirs).Implements(reflect.TypeFor[json.Marshaler]())
	if theirs.Kind() != reflect.Struct || own || s.PreserveUnknown || strings.HasSuffix(path, ".metadata") {
		return 1
	}
	all := map[string]reflect.Type{}
	jsonFields(theirs, all)
	for name, field := range all {
		property, ok := s.Properties[name]
		if !ok {
			t.Errorf("%s.%s is dropped", path, name)
			continue
		}
		fields += declared(t, path+"."+name, property, field)
	}
	return fields + 1
}
