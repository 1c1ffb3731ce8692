package validation

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	v1 "github.com/kubeqemu/kubeqemu/api/v1"
)

func lookup(value any, path []string) any {
	for _, name := range path {
		object, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = object[name]
	}
	return value
}

// fieldAt returns a field of a domain by its path. It makes the structs on the way that are not there.
func fieldAt(d *v1.DomainSpec, path string) reflect.Value {
	value := reflect.ValueOf(d)
	for name := range strings.SplitSeq(path, ".") {
		if value.Kind() == reflect.Pointer {
			if value.IsNil() {
				value.Set(reflect.New(value.Type().Elem()))
			}
			value = value.Elem()
		}
		i := 0
		for jsonName(value.Type().Field(i)) != name {
			i++
		}
		value = value.Field(i)
	}
	return value
}

// jsonName returns a field's name in JSON.
func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// asJSON returns a value as JSON, in which equal quantities are equal.
func asJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // it came as JSON
	}
	return string(text)
}

// parsedPreset returns a preset of a spec.
func parsedPreset(t testing.TB, name, spec string) v1.VirtualMachineInstancePreset {
	t.Helper()
	p := v1.VirtualMachineInstancePreset{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatalf("%v in %s", err, spec)
	}
	return p
}

const (
	forAll   = "selector: {}\n"
	forLinux = "selector: {matchLabels: {os: linux}}\n"
)

// numbered joins texts with a number in each.
func numbered(n int, text string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = strings.Replace(text, "%d", fmt.Sprint(i), 1)
	}
	return strings.Join(all, ", ")
}

func TestValidatePreset(t *testing.T) {
	for name, c := range map[string]struct{ spec, wrong string }{
		"the guide's": {"selector: {matchLabels: {kubevirt.io/size: small}}\ndomain: {resources: " +
			"{requests: {memory: 64M}}}", ""},
		"no domain":     {forAll, ""},
		"empty lists":   {forAll + "domain: {devices: {disks: [], interfaces: []}}", ""},
		"a limit alone": {forAll + "domain: {resources: {limits: {memory: 64M, cpu: 1}}}", ""},
		"no such operator": {"selector: {matchExpressions: [{key: os, operator: Like, values: [x]}]}",
			"spec.selector.matchExpressions[0].operator"},
		"all that a selector may have": {fmt.Sprintf("selector: {matchLabels: {%s}, matchExpressions: [%s]}",
			numbered(64, "l%d: x"), numbered(16, "{key: k%d, operator: In, values: ["+numbered(64, "v%d")+"]}")), ""},
		"many labels": {fmt.Sprintf("selector: {matchLabels: {%s}}", numbered(65, "l%d: x")),
			"spec.selector.matchLabels"},
		"many expressions": {fmt.Sprintf("selector: {matchExpressions: [%s]}",
			numbered(17, "{key: k%d, operator: Exists}")), "spec.selector.matchExpressions"},
		"many values": {fmt.Sprintf("selector: {matchExpressions: [{key: a, operator: In, values: [%s]}]}",
			numbered(65, "v%d")), "spec.selector.matchExpressions[0].values"},
		"no label":       {"selector: {matchLabels: {'a b': c}}", "spec.selector.matchLabels"},
		"too many vCPUs": {forAll + "domain: {cpu: {cores: 20, sockets: 20}}", "spec.domain.cpu"},
		"a CPU feature": {forAll + "domain: {cpu: {features: [{name: A}]}}",
			"spec.domain.cpu.features[0].name"},
		"hyperv": {forAll + "domain: {features: {hyperv: {synic: {}, vpindex: {enabled: false}}}}",
			"spec.domain.features.hyperv.vpindex.enabled"},
		"I/O threads":              {forAll + "domain: {ioThreadsPolicy: auto, ioThreads: {}}", "spec.domain.ioThreads"},
		"no policy of I/O threads": {forAll + "domain: {ioThreadsPolicy: many}", "spec.domain.ioThreadsPolicy"},
		"disks":                    {forAll + "domain: {devices: {disks: [{}]}}", "spec.domain.devices.disks"},
		"a switch that is on": {forAll + "domain: {devices: {autoattachMemBalloon: true}}",
			"spec.domain.devices.autoattachMemBalloon"},
		"a switch that is off, and more": {forAll +
			"domain: {resources: {overcommitGuestOverhead: false}, devices: {rng: {}, tpm: {}, autoattachVSOCK: true}}",
			"spec.domain.devices.autoattachVSOCK spec.domain.devices.rng spec.domain.devices.tpm " +
				"spec.domain.resources.overcommitGuestOverhead"},
		"what says nothing": {forAll +
			"domain: {rebootPolicy: '', devices: {autoattachVSOCK: false, gpus: [], tpm: null, panicDevices: []}}", ""},
		"part of a disk": {forAll + "domain: {devices: {disks: [{name: a, changedBlockTracking: true}]}}",
			"spec.domain.devices.disks"},
		"diag288": {forAll + "domain: {devices: {watchdog: {name: a, diag288: {}}}}",
			"spec.domain.devices.watchdog.diag288"},
		"an exponent": {forAll + "domain: {resources: {requests: {memory: '1e9'}, limits: {cpu: '1e1'}}}",
			"spec.domain.resources.limits[cpu] spec.domain.resources.requests[memory]"},
		"an error is enough": {forAll + "domain: {resources: {requests: {cpu: '1e1'}, limits: {cpu: 1}}}",
			"spec.domain.resources.requests[cpu]"},
		"little memory": {forAll + "domain: {memory: {guest: 64}}", "spec.domain.memory.guest"},
		"request over limit": {forAll + "domain: {resources: {requests: {cpu: 2}, limits: {cpu: 1}}}",
			"spec.domain.resources.requests[cpu]"},
		"a nameless watchdog": {forAll + "domain: {devices: {watchdog: {i6300esb: {action: reset}}}}",
			"spec.domain.devices.watchdog.name"},
		"a kernel from no one": {forAll + "domain: {firmware: {kernelBoot: {kernelArgs: quiet}}}",
			"spec.domain.firmware.kernelBoot.container"},
	} {
		p := parsedPreset(t, "p", c.spec)
		var got []string
		for _, e := range ValidateVirtualMachineInstancePreset(&p) {
			got = append(got, e.Field)
		}
		if !slices.Equal(got, strings.Fields(c.wrong)) {
			t.Errorf("%s: %q, want %q", name, got, c.wrong)
		}
	}
	long := parsedPreset(t, strings.Repeat("x", 64), forAll)
	if errs := ValidateVirtualMachineInstancePreset(&long); len(errs) != 1 || errs[0].Type != field.ErrorTypeTooLong {
		t.Errorf("a long name: %v", errs)
	}
}

// some returns a value of a type in which everything says something, a switch that it is off.
func some(of reflect.Type) reflect.Value {
	value := reflect.New(of).Elem()
	switch of.Kind() {
	case reflect.Pointer:
		value.Set(some(of.Elem()).Addr())
	case reflect.Slice:
		value.Set(reflect.Append(value, some(of.Elem())))
	case reflect.Map:
		value.Set(reflect.MakeMap(of))
		value.SetMapIndex(some(of.Key()), some(of.Elem()))
	case reflect.String:
		value.SetString("x")
	case reflect.Int, reflect.Int32, reflect.Int64:
		value.SetInt(1)
	case reflect.Uint, reflect.Uint32, reflect.Uint64:
		value.SetUint(1)
	case reflect.Struct:
		for i := range of.NumField() {
			if of.Field(i).IsExported() {
				value.Field(i).Set(some(of.Field(i).Type))
			}
		}
	}
	return value
}

// presetOf returns a preset that says something of one field of a domain, for all VMIs.
func presetOf(path string) *v1.VirtualMachineInstancePreset {
	p := &v1.VirtualMachineInstancePreset{ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec: v1.VirtualMachineInstancePresetSpec{Domain: &v1.DomainSpec{}}}
	to := fieldAt(p.Spec.Domain, path)
	to.Set(some(to.Type()))
	if to.Type() == reflect.TypeFor[v1.UnsupportedBool]() {
		to.SetBool(true) // off, it says nothing
	}
	return p
}

// TestFieldOfADomainIsSetOrRefused: presets set the fields of PresetFields. Every other field of a domain is refused by
// its path, and the CRD says so. So a new field of DomainSpec is refused, and nothing of presets is edited for it.
func TestFieldOfADomainIsSetOrRefused(t *testing.T) {
	text, err := os.ReadFile("../../config/crd/kubevirt.io_virtualmachineinstancepresets.yaml")
	var crd struct {
		Spec struct{ Versions []map[string]any }
	}
	if err := errors.Join(err, yaml.Unmarshal(text, &crd)); err != nil {
		t.Fatal(err)
	}
	var set []string
	var look func(of reflect.Type, prefix, schema string)
	look = func(of reflect.Type, prefix, schema string) {
		for i := range of.NumField() {
			name, kind := jsonName(of.Field(i)), of.Field(i).Type
			path, schema := prefix+name, schema+" properties "+name
			if slices.ContainsFunc(v1.PresetFields(), func(field string) bool { return strings.HasPrefix(field, path+".") }) {
				if kind.Kind() == reflect.Pointer {
					kind = kind.Elem()
				}
				look(kind, path+".", schema)
				continue
			}
			says, _ := lookup(crd.Spec.Versions[0], strings.Fields(schema+" description")).(string)
			if kind.Kind() == reflect.Slice && lookup(crd.Spec.Versions[0], strings.Fields(schema+" maxItems")) == nil &&
				!slices.Contains(v1.PresetFields(), path) {
				t.Errorf("%s: the CRD does not bound the list, which decoding makes larger", path)
			}
			if !slices.Contains(v1.PresetFields(), path) {
				checkRefused(t, path, strings.Join(strings.Fields(says), " "))
				continue
			}
			set = append(set, path)
			checkSet(t, path)
			if says == "" || strings.HasPrefix(says, "Refused: ") {
				t.Errorf("%s: a preset sets it, and the CRD says %q", path, says)
			}
		}
	}
	look(reflect.TypeFor[v1.DomainSpec](), "", "schema openAPIV3Schema properties spec properties domain")
	if len(set) != len(v1.PresetFields()) {
		t.Errorf("presets set %q, want %q", set, v1.PresetFields())
	}
}

// checkSet: VMIs get the field of a preset, each its own copy.
func checkSet(t *testing.T, path string) {
	t.Helper()
	p := presetOf(path)
	for _, err := range ValidateVirtualMachineInstancePreset(p) {
		if err.Type == field.ErrorTypeForbidden && err.Field == "spec.domain."+path {
			t.Error(err)
		}
	}
	one, two := &v1.VirtualMachineInstance{}, &v1.VirtualMachineInstance{}
	for _, vmi := range []*v1.VirtualMachineInstance{one, two} {
		_, errs := v1.ApplyPresets(vmi, []v1.VirtualMachineInstancePreset{*p})
		if len(errs) > 0 || vmi.Annotations[v1.PresetAnnotation+"p"] == "" {
			t.Errorf("%s: %v, annotations %v", path, errs, vmi.Annotations)
		}
	}
	switch changed := fieldAt(&one.Spec.Domain, path); changed.Kind() {
	case reflect.Pointer:
		changed.Elem().SetZero()
	case reflect.Map:
		changed.Clear()
	}
	for whose, d := range map[string]*v1.DomainSpec{"another VMI": &two.Spec.Domain, "the preset": p.Spec.Domain} {
		if got, want := asJSON(d), asJSON(presetOf(path).Spec.Domain); got != want {
			t.Errorf("%s: %s has %s after a VMI has changed, want %s", path, whose, got, want)
		}
	}
}

// checkRefused: a preset with the field is refused by the field's path, with the words of the CRD, and changes no VMI.
func checkRefused(t *testing.T, path, says string) {
	t.Helper()
	p := presetOf(path)
	if fieldAt(p.Spec.Domain, path).IsZero() {
		t.Errorf("%s: a preset that switches it off is accepted, and changes nothing: make it a pointer", path)
	}
	errs := ValidateVirtualMachineInstancePreset(p)
	if len(errs) != 1 || errs[0].Type != field.ErrorTypeForbidden || errs[0].Field != "spec.domain."+path ||
		!strings.HasSuffix(says, "efused: "+errs[0].Detail+".") {
		t.Errorf("%s: %v, and the CRD says %q", path, errs, says)
	}
	vmi := &v1.VirtualMachineInstance{}
	overridden, errs := v1.ApplyPresets(vmi, []v1.VirtualMachineInstancePreset{*p})
	if len(overridden)+len(errs) > 0 || !reflect.DeepEqual(vmi, &v1.VirtualMachineInstance{}) {
		t.Errorf("%s: %q, %v, %+v", path, overridden, errs, vmi)
	}
}
