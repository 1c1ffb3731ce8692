package check

import (
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// shown returns a value as a problem names it.
func shown(value any) string {
	if w, ok := value.(word); ok {
		value = string(w)
	}
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return shorten(string(text))
}

// truth complains of a value that is no truth. In JSON QEMU takes true and false only; as a word, eight spellings
// (qapi_bool_parse).
func truth(value any) string {
	switch v := value.(type) {
	case bool:
		return ""
	case word:
		if slices.Contains([]string{"on", "off", "yes", "no", "true", "false", "y", "n"}, string(v)) {
			return ""
		}
		return "want on or off"
	}
	return "want true or false"
}

// text complains of a value that is no text.
func text(value any) string {
	switch value.(type) {
	case string, word:
		return ""
	}
	return "want a text in quotes"
}

// integer complains of a value that is no number of the type: int or uint, with the number of bits, or size.
func integer(value any, kind string) string {
	digits := ""
	switch v := value.(type) {
	case json.Number:
		digits = v.String()
		if strings.ContainsAny(digits, ".eE") {
			return "want a whole number"
		}
	case word:
		if kind == "size" {
			return size(string(v))
		}
		digits = string(v)
	default:
		return "want a number"
	}
	if len(digits) > longest {
		return "want a shorter number"
	}
	n, ok := new(big.Int).SetString(strings.TrimPrefix(digits, "+"), 0)
	if !ok || strings.Contains(digits, "_") {
		return "want a number"
	}
	if low, high := bounds(kind); n.Cmp(low) < 0 || n.Cmp(high) > 0 {
		return fmt.Sprintf("want a number from %s to %s", low, high)
	}
	return ""
}

// bounds returns the least and the greatest number of a type. QEMU wraps negative numbers of 64 bits.
func bounds(kind string) (low, high *big.Int) {
	one, bits, signed := big.NewInt(1), 64, true
	if name, ok := strings.CutPrefix(kind, "u"); ok {
		kind, signed = name, false
	}
	if n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(kind, "int"), "_t")); err == nil && n > 0 && n < 64 {
		bits = n
	}
	switch {
	case bits == 64 && (!signed || kind == "size"):
		return new(big.Int).Neg(new(big.Int).Lsh(one, 63)), new(big.Int).Sub(new(big.Int).Lsh(one, 64), one)
	case !signed:
		return big.NewInt(0), new(big.Int).Sub(new(big.Int).Lsh(one, uint(bits)), one)
	}
	edge := new(big.Int).Lsh(one, uint(bits-1))
	return new(big.Int).Neg(edge), new(big.Int).Sub(edge, one)
}

// size complains of a word that is no size: a number, perhaps with a fraction, and a letter for powers of 1024
// (util/cutils.c, do_strtosz).
func size(w string) string {
	number := strings.TrimSuffix(w, "B")
	if number == w {
		number = strings.TrimRight(w, "kKmMgGtTpPeE")
		if len(w)-len(number) > 1 {
			return "want a size, such as 512M"
		}
	}
	if _, err := strconv.ParseUint(number, 0, 64); err == nil {
		return ""
	}
	if f, err := strconv.ParseFloat(number, 64); err != nil || f < 0 || len(number) > longest || strings.Trim(number, "0123456789.") != "" {
		return "want a size, such as 512M"
	}
	return ""
}

// oneOf complains of a value that is none of a type's.
func oneOf(value any, values []string) string {
	s := ""
	switch v := value.(type) {
	case string:
		s = v
	case word:
		s = string(v)
	default:
		return "want a text in quotes"
	}
	if slices.Contains(values, s) {
		return ""
	}
	// Of long lists only the nearest is worth reading.
	if len(values) <= 8 {
		return "want " + strings.Join(values, ", ")
	}
	if meant := near(s, slices.Values(values)); meant != "" {
		return fmt.Sprintf("did you mean %q?", meant)
	}
	return "QEMU has no such value"
}
