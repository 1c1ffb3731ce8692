package check

import (
	"fmt"
	"maps"
	"strings"

	"github.com/kubeqemu/kubeqemu/qemuargs/tool/schema"
)

// machineType checks -machine.
func (c *checker) machineType(value string) {
	properties := map[string]any{}
	for _, p := range pairs(value, "type") {
		if p.bare {
			c.problem("%q has no value", shorten(p.key))
			continue
		}
		properties[strings.ReplaceAll(p.key, "_", "-")] = word(p.value) // softmmu/vl.c, keyval_dashify
	}
	if accelerators := spelled(properties["accel"]); accelerators != "" {
		c.accelerators(accelerators)
	}
	name := spelled(properties["type"])
	if name == "" {
		return // the properties of the default type, or of another -machine
	}
	c.machine = name
	m, ok := c.schema.Machines[name]
	if !ok {
		c.noMachine(name)
		return
	}
	if m.Deprecated {
		c.warn("machine type %s is deprecated", name)
	}
	// Of the accelerator, and of types whose properties moved there (softmmu/vl.c, qemu_apply_legacy_machine_options).
	c.properties(m.Name, c.machineList(m), properties, "type", "accel", "kernel-irqchip", "kvm-shadow-mem", "igd-passthru")
}

// accelerators checks the accelerators of -machine accel=, of which QEMU takes the first that works. It passes over a
// name that it does not know if it knows another (softmmu/vl.c, configure_accelerators).
func (c *checker) accelerators(names string) {
	var unknown []string
	known := false
	for name := range strings.SplitSeq(names, ":") {
		if _, ok := c.schema.Accelerators[name]; ok {
			known = true
		} else if len(unknown) < maxNear {
			unknown = append(unknown, name)
		}
	}
	for _, name := range unknown {
		c.noAccelerator(name, known)
	}
}

// noAccelerator complains of an accelerator that there is not. A schema has those of one build of QEMU.
func (c *checker) noAccelerator(name string, another bool) {
	hint := ""
	switch name {
	case "hvf", "nvmm", "whpx", "xen", "hax": // names of other builds, and no mistakes in kvm
	default:
		has := func(s *schema.Schema) bool { _, ok := s.Accelerators[name]; return ok }
		hint = c.hint(name, maps.Keys(c.schema.Accelerators), has)
	}
	c.report(another, "this build of QEMU %s has no accelerator %q%s", c.schema.Release(), shorten(name), hint)
}

// machineList returns a machine type's properties.
func (c *checker) machineList(m schema.Machine) map[string]string { return c.schema.List(m.List) }

// noMachine complains of a machine type that there is not, and says why.
func (c *checker) noMachine(name string) {
	family, version, _ := cutLast(name, "-")
	oldest, newest := c.versions(family)
	release := c.schema.Release()
	switch {
	case oldest == "" || strings.Trim(version, "0123456789.") != "" || version == "":
		c.problem("QEMU %s has no machine type %q%s", release, shorten(name), c.meant(name, maps.Keys(c.schema.Machines)))
	case compareVersions(version, oldest) < 0:
		c.problem("machine type %s: QEMU %s has removed it; the oldest is %s-%s", shorten(name), release, family, oldest)
	case compareVersions(version, newest) > 0:
		c.problem("machine type %s is newer than QEMU %s; the newest is %s-%s", shorten(name), release, family, newest)
	default:
		c.problem("QEMU %s has no machine type %q%s", release, shorten(name), c.meant(name, maps.Keys(c.schema.Machines)))
	}
}

// versions returns the oldest and the newest version of a family of machine types.
func (c *checker) versions(family string) (oldest, newest string) {
	for name := range c.schema.Machines {
		f, version, _ := cutLast(name, "-")
		if f != family || version == "" || strings.Trim(version, "0123456789.") != "" {
			continue
		}
		if oldest == "" || compareVersions(version, oldest) < 0 {
			oldest = version
		}
		if newest == "" || compareVersions(version, newest) > 0 {
			newest = version
		}
	}
	return oldest, newest
}

func cutLast(s, separator string) (before, after string, found bool) {
	at := strings.LastIndex(s, separator)
	if at < 0 {
		return s, "", false
	}
	return s[:at], s[at+len(separator):], true
}

// cpu checks -cpu: a model and its features.
func (c *checker) cpu(value string) {
	model, features, _ := strings.Cut(value, ",")
	m, ok := c.schema.CPUs[model]
	if !ok {
		// A type's full name is taken too (x86_cpu_class_by_name; arm_cpu_class_by_name adds the end to each name).
		m, ok = c.schema.CPUs[strings.TrimSuffix(model, "-"+cpuTarget(c.schema)+"-cpu")]
	}
	if !ok {
		has := func(s *schema.Schema) bool { _, ok := s.CPUs[model]; return ok }
		hint := ""
		if newest := c.newestCPU(model); newest != "" && c.elsewhere(has) == "" {
			hint = fmt.Sprintf("; the newest is %s", newest)
		} else {
			hint = c.hint(model, maps.Keys(c.schema.CPUs), has)
		}
		c.problem("QEMU %s has no CPU model %q%s", c.schema.Release(), shorten(model), hint)
		return
	}
	if m.Deprecated {
		c.warn("CPU model %s is deprecated", model)
	}
	list := c.schema.List(m.List)
	if list == nil || features == "" {
		return
	}
	for feature := range strings.SplitSeq(features, ",") {
		if c.ended {
			return
		}
		if feature == "" { // which QEMU passes over (target/i386, x86_cpu_parse_featurestr: strtok)
			continue
		}
		c.feature(model, feature, list)
	}
}

// cpuTarget returns the part of a CPU type's name before "-cpu": the types of both architectures of ARM have the same.
func cpuTarget(s *schema.Schema) string {
	if isARM(s) {
		return "arm"
	}
	return s.Arch
}

// isARM reports whether a schema is of a QEMU for ARM's guests.
func isARM(s *schema.Schema) bool { return s.Arch == "aarch64" || s.Arch == "arm" }

// newestCPU returns the newest version of a CPU model, such as Haswell-v4 of Haswell-v99; empty where the model has no
// version.
func (c *checker) newestCPU(model string) string {
	family, version, ok := cutLast(model, "-v")
	if !ok || strings.Trim(version, "0123456789") != "" {
		return ""
	}
	newest := ""
	for name := range c.schema.CPUs {
		f, v, ok := cutLast(name, "-v")
		if !ok || f != family || strings.Trim(v, "0123456789") != "" {
			continue
		}
		if _, best, _ := cutLast(newest, "-v"); newest == "" || compareVersions(v, best) > 0 {
			newest = name
		}
	}
	return newest
}

// feature checks one of a CPU model's: +name, -name, name or name=value (target/i386, x86_cpu_parse_featurestr). ARM's
// CPUs take the last form only (hw/core/cpu-common.c, cpu_common_parse_features).
func (c *checker) feature(model, feature string, list map[string]string) {
	name, value, hasValue := strings.Cut(feature, "=")
	if isARM(c.schema) && !hasValue {
		c.problem("the feature %q has no value: write %s=on or %s=off", shorten(feature), shorten(strings.TrimLeft(name, "+-")), shorten(strings.TrimLeft(name, "+-")))
		return
	}
	if name != "" && (name[0] == '+' || name[0] == '-') {
		name, value, hasValue = name[1:], "on", true
	}
	if !hasValue {
		value = "on"
	}
	kind, ok := list[name]
	if dashed := strings.ReplaceAll(name, "_", "-"); !ok && !isARM(c.schema) {
		kind, ok = list[dashed]
	}
	switch {
	case name == "tsc-freq" && !isARM(c.schema): // of tsc-frequency, with a unit
	case !ok:
		has := func(s *schema.Schema) bool {
			return s.List(s.CPUs[model].List)[name] != "" && s.CPUs[model] != schema.CPU{}
		}
		c.problem("CPU model %s has no feature %q%s", model, shorten(name), c.hint(name, maps.Keys(list), has))
	default:
		c.property(name, kind, word(value))
	}
}

// accelerator checks -accel.
func (c *checker) accelerator(value string) {
	properties := map[string]any{}
	for _, p := range pairs(value, "accel") {
		if p.bare {
			p.value = "on"
		}
		properties[p.key] = word(p.value)
	}
	name := spelled(properties["accel"])
	list, ok := c.schema.Accelerators[name]
	switch {
	case name == "":
		c.problem("an accelerator is missing")
	case !ok:
		c.noAccelerator(name, false)
	default:
		// igd-passthru is Xen's.
		c.accelerated(name, c.schema.List(list), properties)
	}
}

// accelerated checks an accelerator's properties; tcg's threads have two forms (accel/tcg/tcg-all.c).
func (c *checker) accelerated(name string, list map[string]string, properties map[string]any) {
	if thread, ok := properties["thread"]; ok && name == "tcg" {
		if complaint := oneOf(thread, []string{"single", "multi"}); complaint != "" {
			c.problem("%q is %s; %s", "thread", shown(thread), complaint)
		}
	}
	c.properties(name, list, properties, "accel", "igd-passthru")
}
