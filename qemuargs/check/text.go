package check

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// Section is the arguments of one QEMU out of a text.
type Section struct {
	Title string // what stood before them after "# "; may be empty
	Args  []string
}

// MaxText bounds a text, in bytes.
const MaxText = 8 << 20

var (
	errQuote = errors.New("a quote is not closed")
	errNone  = errors.New("there are no arguments")
	errLong  = fmt.Errorf("it is longer than %d bytes", MaxText)
)

// Parse reads arguments out of a text of either form: a command for a shell, perhaps on several lines that end in "\", or
// one option a line with its value as it is, as qemuargs render and golden write it. There lines that begin with "# " are
// titles, each of another machine.
func Parse(text string) ([]Section, error) {
	if len(text) > MaxText {
		return nil, errLong
	}
	sections, err := []Section{}, error(nil)
	if byLine(text) {
		sections = lined(text)
	} else {
		var words []string
		words, err = shellWords(text)
		sections = append(sections, Section{Args: withoutProgram(words)})
	}
	n := 0
	for _, s := range sections {
		n += len(s.Args)
	}
	if err == nil && n == 0 {
		err = errNone
	}
	return sections, err
}

// byLine says whether a text has one option a line: each line is an option, a title or a value of its own, and none goes
// on in the next. A single line is a shell's, unless its value is JSON without quotes.
func byLine(text string) bool {
	options, titles := 0, 0
	last := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
			continue
		case strings.HasPrefix(line, "#"):
			titles++
			continue
		case strings.HasSuffix(line, `\`), options == 0 && !strings.HasPrefix(line, "-"):
			return false
		}
		options++
		last = line
	}
	_, value, _ := strings.Cut(last, " ")
	return titles > 0 || options > 1 || strings.HasPrefix(value, "{")
}

// lined reads one option a line.
func lined(text string) []Section {
	sections := []Section{{}}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		s := &sections[len(sections)-1]
		switch title, isTitle := strings.CutPrefix(line, "#"); {
		case strings.TrimSpace(line) == "":
		case isTitle && len(s.Args) == 0:
			s.Title = strings.TrimSpace(title)
		case isTitle:
			sections = append(sections, Section{Title: strings.TrimSpace(title)})
		case strings.HasPrefix(strings.TrimSpace(line), "-"):
			flag, value, ok := strings.Cut(strings.TrimLeft(line, " \t"), " ")
			s.Args = append(s.Args, flag)
			if ok {
				s.Args = append(s.Args, value)
			}
		default:
			s.Args = append(s.Args, line)
		}
	}
	return sections
}

// withoutProgram leaves out what stands before the first option: the program, and what runs it.
func withoutProgram(words []string) []string {
	for i, w := range words {
		if strings.HasPrefix(w, "-") {
			return words
		}
		if strings.HasPrefix(path.Base(w), "qemu") {
			return words[i+1:]
		}
	}
	return words
}

// shellWords splits a command as a POSIX shell does, without its variables and other substitutions.
func shellWords(text string) ([]string, error) {
	var words []string
	var b strings.Builder
	var quote byte
	inWord := false
	for i := 0; i < len(text); i++ {
		ch := text[i]
		switch {
		case quote == '\'' && ch != quote, quote == '"' && ch != quote && ch != '\\':
			b.WriteByte(ch)
		case quote != 0 && ch == quote:
			quote = 0
		case ch == '\\' && i+1 < len(text):
			i++
			if text[i] == '\r' && i+1 < len(text) && text[i+1] == '\n' {
				i++
			}
			if quote == '"' && !strings.ContainsRune("\"\\$`\n", rune(text[i])) {
				b.WriteByte('\\')
			}
			if text[i] != '\n' {
				b.WriteByte(text[i])
				inWord = true
			}
		case ch == '\'' || ch == '"':
			quote, inWord = ch, true
		case ch == ' ' || ch == '\t' || ch == '\n' || ch == '\r':
			if inWord {
				words = append(words, b.String())
				b.Reset()
			}
			inWord = false
		default:
			b.WriteByte(ch)
			inWord = true
		}
	}
	if quote != 0 {
		return nil, errQuote
	}
	if inWord {
		words = append(words, b.String())
	}
	return words, nil
}
