package v1

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// parsedPreset returns a preset of a spec.
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
		"another selector": {"", presets{"a": "selector: {matchLabels: {os: windows}}\ndomain: {cpu: {cores: 2}}"}, "", "",
			nil, nil},
		"an expression": {"", presets{"a": "selector: {matchExpressions: [{key: os, operator: In, values: [linux, " +
			"bsd]}]}\ndomain: {cpu: {cores: 2}}",
			"b": "selector: {matchExpressions: [{key: os, operator: DoesNotExist}]}\ndomain: {cpu: {cores: 4}}"},
			"cpu: {cores: 2}", "a", nil, nil},
		"for all": {"", presets{"a": forAll + "domain: {cpu: {cores: 2}}"}, "cpu: {cores: 2}", "a", nil, nil},
		"without a domain": {"cpu: {cores: 2}", presets{"a": forAll, "b": forAll + "domain: {devices: {}}"},
			"cpu: {cores: 2}", "", nil, nil},
		"the VMI's own is equal": {"cpu: {cores: 2}", presets{"a": forAll + "domain: {cpu: {cores: 2}}"}, "cpu: {cores: 2}",
			"a", nil, nil},
		"the VMI's own wins as a whole": {"cpu: {cores: 6}",
			presets{"a": forAll + "domain: {cpu: {cores: 4, model: Nehalem}}"}, "cpu: {cores: 6}", "",
			[]string{
				`The object's own spec.domain.cpu {"cores":6} overrides spec.domain.cpu {"cores":4,"model":"Nehalem"} of VirtualMachineInstancePreset "a"`}, nil},
		"some parts are overridden": {"features: {acpi: {enabled: false}}",
			presets{"a": forAll + "domain: {features: {acpi: {enabled: true}}, cpu: {cores: 4}}"},
			"{features: {acpi: {enabled: false}}, cpu: {cores: 4}}", "a", []string{"spec.domain.features"}, nil},
		"an empty object is no value": {"{cpu: {}, machine: {type: ''}, memory: {}}",
			presets{"a": forAll + "domain: {cpu: {cores: 2}, machine: {type: q35}, memory: {guest: 1Gi}}"},
			"{cpu: {cores: 2}, machine: {type: q35}, memory: {guest: 1Gi}}", "a", nil, nil},
		"requests one by one": {"resources: {requests: {cpu: 1}}",
			presets{"a": forAll + "domain: {resources: {requests: {cpu: 2, memory: 64M}}}"},
			"resources: {requests: {cpu: 1, memory: 64M}}", "a", []string{"spec.domain.resources.requests[cpu] 1 overrides"},
			nil},
		"the same quantity": {"{memory: {guest: 1024Mi}, resources: {limits: {memory: 1Gi}}}",
			presets{"a": forAll + "domain: {memory: {guest: 1Gi}, resources: {limits: {memory: 1024Mi}}}"},
			"{memory: {guest: 1Gi}, resources: {limits: {memory: 1Gi}}}", "a", nil, nil},
		"UTC against a time zone": {"clock: {utc: {}}",
			presets{"a": forAll + "domain: {clock: {timezone: Europe/Berlin, timer: {hpet: {present: false}}}}"},
			"clock: {utc: {}, timer: {hpet: {present: false}}}", "a",
			[]string{`own spec.domain.clock {"utc":{}} overrides spec.domain.clock {"timezone":"Europe/Berlin"} of`}, nil},
		"an offset against a time zone": {"clock: {utc: {offsetSeconds: 5}}",
			presets{"a": forAll + "domain: {clock: {timezone: Europe/Berlin}}"},
			"clock: {utc: {offsetSeconds: 5}}", "", []string{`{"utc":{"offsetSeconds":5}} overrides`}, nil},
		"a time zone against an offset": {"clock: {timezone: Europe/Berlin}",
			presets{"a": forAll + "domain: {clock: {utc: {offsetSeconds: 5}}}"},
			"clock: {timezone: Europe/Berlin}", "", []string{`{"timezone":"Europe/Berlin"} overrides`}, nil},
		"the same time zone": {"clock: {timezone: Europe/Berlin}",
			presets{"a": forAll + "domain: {clock: {timezone: Europe/Berlin}}"}, "clock: {timezone: Europe/Berlin}", "a", nil,
			nil},
		"a time zone": {"", presets{"a": forAll + "domain: {clock: {timezone: Europe/Berlin}}"},
			"clock: {timezone: Europe/Berlin}", "a", nil, nil},
		"an offset": {"clock: {utc: {}}", presets{"a": forAll + "domain: {clock: {utc: {offsetSeconds: 5}}}"},
			"clock: {utc: {offsetSeconds: 5}}", "a", nil, nil},
		"an offset and a time zone of two presets": {"",
			presets{"a": forAll + "domain: {clock: {utc: {offsetSeconds: 5}}}",
				"b": forAll + "domain: {clock: {timezone: Europe/Berlin}}"},
			"", "", nil, []string{`"a" and "b" both select this object`}},
		"the clock's timer alone": {"clock: {timer: {pit: {tickPolicy: delay}}}",
			presets{"a": forAll + "domain: {clock: {timer: {hpet: {present: false}}}}"},
			"clock: {timer: {pit: {tickPolicy: delay}}}", "", []string{"spec.domain.clock.timer"}, nil},
		"a VMI that requests memory says how much it has": {"resources: {requests: {memory: 1Gi}}",
			presets{"a": forAll + "domain: {memory: {guest: 128Mi}, cpu: {cores: 2}}"},
			"{resources: {requests: {memory: 1Gi}}, cpu: {cores: 2}}", "a",
			[]string{`own spec.domain.resources {"requests":{"memory":"1Gi"}} overrides spec.domain.memory`}, nil},
		"a VMI that limits memory too": {"resources: {limits: {memory: 1Gi}}",
			presets{"a": forAll + "domain: {memory: {guest: 128Mi}}"},
			"resources: {limits: {memory: 1Gi}}", "", []string{"spec.domain.resources"}, nil},
		"a request beside the guest's memory": {"memory: {guest: 1Gi}",
			presets{"a": forAll + "domain: {resources: {requests: {memory: 64M}}}"},
			"{memory: {guest: 1Gi}, resources: {requests: {memory: 64M}}}", "a", nil, nil},
		"two presets, two parts": {"",
			presets{"a": forAll + "domain: {memory: {guest: 128Mi}}",
				"b": forLinux + "domain: {resources: {requests: {memory: 64M}}}"},
			"{memory: {guest: 128Mi}, resources: {requests: {memory: 64M}}}", "a b", nil, nil},
		"two presets that agree": {"",
			presets{"a": forAll + "domain: {cpu: {cores: 2}}", "b": forLinux + "domain: {cpu: {cores: 2}}"}, "cpu: {cores: 2}",
			"a b", nil, nil},
		"two presets that disagree": {"",
			presets{"a": forAll + "domain: {cpu: {cores: 2}, resources: {requests: {cpu: 1}}}",
				"b": forLinux + "domain: {cpu: {cores: 4}, resources: {requests: {cpu: 2}}}"}, "", "", nil,
			[]string{`spec.domain.resources.requests[cpu]: Invalid value: "1"`,
				`the VirtualMachineInstancePresets "a" and "b" both select this object, and "b" sets {"cores":4}; change a preset`}},
		"they disagree on what the VMI has": {"cpu: {cores: 6}",
			presets{"a": forAll + "domain: {cpu: {cores: 2}}", "b": forLinux + "domain: {cpu: {cores: 4}}"}, "cpu: {cores: 6}",
			"", nil,
			[]string{"spec.domain.cpu"}},
		"one of them is for others": {"",
			presets{"a": forAll + "domain: {cpu: {cores: 2}}",
				"b": "selector: {matchLabels: {os: windows}}\ndomain: {cpu: {cores: 4}}"}, "cpu: {cores: 2}", "a", nil, nil},
		"an invalid selector": {"",
			presets{"a": "selector: {matchExpressions: [{key: os, operator: Like, values: [x]}]}\ndomain: {cpu: {cores: 2}}"},
			"", "", nil,
			[]string{`read selector of VirtualMachineInstancePreset "a"`}},
		"a long name": {"", presets{strings.Repeat("a", 64): forAll + "domain: {cpu: {cores: 2}}"}, "", "", nil,
			[]string{"more than 63 characters"}},
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
			vmi := &VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"os": "linux"}},
				Spec: VirtualMachineInstanceSpec{Domain: parsedDomain(t, c.vmi)}}
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
			if overridden, errs := ApplyPresets(excluded, list); len(overridden)+len(errs) > 0 ||
				!reflect.DeepEqual(before, excluded) {
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
		list = append(list, parsedPreset(t, fmt.Sprint("p", n), fmt.Sprintf("selector: {}\ndomain: {cpu: {cores: %d}, "+
			"firmware: {kernelBoot: {kernelArgs: %q}}, resources: {requests: {cpu: %d}}}",
			n+1, strings.Repeat("é", 900)+fmt.Sprint(n), n+1)))
	}
	_, errs := ApplyPresets(&VirtualMachineInstance{}, list)
	if text := errs.ToAggregate().Error(); len(errs) != maxConflicts || len(text) > 6<<10 {
		t.Errorf("%d errors, %d bytes", len(errs), len(text))
	}
}

// TestPresetErrorIsShort: an error holds little of a VMI's labels and of a selector.
func TestPresetErrorIsShort(t *testing.T) {
	vmi := &VirtualMachineInstance{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{}}}
	for i := range 1000 {
		vmi.Labels[fmt.Sprint("label", i)] = "x"
	}
	bad := parsedPreset(t, strings.Repeat("n", 60),
		"selector: {matchExpressions: [{key: "+strings.Repeat("k", 5000)+", operator: In, values: [x]}]}")
	_, errs := ApplyPresets(vmi, []VirtualMachineInstancePreset{bad})
	if text := errs.ToAggregate().Error(); len(errs) != 1 || len(text) > 1000 || !strings.Contains(text, bad.Name) ||
		!strings.Contains(text, PresetsAdvice) {
		t.Errorf("%d bytes: %s", len(text), text)
	}
}
