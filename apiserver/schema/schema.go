// Package schema checks objects of older API versions with the schemas of the CRDs' stored
// versions, as the API server checks objects of the stored version. It is linked by virt-schema
// only (see apiserver/older).
package schema

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	runtimeschema "k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"

	"github.com/kubeqemu/kubeqemu/apiserver/older"
)

// Serve answers questions until there are no more. A question that cannot be answered ends
// nothing.
func Serve(checker *Checker, questions io.Reader, answers io.Writer) error {
	for {
		var question older.Question
		err := older.Read(questions, &question)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		answer, err := checker.Check(context.Background(), question)
		if err != nil {
			answer = failure(err)
		}
		if err = older.Write(answers, answer); errors.Is(err, older.ErrTooLong) {
			err = older.Write(answers, failure(err))
		}
		if err != nil {
			return err
		}
	}
}

// failure says why there is no answer.
func failure(err error) older.Answer { return older.Answer{Failure: cut(err.Error())} }

// Checker checks objects of all kinds. It reads a kind's CRD when it is first asked about the
// kind. It is for one goroutine.
type Checker struct {
	crds  fs.FS
	kinds map[string]*kind
}

// NewChecker makes a Checker of CRDs, whose files are called <group>_<plural>.yaml.
func NewChecker(crds fs.FS) *Checker { return &Checker{crds: crds, kinds: map[string]*kind{}} }

// Check answers a question.
func (c *Checker) Check(ctx context.Context, question older.Question) (older.Answer, error) {
	k, err := c.kind(question.Group, question.Resource)
	if err != nil {
		return older.Answer{}, err
	}
	object, err := read(question.Object)
	if err != nil {
		return older.Answer{}, err
	}
	var old map[string]any
	if len(question.Old) > 0 {
		if old, err = read(question.Old); err != nil {
			return older.Answer{}, err
		}
		k.convert(old)
	}
	unknown := k.convert(object)
	var answer older.Answer
	answer.Unknown = shortened(unknown)
	if errs := k.errors(ctx, object, old); len(errs) > 0 {
		status := apierrors.NewInvalid(runtimeschema.GroupKind{Group: k.crd.Spec.Group, Kind: k.crd.Spec.Names.Kind}, question.Name, bounded(errs)).Status()
		answer.Invalid = &status
		return answer, nil
	}
	if answer.Object, err = older.Encode(object); err != nil {
		return older.Answer{}, fmt.Errorf("write object: %w", err)
	}
	return answer, nil
}

func (c *Checker) kind(group, resource string) (*kind, error) {
	name := group + "_" + resource + ".yaml"
	if k, ok := c.kinds[name]; ok {
		return k, nil
	}
	text, err := fs.ReadFile(c.crds, name)
	if err != nil {
		return nil, fmt.Errorf("read CRD: %w", err)
	}
	k, err := newKind(text)
	if err != nil {
		return nil, fmt.Errorf("read CRD %s: %w", name, err)
	}
	c.kinds[name] = k
	return k, nil
}

// read reads an object as the API server does: whole numbers stay whole.
func read(raw []byte) (map[string]any, error) {
	var object map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &object); err != nil {
		return nil, fmt.Errorf("read object: %w", err)
	}
	if object == nil {
		return nil, errors.New("read object: it is null")
	}
	return object, nil
}
