// Package jsonsize counts what a JSON text holds before it is decoded. Decoding takes memory:
// an empty object is two bytes of text, and may be hundreds as a struct. Counting takes no
// memory, and accepts any text.
package jsonsize

// Values is how many values a text has at most: each but the first follows a comma
// or an opening bracket.
func Values(text []byte) int { return count(text, false) }

// NamesAndValues is how many values, and names of objects' fields, a text has at
// most: a colon follows each name.
func NamesAndValues(text []byte) int { return count(text, true) }

func count(text []byte, names bool) int {
	n, quoted := 1, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == ',' || c == '{' || c == '[' || names && c == ':'):
			n++
		}
	}
	return n
}
