package check

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"

	"github.com/kubeqemu/kubeqemu/qemuargs/tool/schema"
)

// Section is the arguments of one QEMU out of a text.
type Section struct {
	Title   string // what stood before them after "# "; may be empty
	Program string // the program's name, such as qemu-system-x86_64; empty if it is not there
	Args    []string
}

// MaxText bounds a text, in bytes.
const MaxText = 8 << 20

var (
	errQuote = errors.New("a quote is not closed")
	errNone  = errors.New("there are no arguments")
	errLong  = fmt.Errorf("it is longer than %d bytes", MaxText)
)

// Parse reads arguments out of a text of either form: a command for a shell, perhaps on several lines that end in "\",
// or one option a line with its value as it is, as qemuargs render and golden write it. There lines that begin with "#
// " are titles, each of another machine. A third form is /proc/PID/cmdline, in which each word ends in a zero byte.
func Parse(text string) ([]Section, error) {
	if len(text) > MaxText {
		return nil, errLong
	}
	sections, err := []Section{}, error(nil)
	switch {
	case strings.Contains(text, "\x00"):
		words := strings.Split(strings.TrimSuffix(strings.TrimRight(text, "\n"), "\x00"), "\x00")
		sections = append(sections, section(words))
	case byLine(text):
		sections = lined(text)
	default:
		var words []string
		words, err = shellWords(text)
		sections = append(sections, section(words))
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

// another is a line that has a second option after a value that is neither JSON nor a kernel's arguments.
var another = regexp.MustCompile(`^-[^ ]+ [^ {][^ ]* +--?[a-zA-Z][a-zA-Z0-9_-]*( |$)`)

// byLine reports whether a text has one option a line: each line is an option, a title or a value of its own, and none
// goes on in the next. A line with two options is a shell's. A single line is a shell's, unless its value is JSON
// without quotes.
func byLine(text string) bool {
	options, titles := 0, 0
	last, several := "", false
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
		several = several || another.MatchString(line) && !strings.HasPrefix(line, "-append ")
	}
	_, value, _ := strings.Cut(last, " ")
	return titles > 0 || options > 1 && !several || strings.HasPrefix(value, "{")
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

// section cuts the words of a command after its program, QEMU. What runs QEMU may have options of its own, such as
// numactl's. Where the first word is an option, all words are QEMU's arguments.
func section(words []string) Section {
	runner := true // there was no option yet
	for i, w := range words {
		name := path.Base(w)
		switch {
		case i == 0 && strings.HasPrefix(w, "-"):
			return Section{Args: words}
		case strings.HasPrefix(w, "-"):
			runner = false
		case runner && strings.HasPrefix(name, "qemu"), isQEMU(name) && !takesName(words[max(0, i-1)]):
			return Section{Program: name, Args: words[i+1:]}
		}
	}
	return Section{Args: words}
}

// isQEMU reports whether a program's name is one of QEMU's.
func isQEMU(name string) bool {
	return strings.HasPrefix(name, "qemu-system-") || name == "qemu-kvm" || name == "kvm"
}

// takesName reports whether a word is an option of QEMU's whose value may be named as a program is: "-accel kvm".
func takesName(word string) bool {
	option, dashed := strings.CutPrefix(word, "-")
	option = strings.TrimPrefix(option, "-")
	return dashed && (option == "accel" || option == "name")
}

// Program warns of a program that is not the QEMU of a schema: the QEMU of another architecture takes other arguments.
func Program(name string, s *schema.Schema) (Problem, bool) {
	arch, ok := strings.CutPrefix(name, "qemu-system-")
	if !ok || arch == s.Arch {
		return Problem{}, false
	}
	text := fmt.Sprintf("the schema is that of qemu-system-%s, which has other devices, machine types and CPU models", s.Arch)
	return Problem{Argument: printable(shorten(name)), Text: text, Warning: true}, true
}

// shellWords splits a command as a POSIX shell does, without its variables and other substitutions. Beyond a shell it
// takes JSON without quotes for one word, since ps prints it so.
func shellWords(text string) ([]string, error) {
	var words []string
	var b strings.Builder
	var quote byte
	inWord, bare := false, true // bare: all JSON without quotes was JSON until here
	for i := 0; i < len(text); i++ {
		ch := text[i]
		switch {
		case ch == '#' && quote == 0 && !inWord:
			for i+1 < len(text) && text[i+1] != '\n' {
				i++
			}
		case bare && quote == 0 && !inWord && strings.HasPrefix(text[i:], `{"`):
			var word json.RawMessage
			if bare = json.NewDecoder(strings.NewReader(text[i:])).Decode(&word) == nil; !bare {
				i-- // again, as a shell
				continue
			}
			b.Write(word)
			i += len(word) - 1
			inWord = true
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
