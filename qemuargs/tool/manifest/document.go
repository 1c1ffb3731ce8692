// Package manifest reads Kubernetes manifests, without a cluster, into the
// VirtualMachineInstances that virt-controller would make of them. It knows
// VirtualMachineInstances, VirtualMachines, ReplicaSets and pools, and the instancetypes,
// preferences and presets beside them. Its errors name the file, the line and the field.
package manifest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
	sigsyaml "sigs.k8s.io/yaml"

	poolv1beta1 "github.com/kubeqemu/kubeqemu/api/pool/v1beta1"
	v1 "github.com/kubeqemu/kubeqemu/api/v1"
	"github.com/kubeqemu/kubeqemu/qemuargs/tool/experiment"
)

// maxDocument bounds one document, in bytes. etcd takes 1.5 MiB.
const maxDocument = 4 << 20

// Stdin is the name of standard input.
const Stdin = "-"

// Document is one YAML document.
type Document struct {
	metav1.PartialObjectMetadata
	// File is the document's file, or Stdin.
	File string

	line int // of the document's first line in File, from 1
	data []byte
	// node is the object in the text of a List, whose first line is line. It is nil for a document
	// of its own.
	node *yaml.Node
	// unread is why a file of a folder is not read. The document is nothing else then.
	unread *Error
}

// Set is the documents of an input. An instancetype may stand in another file than the VM
// that names it.
type Set []Document

// Open reads files and folders. Of a folder it reads the files that end in .yaml, .yml or
// .json, also in the folders below, in the order of their names. A file of a folder that is no
// manifest, such as a template of Helm, is passed over, and Warnings names it. Stdin stands for
// stdin, unless stdin is nil.
func Open(names []string, stdin io.Reader) (Set, error) {
	var set Set
	for _, name := range names {
		documents, err := open(name, stdin)
		if err != nil {
			return nil, err
		}
		set = append(set, documents...)
	}
	return set, nil
}

func open(name string, stdin io.Reader) (Set, error) {
	if name == Stdin && stdin != nil {
		return Read(name, stdin)
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return readFile(name)
	}
	var set Set
	err = Walk(name, extensions, func(path string) error {
		documents, err := readFile(path)
		set = append(set, documents...)
		if unread := new(Error); errors.As(err, &unread) {
			set, err = append(set, Document{File: path, unread: unread}), nil
		}
		return err
	})
	return set, err
}

// Warnings returns what was passed over in the documents although it may hold VMs: the files of folders
// that are no manifests, and objects of another project's kinds that have the names of Kubeqemu's.
func (s Set) Warnings() []string {
	var out []string
	for _, d := range s {
		group := d.GroupVersionKind().Group
		switch {
		case d.unread != nil:
			out = append(out, fmt.Sprintf("%v; the file is passed over", d.unread))
		case slices.Contains(kinds, d.Kind) && !isOurs(group):
			out = append(out, d.problem("apiVersion", fmt.Sprintf("is passed over: %s of %q is not Kubeqemu's, which has the apiVersion %s or %s",
				d.Kind, d.APIVersion, v1.GroupVersion, poolv1beta1.GroupVersion)).Error())
		}
	}
	return out
}

// extensions are those of manifests.
var extensions = []string{".yaml", ".yml", ".json"}

// Walk calls do for the files below a folder that have one of the extensions, in the order of
// their names. A pipe is an error: a read of it would wait for ever.
func Walk(folder string, extensions []string, do func(path string) error) error {
	root := folder + string(filepath.Separator) // the separator follows a link to a folder
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && strings.HasPrefix(entry.Name(), ".."):
			// kubelet writes a ConfigMap's files into a folder such as ..2026_11_01, and makes
			// links to these files beside the folder.
			return fs.SkipDir
		case entry.IsDir() || !slices.Contains(extensions, filepath.Ext(path)):
			return nil
		}
		if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
			return errors.Join(err, fmt.Errorf("%s is no regular file", path))
		}
		return do(path)
	})
}

func readFile(name string) (Set, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Read(name, f)
}

// Read splits an input into its documents.
func Read(file string, in io.Reader) (Set, error) {
	var set Set
	var data []byte
	first, line := 1, 0
	end := func() error {
		defer func() { data, first = nil, line+1 }()
		if isBlank(data) {
			return nil
		}
		d := Document{File: file, line: first, data: data}
		if err := sigsyaml.Unmarshal(data, &d.PartialObjectMetadata); err != nil {
			return d.problem("", fmt.Sprintf("is no YAML of an object: %v%s", d.inFile(err), d.advice()))
		}
		documents, err := d.items()
		set = append(set, documents...)
		return err
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxDocument)
	for lines.Scan() {
		line++
		if rest, ok := separator(lines.Text()); ok {
			if err := end(); err != nil {
				return nil, err
			}
			if rest != "" { // a document may begin on the separator's line
				first, data = line, append([]byte(rest), '\n')
			}
			continue
		}
		if data = append(append(data, lines.Bytes()...), '\n'); len(data) > maxDocument {
			return nil, fmt.Errorf("%s:%d: a document has more than %d bytes", file, first, maxDocument)
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("%s:%d: a line has more than %d bytes", file, line+1, maxDocument)
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return set, end()
}

// advice returns what to do with a text that is no YAML, where the text says what it is.
func (d Document) advice() string {
	if bytes.Contains(d.data, []byte("{{")) {
		return "; it looks like a template: render it first, as in: helm template CHART | qemuargs render -"
	}
	return ""
}

// listed returns the kind of the items of a List: empty for the List that kubectl get prints, whose items say their
// kinds, and VirtualMachine for a VirtualMachineList, as the API server writes it. ok is false for another object.
func (d Document) listed() (kind string, ok bool) {
	kind, ok = strings.CutSuffix(d.Kind, "List")
	if kind == "" {
		return "", ok && d.APIVersion == "v1"
	}
	return kind, ok && slices.Contains(kinds, kind) && isOurs(d.GroupVersionKind().Group)
}

// items returns the objects of a List, and otherwise the document itself.
func (d Document) items() (Set, error) {
	kind, ok := d.listed()
	if !ok {
		return Set{d}, nil
	}
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	text, err := sigsyaml.YAMLToJSONStrict(d.data)
	if err != nil {
		return nil, d.problem("", d.inFile(err).Error())
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, d.problem("items", fmt.Sprintf("items: Invalid value: %v", err))
	}
	nodes := &yaml.Node{}
	if root := d.root(); root != nil {
		if _, found := child(root, "items"); found != nil { // items may also come with a merge key
			nodes = found
		}
	}
	var set Set
	for n, data := range list.Items {
		path := fmt.Sprintf("items[%d]", n)
		item := Document{File: d.File, line: d.line, data: data}
		if _, item.node = child(nodes, strconv.Itoa(n)); item.node == nil {
			return nil, d.problem(path, path+": Invalid value: is no object of the List")
		}
		if err := json.Unmarshal(data, &item.PartialObjectMetadata); err != nil {
			return nil, d.problem(path, fmt.Sprintf("%s: Invalid value: %v", path, err))
		}
		if kind != "" && item.Kind == "" { // the API server leaves out what the list says
			item.Kind, item.APIVersion = kind, d.APIVersion
		}
		set = append(set, item)
	}
	return set, nil
}

// isBlank reports whether a document has only comments and directives.
func isBlank(data []byte) bool {
	for line := range bytes.Lines(data) {
		// A directive such as %YAML stands before the "---" of its document (YAML 1.2, 6.8).
		if line[0] == '%' {
			continue
		}
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return false
		}
	}
	return true
}

// separator reports whether a line stands between two documents (YAML 1.2, 9.2), and returns what
// the next document has on the line.
func separator(line string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(line, "---")
	if !ok || rest != "" && rest[0] != ' ' && rest[0] != '\t' {
		return "", false
	}
	if rest = strings.TrimSpace(rest); strings.HasPrefix(rest, "#") {
		rest = ""
	}
	return rest, true
}

// decode decodes the document. It refuses unknown fields, and fields that stand there twice.
func (d Document) decode(into any) error { return d.decodeData(d.data, into) }

func (d Document) decodeData(data []byte, into any) error {
	text, err := sigsyaml.YAMLToJSONStrict(data)
	if err != nil {
		return d.problem("", d.inFile(err).Error())
	}
	text = withoutStatus(text)
	strict, err := kjson.UnmarshalStrict(text, into)
	var problems []error
	for _, e := range strict[:min(len(strict), maxProblems)] {
		var at kjson.FieldError
		if errors.As(e, &at) {
			problems = append(problems, d.problem(at.FieldPath(), e.Error()))
		} else {
			problems = append(problems, d.problem("", e.Error()))
		}
	}
	problems = append(problems, d.more(len(strict)))
	var wrongType *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrongType):
		problems = append(problems, d.problem(wrongType.Field, fmt.Sprintf("%s: Invalid value: %s, want %s", wrongType.Field, wrongType.Value, wrongType.Type)))
	case err != nil:
		path := newCulprit(text, into, err).path()
		problems = append(problems, d.problem(path, strings.TrimPrefix(fmt.Sprintf("%s: Invalid value: %v", path, err), ": ")))
	}
	return errors.Join(problems...)
}

// withoutStatus returns the JSON of an object without its status, at which nobody looks. A cluster's
// object may have fields there that Kubeqemu's API does not have.
func withoutStatus(text []byte) []byte {
	var object map[string]json.RawMessage
	if json.Unmarshal(text, &object) != nil || object["status"] == nil {
		return text // an error is the decoder's to say
	}
	delete(object, "status")
	plain, err := json.Marshal(object)
	if err != nil {
		return text
	}
	return plain
}

// maxProblems bounds how many errors of a document are printed. Each is looked up in the text.
const maxProblems = 50

// more returns an error that says how many errors are not printed, out of n.
func (d Document) more(n int) error {
	if n <= maxProblems {
		return nil
	}
	return d.problem("", fmt.Sprintf("and %d errors more", n-maxProblems))
}

// inFile returns the error of a YAML parser with the lines of the file, where the parser
// counted the lines of the document.
func (d Document) inFile(err error) error {
	var v any
	if again := sigsyaml.UnmarshalStrict(slices.Concat(bytes.Repeat([]byte("\n"), d.line-1), d.data), &v); again != nil {
		err = again
	}
	return errors.New(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "))
}

// Error is what is wrong with one field of a document.
type Error struct {
	File string
	Line int // of the field, or of the next field above it that the document has
	// Object is the kind and the name, such as VirtualMachine "web".
	Object string
	Text   string
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d: %s: %s", e.File, e.Line, e.Object, e.Text)
}

// problem returns an error at a field of the document; path is such as spec.domain.devices.disks[0].
func (d Document) problem(path, text string) *Error {
	object := "document"
	if d.Kind != "" {
		object = fmt.Sprintf("%s %q", d.Kind, d.Name)
	}
	return &Error{File: d.File, Line: d.Line(path), Object: object, Text: text}
}

// Line returns the line of a field, or of the nearest field above it that the document has.
func (d Document) Line(path string) int {
	return d.lineIn(d.root(), path)
}

// root returns the document as YAML has it, or nil.
func (d Document) root() *yaml.Node {
	if d.node != nil {
		return d.node
	}
	var root yaml.Node
	if yaml.Unmarshal(d.data, &root) != nil || len(root.Content) == 0 {
		return nil
	}
	return root.Content[0]
}

func (d Document) lineIn(node *yaml.Node, path string) int {
	if node == nil {
		return d.line
	}
	line := node.Line
	for _, step := range experiment.Steps(path) {
		key, next := child(node, step)
		if next == nil {
			break
		}
		node, line = next, key
	}
	return d.line + line - 1
}

// child returns the field or element of a node, and the line on which it begins.
func child(node *yaml.Node, step string) (line int, value *yaml.Node) {
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == step {
				return node.Content[i].Line, node.Content[i+1]
			}
		}
	case yaml.SequenceNode:
		var i int
		if _, err := fmt.Sscanf(step, "%d", &i); err == nil && i >= 0 && i < len(node.Content) {
			return node.Content[i].Line, node.Content[i]
		}
	case yaml.AliasNode:
		return child(node.Alias, step)
	}
	return 0, nil
}
