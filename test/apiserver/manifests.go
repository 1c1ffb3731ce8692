package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
	sigsyaml "sigs.k8s.io/yaml"
)

const crdKind = "CustomResourceDefinition"

// Read reads the objects of files, and of folders with a kustomization. It reads no more of kustomize than
// the objects that tests apply use, and fails where it might miss something.
func Read(paths ...string) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for _, path := range paths {
		objects, err := read(path)
		if err != nil {
			return nil, fmt.Errorf("read manifests: %w", err)
		}
		all = append(all, objects...)
	}
	return all, nil
}

// kustomization is what is known here of kustomize.
type kustomization struct {
	Resources []string `json:"resources"`
	Labels    []struct {
		Pairs map[string]string `json:"pairs"`
	} `json:"labels"`
}

func read(path string) ([]*unstructured.Unstructured, error) {
	file, info := path, (*kustomization)(nil)
	if stat, err := os.Stat(path); err != nil {
		return nil, err
	} else if stat.IsDir() {
		file, info = filepath.Join(path, "kustomization.yaml"), &kustomization{}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if info == nil {
		return Parse(string(text))
	}
	if err := sigsyaml.UnmarshalStrict(text, info); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var all []*unstructured.Unstructured
	for _, resource := range info.Resources {
		objects, err := read(filepath.Join(path, resource))
		if err != nil {
			return nil, err
		}
		all = append(all, objects...)
	}
	for _, object := range all {
		labels := object.GetLabels()
		for _, l := range info.Labels {
			for key, value := range l.Pairs {
				if labels == nil {
					labels = map[string]string{}
				}
				labels[key] = value
			}
		}
		object.SetLabels(labels)
	}
	return all, nil
}

// Parse reads the objects of a text, YAML or JSON.
func Parse(manifests string) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifests), 4096); ; {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(&object.Object); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		if len(object.Object) > 0 {
			all = append(all, object)
		}
	}
}

// Apply applies objects, as the administrator, as kubectl's server-side apply does. It begins with the
// definitions of kinds, and waits until the API server serves the kinds. Objects that belong into a namespace
// and name none come into the namespace default.
func (s *Server) Apply(ctx context.Context, objects ...*unstructured.Unstructured) error {
	return s.applyAll(ctx, metav1.NamespaceDefault, objects, client.ForceOwnership)
}

func (s *Server) applyAll(ctx context.Context, namespace string, objects []*unstructured.Unstructured,
	options ...client.PatchOption) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	isDefinition := func(object *unstructured.Unstructured) bool { return object.GetKind() == crdKind }
	var definitions []*unstructured.Unstructured
	for _, object := range objects {
		if isDefinition(object) {
			definitions = append(definitions, object)
			if err := s.apply(ctx, object, namespace, options...); err != nil {
				return err
			}
		}
	}
	if err := s.awaitServed(ctx, definitions); err != nil {
		return err
	}
	for _, object := range objects {
		if !isDefinition(object) {
			if err := s.apply(ctx, object, namespace, options...); err != nil {
				return err
			}
		}
	}
	return nil
}

// apply applies an object; one that belongs into a namespace and names none comes into that namespace.
func (s *Server) apply(ctx context.Context, object *unstructured.Unstructured, namespace string,
	options ...client.PatchOption) error {
	c, err := s.client()
	if err != nil {
		return err
	}
	object = object.DeepCopy()
	if object.GetNamespace() == "" {
		namespaced, err := c.IsObjectNamespaced(object)
		if err != nil {
			return err
		}
		if namespaced {
			object.SetNamespace(namespace)
		}
	}
	text, err := object.MarshalJSON()
	if err != nil {
		return err
	}
	strict := client.FieldValidation(metav1.FieldValidationStrict)
	options = append(slices.Clone(options), client.FieldOwner("kubectl"), strict)
	if err := c.Patch(ctx, object, client.RawPatch(types.ApplyPatchType, text), options...); err != nil {
		return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
	}
	return nil
}

// awaitServed waits until the API server serves the kinds of definitions. It asks for the lists of
// resources, which are short: definitions are long.
func (s *Server) awaitServed(ctx context.Context, definitions []*unstructured.Unstructured) error {
	if len(definitions) == 0 {
		return nil
	}
	asks, err := discovery.NewDiscoveryClientForConfig(s.Config)
	if err != nil {
		return err
	}
	missing, err := resources(definitions)
	if err != nil {
		return err
	}
	for {
		for version, names := range missing {
			list, err := asks.ServerResourcesForGroupVersion(version)
			if err != nil {
				continue // the group may be new
			}
			names = slices.DeleteFunc(names, func(name string) bool {
				return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == name })
			})
			if missing[version] = names; len(names) == 0 {
				delete(missing, version)
			}
		}
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the API server to serve %v: %w", missing, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// resources returns the served resources of definitions, by group and version.
func resources(definitions []*unstructured.Unstructured) (map[string][]string, error) {
	all := map[string][]string{}
	for _, definition := range definitions {
		group, _, _ := unstructured.NestedString(definition.Object, "spec", "group")
		plural, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "plural")
		versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
		for _, v := range versions {
			if version, ok := v.(map[string]any); ok && version["served"] == true {
				name := fmt.Sprintf("%s/%v", group, version["name"])
				all[name] = append(all[name], plural)
			}
		}
	}
	if len(all) == 0 {
		return nil, errors.New("find the versions of definitions: none is served")
	}
	return all, nil
}
