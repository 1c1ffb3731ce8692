package v1

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// parsedPreset is a preset of a spec.
func parsedPreset(t testing.TB, name, spec string) VirtualMachineInstancePreset {
	t.Helper()
	p := VirtualMachineInstancePreset{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatalf("%v in %s", err, spec)
	}
	return p
}

const (
	forAll   = "selector: {}\n"
	forLinux = "selector: {matchLabels: {os: linux}}\n"
)

// TestApplyPresets: what a VMI's domain becomes, and which presets say so.
func TestApplyPresets(t *testing.T) {
	type presets map[string]string
	for name, c := range map[string]struct {
		vmi        string // its domain
		presets    presets
		want       string
		applied    string // names of presets
		overridden []string
		wrong      []string // parts of errors, one each
	}{
		"nothing is there": {"cpu: {cores: 2}", nil, "cpu: {cores: 2}", "", nil, nil},
		"all that is mergeable": {"", presets{"a": forLinux + `domain:
  resources: {requests: {memory: 64M, cpu: 100m}, limits: {memory: 1Gi}}
  cpu: {cores: 2, model: Nehalem}
  memory: {guest: 128Mi}
  machine: {type: pc-q35-8.2}
  firmware: {serial: x1, kernelBoot: {kernelArgs: quiet}}
  clock: {utc: {}, timer: {hpet: {present: false}}}
  features: {acpi: {enabled: false}}
  devices: {watchdog: {name: dog, i6300esb: {action: reset}}}`}, `
resources: {requests: {memory: 64M, cpu: 100m}, limits: {memory: 1Gi}}
cpu: {cores: 2, model: Nehalem}
memory: {guest: 128Mi}
machine: {type: pc-q35-8.2}
firmware: {serial: x1, kernelBoot: {kernelArgs: quiet}}
clock: {timer: {hpet: {present: false}}}
features: {acpi: {enabled: false}}
devices: {watchdog: {name: dog, i6300esb: {action: reset}}}`, "a", nil, nil},
		"another selector": {"", presets{"a": "selector: {matchLabels: {os: windows}}\ndomain: {cpu: {cores: 2}}"}, "", "", nil, nil},
		"an expression": {"", presets{"a": "selector: {matchExpressions: [{key: os, operator: In, values: [linux, bsd]}]}\ndomain: {cpu: {cores: 2}}",
			"b": "selector: {matchExpressions: [{key: os, operator: DoesNotExist}]}\ndomain: {cpu: {cores: 4}}"}, "cpu: {cores: 2}", "a", nil, nil},
		"for all":                {"", presets{"a": forAll + "domain: {cpu: {cores: 2}}"}, "cpu: {cores: 2}", "a", nil, nil},
		"without a domain":       {"cpu: {cores: 2}", presets{"a": forAll, "b": forAll + "domain: {devices: {}}"}, "cpu: {cores: 2}", "", nil, nil},
		"the VMI's own is equal": {"cpu: {cores: 2}", presets{"a": forAll + "domain: {cpu: {cores: 2}}"}, "cpu: {cores: 2}", "a", nil, nil},
		"the VMI's own wins as a whole": {"cpu: {cores: 6}", presets{"a": forAll + "domain: {cpu: {cores: 4, model: Nehalem}}"}, "cpu: {cores: 6}", "",
			[]string{`The object's own spec.domain.cpu {"cores":6} overrides spec.domain.cpu {"cores":4,"model":"Nehalem"} of VirtualMachineInstancePreset "a"`}, nil},
		"some parts are overridden": {"features: {acpi: {enabled: false}}", presets{"a": forAll + "domain: {features: {acpi: {enabled: true}}, cpu: {cores: 4}}"},
			"{features: {acpi: {enabled: false}}, cpu: {cores: 4}}", "a", []string{"spec.domain.features"}, nil},
		"an empty object is no value": {"{cpu: {}, machine: {type: ''}, memory: {}}", presets{"a": forAll + "domain: {cpu: {cores: 2}, machine: {type: q35}, memory: {guest: 1Gi}}"},
			"{cpu: {cores: 2}, machine: {type: q35}, memory: {guest: 1Gi}}", "a", nil, nil},
		"requests one by one": {"resources: {requests: {cpu: 1}}", presets{"a": forAll + "domain: {resources: {requests: {cpu: 2, memory: 64M}}}"},
			"resources: {requests: {cpu: 1, memory: 64M}}", "a", []string{"spec.domain.resources.requests[cpu] 1 overrides"}, nil},
		"the same quantity": {"{memory: {guest: 1024Mi}, resources: {limits: {memory: 1Gi}}}", presets{"a": forAll + "domain: {memory: {guest: 1Gi}, resources: {limits: {memory: 1024Mi}}}"},
			"{memory: {guest: 1Gi}, resources: {limits: {memory: 1Gi}}}", "a", nil, nil},
		"UTC against a time zone": {"clock: {utc: {}}", presets{"a": forAll + "domain: {clock: {timezone: Europe/Berlin, timer: {hpet: {present: false}}}}"},
			"clock: {utc: {}, timer: {hpet: {present: false}}}", "a", []string{`own spec.domain.clock {"utc":{}} overrides spec.domain.clock {"timezone":"Europe/Berlin"} of`}, nil},
		"an offset against a time zone": {"clock: {utc: {offsetSeconds: 5}}", presets{"a": forAll + "domain: {clock: {timezone: Europe/Berlin}}"},
			"clock: {utc: {offsetSeconds: 5}}", "", []string{`{"utc":{"offsetSeconds":5}} overrides`}, nil},
		"a time zone against an offset": {"clock: {timezone: Europe/Berlin}", presets{"a": forAll + "domain: {clock: {utc: {offsetSeconds: 5}}}"},
			"clock: {timezone: Europe/Berlin}", "", []string{`{"timezone":"Europe/Berlin"} overrides`}, nil},
		"the same time zone": {"clock: {timezone: Europe/Berlin}", presets{"a": forAll + "domain: {clock: {timezone: Europe/Berlin}}"}, "clock: {timezone: Europe/Berlin}", "a", nil, nil},
		"a time zone":        {"", presets{"a": forAll + "domain: {clock: {timezone: Europe/Berlin}}"}, "clock: {timezone: Europe/Berlin}", "a", nil, nil},
		"an offset":          {"clock: {utc: {}}", presets{"a": forAll + "domain: {clock: {utc: {offsetSeconds: 5}}}"}, "clock: {utc: {offsetSeconds: 5}}", "a", nil, nil},
		"an offset and a time zone of two presets": {"", presets{"a": forAll + "domain: {clock: {utc: {offsetSeconds: 5}}}", "b": forAll + "domain: {clock: {timezone: Europe/Berlin}}"},
			"", "", nil, []string{`"a" and "b" both select this object`}},
		"the clock's timer alone": {"clock: {timer: {pit: {tickPolicy: delay}}}", presets{"a": forAll + "domain: {clock: {timer: {hpet: {present: false}}}}"},
			"clock: {timer: {pit: {tickPolicy: delay}}}", "", []string{"spec.domain.clock.timer"}, nil},
		"a VMI that requests memory says how much it has": {"resources: {requests: {memory: 1Gi}}", presets{"a": forAll + "domain: {memory: {guest: 128Mi}, cpu: {cores: 2}}"},
			"{resources: {requests: {memory: 1Gi}}, cpu: {cores: 2}}", "a", []string{`own spec.domain.resources {"requests":{"memory":"1Gi"}} overrides spec.domain.memory`}, nil},
		"a VMI that limits memory too": {"resources: {limits: {memory: 1Gi}}", presets{"a": forAll + "domain: {memory: {guest: 128Mi}}"},
			"resources: {limits: {memory: 1Gi}}", "", []string{"spec.domain.resources"}, nil},
		"a request beside the guest's memory": {"memory: {guest: 1Gi}", presets{"a": forAll + "domain: {resources: {requests: {memory: 64M}}}"},
			"{memory: {guest: 1Gi}, resources: {requests: {memory: 64M}}}", "a", nil, nil},
		"two presets, two parts": {"", presets{"a": forAll + "domain: {memory: {guest: 128Mi}}", "b": forLinux + "domain: {resources: {requests: {memory: 64M}}}"},
			"{memory: {guest: 128Mi}, resources: {requests: {memory: 64M}}}", "a b", nil, nil},
		"two presets that agree": {"", presets{"a": forAll + "domain: {cpu: {cores: 2}}", "b": forLinux + "domain: {cpu: {cores: 2}}"}, "cpu: {cores: 2}", "a b", nil, nil},
		"two presets that disagree": {"", presets{"a": forAll + "domain: {cpu: {cores: 2}, resources: {requests: {cpu: 1}}}", "b": forLinux + "domain: {cpu: {cores: 4}, resources: {requests: {cpu: 2}}}"}, "", "", nil,
			[]string{`spec.domain.resources.requests[cpu]: Invalid value: "1"`, `the VirtualMachineInstancePresets "a" and "b" both select this object, and "b" sets {"cores":4}; change a preset`}},
		"they disagree on what the VMI has": {"cpu: {cores: 6}", presets{"a": forAll + "domain: {cpu: {cores: 2}}", "b": forLinux + "domain: {cpu: {cores: 4}}"}, "cpu: {cores: 6}", "", nil,
			[]string{"spec.domain.cpu"}},
		"one of them is for others": {"", presets{"a": forAll + "domain: {cpu: {cores: 2}}", "b": "selector: {matchLabels: {os: windows}}\ndomain: {cpu: {cores: 4}}"}, "cpu: {cores: 2}", "a", nil, nil},
		"an invalid selector": {"", presets{"a": "selector: {matchExpressions: [{key: os, operator: Like, values: [x]}]}\ndomain: {cpu: {cores: 2}}"}, "", "", nil,
			[]string{`read selector of VirtualMachineInstancePreset "a"`}},
		"a long name": {"", presets{strings.Repeat("a", 64): forAll + "domain: {cpu: {cores: 2}}"}, "", "", nil, []string{"more than 63 characters"}},
	} {
		t.Run(name, func(t *testing.T) {
			var list []VirtualMachineInstancePreset
			for name, spec := range c.presets {
				list = append(list, parsedPreset(t, name, spec))
			}
			untouched := slices.Clone(list)
			for i := range list {
				list[i].DeepCopyInto(&untouched[i])
			}
			vmi := &VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"os": "linux"}}, Spec: VirtualMachineInstanceSpec{Domain: parsedDomain(t, c.vmi)}}
			excluded := vmi.DeepCopy()
			excluded.Annotations = map[string]string{ExcludePresetsAnnotation: "true"}

			overridden, errs := ApplyPresets(vmi, list)
			if diff := cmp.Diff(asJSON(parsedDomain(t, c.want)), asJSON(vmi.Spec.Domain)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			matches(t, "overridden", overridden, c.overridden)
			var problems []string
			for _, e := range errs {
				problems = append(problems, e.Error())
			}
			matches(t, "error", problems, c.wrong)
			annotations := map[string]string{}
			for _, name := range strings.Fields(c.applied) {
				annotations["virtualmachinepreset.kubevirt.io/"+name] = "kubevirt.io/v1"
			}
			if len(annotations)+len(vmi.Annotations) > 0 && !reflect.DeepEqual(vmi.Annotations, annotations) {
				t.Errorf("annotations %v, want %v", vmi.Annotations, annotations)
			}
			if diff := cmp.Diff(untouched, list); diff != "" {
				t.Errorf("the presets were changed: %s", diff)
			}

			// Applied again, as an API server may ask twice, nothing more changes.
			if once := vmi.DeepCopy(); len(errs) == 0 {
				if _, errs := ApplyPresets(vmi, list); len(errs) > 0 || !reflect.DeepEqual(once.Spec, vmi.Spec) {
					t.Errorf("applied twice: %v, %s", errs, cmp.Diff(once.Spec, vmi.Spec))
				}
			}
			before := excluded.DeepCopy()
			if overridden, errs := ApplyPresets(excluded, list); len(overridden)+len(errs) > 0 || !reflect.DeepEqual(before, excluded) {
				t.Errorf("excluded: %v, %v, %s", overridden, errs, cmp.Diff(before, excluded))
			}
		})
	}
}

func parsedDomain(t *testing.T, text string) (d DomainSpec) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), &d); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return d
}

// matches compares texts with parts of them.
func matches(t *testing.T, what string, got, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %q, want %q", what, got, want)
		return
	}
	for i := range got {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("%s: %q, want %q", what, got[i], want[i])
		}
	}
}

// TestPresetConflictsInStatusAreBounded: what a status holds of them is short.
func TestPresetConflictsInStatusAreBounded(t *testing.T) {
	var list []VirtualMachineInstancePreset
	for n := range MaxPresets {
		list = append(list, parsedPreset(t, fmt.Sprint("p", n), fmt.Sprintf("selector: {}\ndomain: {cpu: {cores: %d}, firmware: {kernelBoot: {kernelArgs: %q}}, resources: {requests: {cpu: %d}}}",
			n+1, strings.Repeat("é", 900)+fmt.Sprint(n), n+1)))
	}
	_, errs := ApplyPresets(&VirtualMachineInstance{}, list)
	if text := errs.ToAggregate().Error(); len(errs) != maxConflicts || len(text) > 6<<10 {
		t.Errorf("%d errors, %d bytes", len(errs), len(text))
	}
}

// numbered joins texts with a number in each.
func numbered(n int, text string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = strings.Replace(text, "%d", fmt.Sprint(i), 1)
	}
	return strings.Join(all, ", ")
}

// TestPresetErrorIsShort: an error holds little of a VMI's labels and of a selector.
func TestPresetErrorIsShort(t *testing.T) {
	vmi := &VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{}}}
	for i := range 1000 {
		vmi.Labels[fmt.Sprint("label", i)] = "x"
	}
	bad := parsedPreset(t, strings.Repeat("n", 60), "selector: {matchExpressions: [{key: "+strings.Repeat("k", 5000)+", operator: In, values: [x]}]}")
	_, errs := ApplyPresets(vmi, []VirtualMachineInstancePreset{bad})
	if text := errs.ToAggregate().Error(); len(errs) != 1 || len(text) > 1000 || !strings.Contains(text, bad.Name) || !strings.Contains(text, PresetsAdvice) {
		t.Errorf("%d bytes: %s", len(text), text)
	}
}

func TestValidatePreset(t *testing.T) {
	for name, c := range map[string]struct{ spec, wrong string }{
		"the guide's":                  {"selector: {matchLabels: {kubevirt.io/size: small}}\ndomain: {resources: {requests: {memory: 64M}}}", ""},
		"no domain":                    {forAll, ""},
		"empty lists":                  {forAll + "domain: {devices: {disks: [], interfaces: []}}", ""},
		"a limit alone":                {forAll + "domain: {resources: {limits: {memory: 64M, cpu: 1}}}", ""},
		"no such operator":             {"selector: {matchExpressions: [{key: os, operator: Like, values: [x]}]}", "spec.selector.matchExpressions[0].operator"},
		"all that a selector may have": {fmt.Sprintf("selector: {matchLabels: {%s}, matchExpressions: [%s]}", numbered(64, "l%d: x"), numbered(16, "{key: k%d, operator: In, values: ["+numbered(64, "v%d")+"]}")), ""},
		"many labels":                  {fmt.Sprintf("selector: {matchLabels: {%s}}", numbered(65, "l%d: x")), "spec.selector.matchLabels"},
		"many expressions":             {fmt.Sprintf("selector: {matchExpressions: [%s]}", numbered(17, "{key: k%d, operator: Exists}")), "spec.selector.matchExpressions"},
		"many values":                  {fmt.Sprintf("selector: {matchExpressions: [{key: a, operator: In, values: [%s]}]}", numbered(65, "v%d")), "spec.selector.matchExpressions[0].values"},
		"no label":                     {"selector: {matchLabels: {'a b': c}}", "spec.selector.matchLabels"},
		"too many vCPUs":               {forAll + "domain: {cpu: {cores: 20, sockets: 20}}", "spec.domain.cpu"},
		"a CPU feature":                {forAll + "domain: {cpu: {features: [{name: A}]}}", "spec.domain.cpu.features[0].name"},
		"hyperv":                       {forAll + "domain: {features: {hyperv: {synic: {}, vpindex: {enabled: false}}}}", "spec.domain.features.hyperv.vpindex.enabled"},
		"I/O threads":                  {forAll + "domain: {ioThreadsPolicy: auto, ioThreads: {}}", "spec.domain.ioThreads"},
		"no policy of I/O threads":     {forAll + "domain: {ioThreadsPolicy: many}", "spec.domain.ioThreadsPolicy"},
		"disks":                        {forAll + "domain: {devices: {disks: [{}]}}", "spec.domain.devices.disks"},
		"a switch that is on":          {forAll + "domain: {devices: {autoattachMemBalloon: true}}", "spec.domain.devices.autoattachMemBalloon"},
		"a switch that is off, and more": {forAll + "domain: {resources: {overcommitGuestOverhead: false}, devices: {rng: {}, tpm: {}, autoattachVSOCK: true}}",
			"spec.domain.devices.autoattachVSOCK spec.domain.devices.rng spec.domain.devices.tpm spec.domain.resources.overcommitGuestOverhead"},
		"what says nothing":    {forAll + "domain: {rebootPolicy: '', devices: {autoattachVSOCK: false, gpus: [], tpm: null, panicDevices: []}}", ""},
		"part of a disk":       {forAll + "domain: {devices: {disks: [{name: a, changedBlockTracking: true}]}}", "spec.domain.devices.disks"},
		"diag288":              {forAll + "domain: {devices: {watchdog: {name: a, diag288: {}}}}", "spec.domain.devices.watchdog.diag288"},
		"an exponent":          {forAll + "domain: {resources: {requests: {memory: '1e9'}, limits: {cpu: '1e1'}}}", "spec.domain.resources.limits[cpu] spec.domain.resources.requests[memory]"},
		"an error is enough":   {forAll + "domain: {resources: {requests: {cpu: '1e1'}, limits: {cpu: 1}}}", "spec.domain.resources.requests[cpu]"},
		"little memory":        {forAll + "domain: {memory: {guest: 64}}", "spec.domain.memory.guest"},
		"request over limit":   {forAll + "domain: {resources: {requests: {cpu: 2}, limits: {cpu: 1}}}", "spec.domain.resources.requests[cpu]"},
		"a nameless watchdog":  {forAll + "domain: {devices: {watchdog: {i6300esb: {action: reset}}}}", "spec.domain.devices.watchdog.name"},
		"a kernel from no one": {forAll + "domain: {firmware: {kernelBoot: {kernelArgs: quiet}}}", "spec.domain.firmware.kernelBoot.container"},
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
func presetOf(path string) *VirtualMachineInstancePreset {
	p := &VirtualMachineInstancePreset{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: VirtualMachineInstancePresetSpec{Domain: &DomainSpec{}}}
	to := fieldAt(p.Spec.Domain, path)
	to.Set(some(to.Type()))
	if to.Type() == reflect.TypeFor[UnsupportedBool]() {
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
			if slices.ContainsFunc(PresetFields(), func(field string) bool { return strings.HasPrefix(field, path+".") }) {
				if kind.Kind() == reflect.Pointer {
					kind = kind.Elem()
				}
				look(kind, path+".", schema)
				continue
			}
			says, _ := lookup(crd.Spec.Versions[0], strings.Fields(schema+" description")).(string)
			if kind.Kind() == reflect.Slice && lookup(crd.Spec.Versions[0], strings.Fields(schema+" maxItems")) == nil && !slices.Contains(PresetFields(), path) {
				t.Errorf("%s: the CRD does not bound the list, which decoding makes larger", path)
			}
			if !slices.Contains(PresetFields(), path) {
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
	look(reflect.TypeFor[DomainSpec](), "", "schema openAPIV3Schema properties spec properties domain")
	if len(set) != len(PresetFields()) {
		t.Errorf("presets set %q, want %q", set, PresetFields())
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
	one, two := &VirtualMachineInstance{}, &VirtualMachineInstance{}
	for _, vmi := range []*VirtualMachineInstance{one, two} {
		_, errs := ApplyPresets(vmi, []VirtualMachineInstancePreset{*p})
		if len(errs) > 0 || vmi.Annotations[PresetAnnotation+"p"] == "" {
			t.Errorf("%s: %v, annotations %v", path, errs, vmi.Annotations)
		}
	}
	switch changed := fieldAt(&one.Spec.Domain, path); changed.Kind() {
	case reflect.Pointer:
		changed.Elem().SetZero()
	case reflect.Map:
		changed.Clear()
	}
	for whose, d := range map[string]*DomainSpec{"another VMI": &two.Spec.Domain, "the preset": p.Spec.Domain} {
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
	vmi := &VirtualMachineInstance{}
	overridden, errs := ApplyPresets(vmi, []VirtualMachineInstancePreset{*p})
	if len(overridden)+len(errs) > 0 || !reflect.DeepEqual(vmi, &VirtualMachineInstance{}) {
		t.Errorf("%s: %q, %v, %+v", path, overridden, errs, vmi)
	}
}
