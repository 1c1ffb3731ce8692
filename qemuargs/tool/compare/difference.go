package compare

import (
	"fmt"
	"slices"
	"strings"
)

// Difference is a fact that two command lines do not agree on.
type Difference struct {
	// Argument, Place and Property are those of the fact. If the two command lines have devices
	// of different drivers in one place, Argument is that of the first.
	Argument, Place, Property string
	// Before and After are the two values. Unset stands for a property that is not there, and if
	// Property is empty, for an argument that is not there.
	Before, After string
}

// Unset is the value of what is not there.
const Unset = "unset"

// there is the value of an argument that the other command line lacks.
const there = "there"

func (d Difference) String() string {
	what := strings.TrimSpace(d.Argument + " " + d.Property)
	if d.Place != "" {
		what += " (" + d.Place + ")"
	}
	return fmt.Sprintf("%s: %s → %s", what, d.Before, d.After)
}

// Differences compares two command lines that different programs wrote: it matches devices by
// their places, and backends by their devices. It tells an argument that one command line lacks,
// and then none of the argument's properties.
func Differences(before, after []Argument) (out []Difference) {
	old, now := Facts(before), Facts(after)
	oldValues, nowValues := values(old), values(now)
	told := map[factKey]bool{}
	for _, f := range slices.Concat(old, now) {
		key := f.key()
		if told[key] {
			continue
		}
		told[key] = true
		argument := key
		argument.property = ""
		if f.Property != "" && (oldValues.of(argument) == Unset || nowValues.of(argument) == Unset) {
			continue // the argument itself is told
		}
		d := Difference{f.Argument, f.Place, f.Property, oldValues.of(key), nowValues.of(key)}
		if d.Before != d.After {
			out = append(out, d)
		}
	}
	return out
}

// factKey is the same for two facts that can be compared. Two devices in one place can, whatever
// their drivers are.
type factKey struct{ flag, place, property string }

func (f Fact) key() factKey {
	flag, _, _ := strings.Cut(f.Argument, " ")
	return factKey{flag, f.Place, f.Property}
}

// valuesByKey are a command line's facts, as Difference shows their values.
type valuesByKey map[factKey]string

func values(facts []Fact) valuesByKey {
	out := valuesByKey{}
	for _, f := range facts {
		switch {
		case f.Property == "":
			out[f.key()] = there
		case f.Value == "":
			out[f.key()] = `""`
		default:
			out[f.key()] = f.Value
		}
	}
	return out
}

func (v valuesByKey) of(key factKey) string {
	if value, ok := v[key]; ok {
		return value
	}
	return Unset
}
