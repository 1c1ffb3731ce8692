// Package rights reads what the shipped manifests grant to whom, and says what
// nobody may be granted: the tests here hold the manifests against it, those in
// test/admission what a real API server says.
package rights

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	sigsyaml "sigs.k8s.io/yaml"
)

// Manifests are the objects of an installation that have to do with rights.
type Manifests struct {
	Accounts     []corev1.ServiceAccount
	ClusterRoles map[string]rbacv1.ClusterRole
	Roles        map[string]rbacv1.Role // by namespace/name
	Bindings     []Binding
	DaemonSets   []appsv1.DaemonSet
	Deployments  []appsv1.Deployment
}

// Binding is a RoleBinding, or a ClusterRoleBinding, which has no namespace.
type Binding struct {
	Name, Namespace string
	Role            rbacv1.RoleRef
	Subjects        []rbacv1.Subject
}

// Grant is one rule that somebody has, in a namespace or, where that is empty,
// in all of them.
type Grant struct {
	rbacv1.PolicyRule
	Namespace string
}

// Load reads what the kustomization in a folder names. It reads no more of
// kustomize than the installation uses, and fails where it might miss something.
func Load(folder string) (*Manifests, error) {
	m := &Manifests{ClusterRoles: map[string]rbacv1.ClusterRole{}, Roles: map[string]rbacv1.Role{}}
	return m, m.load(folder)
}

func (m *Manifests) load(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("read manifests: %w", err)
	}
	if !info.IsDir() {
		return m.file(path)
	}
	text, err := os.ReadFile(filepath.Join(path, "kustomization.yaml"))
	if err != nil {
		return fmt.Errorf("read manifests: %w", err)
	}
	var k map[string]any
	if err := sigsyaml.UnmarshalStrict(text, &k); err != nil {
		return fmt.Errorf("read kustomization of %s: %w", path, err)
	}
	var resources []string
	for field, value := range k {
		switch field {
		case "resources":
			for _, r := range value.([]any) {
				resources = append(resources, r.(string))
			}
		case "images", "replacements", "configMapGenerator", "generatorOptions": // grant nothing
		case "labels":
			if strings.Contains(string(text), "rbac.authorization.k8s.io") {
				return fmt.Errorf("read kustomization of %s: it adds rules to roles by labels", path)
			}
		default:
			return fmt.Errorf("read kustomization of %s: what %s does to rights is not known here", path, field)
		}
	}
	slices.Sort(resources)
	for _, r := range resources {
		if err := m.load(filepath.Join(path, r)); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manifests) file(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read manifests: %w", err)
	}
	return m.Add(text, path)
}

// Add takes the objects of a YAML text.
func (m *Manifests) Add(text []byte, from string) error {
	decoder := scheme.Codecs.UniversalDeserializer()
	for docs := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read %s: %w", from, err)
		}
		object, _, err := decoder.Decode(doc, nil, nil)
		if runtime.IsNotRegisteredError(err) {
			continue // a CustomResourceDefinition grants nothing
		} else if err != nil {
			return fmt.Errorf("read %s: %w", from, err)
		}
		m.add(object)
	}
}

func (m *Manifests) add(object runtime.Object) {
	switch o := object.(type) {
	case *corev1.ServiceAccount:
		m.Accounts = append(m.Accounts, *o)
	case *rbacv1.ClusterRole:
		m.ClusterRoles[o.Name] = *o
	case *rbacv1.Role:
		m.Roles[o.Namespace+"/"+o.Name] = *o
	case *rbacv1.ClusterRoleBinding:
		m.users(o.Subjects)
		m.Bindings = append(m.Bindings, Binding{Name: o.Name, Role: o.RoleRef, Subjects: o.Subjects})
	case *rbacv1.RoleBinding:
		m.Bindings = append(m.Bindings, Binding{o.Name, o.Namespace, o.RoleRef, o.Subjects})
	case *appsv1.DaemonSet:
		m.DaemonSets = append(m.DaemonSets, *o)
	case *appsv1.Deployment:
		m.Deployments = append(m.Deployments, *o)
	}
}

// users adds the users that a binding names as accounts without a namespace.
func (m *Manifests) users(subjects []rbacv1.Subject) {
	for _, s := range subjects {
		known := slices.ContainsFunc(m.Accounts, func(a corev1.ServiceAccount) bool { return a.Namespace == "" && a.Name == s.Name })
		if s.Kind == rbacv1.UserKind && !strings.HasPrefix(s.Name, "system:") && !known {
			m.Accounts = append(m.Accounts, corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: s.Name}})
		}
	}
}

// Of returns what a service account, or a user without a namespace, is granted. A role that is not part of the
// manifests is an error: nobody knows what it grants.
func (m *Manifests) Of(namespace, account string) ([]Grant, error) {
	var grants []Grant
	for _, b := range m.Bindings {
		if !slices.ContainsFunc(b.Subjects, func(s rbacv1.Subject) bool { return isAccount(s, namespace, account) }) {
			continue
		}
		rules, err := m.rules(b)
		if err != nil {
			return nil, err
		}
		for _, rule := range rules {
			grants = append(grants, Grant{rule, b.Namespace})
		}
	}
	return grants, nil
}

// isAccount says whether a subject is the account, or a group that it is in.
func isAccount(s rbacv1.Subject, namespace, account string) bool {
	switch s.Kind {
	case rbacv1.ServiceAccountKind:
		return s.Namespace == namespace && s.Name == account
	case rbacv1.UserKind:
		return s.Name == account && namespace == "" || s.Name == "system:serviceaccount:"+namespace+":"+account
	}
	return slices.Contains([]string{"system:authenticated", "system:unauthenticated", "system:serviceaccounts", "system:serviceaccounts:" + namespace}, s.Name)
}

func (m *Manifests) rules(b Binding) ([]rbacv1.PolicyRule, error) {
	if b.Role.Kind == "Role" {
		if role, ok := m.Roles[b.Namespace+"/"+b.Role.Name]; ok {
			return role.Rules, nil
		}
	} else if role, ok := m.ClusterRoles[b.Role.Name]; ok && role.AggregationRule == nil {
		return role.Rules, nil
	}
	return nil, fmt.Errorf("binding %s grants the %s %s, which is not among the manifests or is aggregated", b.Name, b.Role.Kind, b.Role.Name)
}

// String is one line for each right.
func (g Grant) String() string {
	where := "everywhere"
	if g.Namespace != "" {
		where = "in " + g.Namespace
	}
	if len(g.NonResourceURLs) > 0 {
		return fmt.Sprintf("%v %v", g.Verbs, g.NonResourceURLs)
	}
	line := fmt.Sprintf("%s: %s of %s %s", strings.Join(g.Verbs, ","), strings.Join(g.Resources, ","), quoted(g.APIGroups), where)
	if len(g.ResourceNames) > 0 {
		line += " named " + strings.Join(g.ResourceNames, ",")
	}
	return line
}

func quoted(groups []string) string {
	named := slices.Clone(groups)
	for i, g := range named {
		if g == "" {
			named[i] = "core"
		}
	}
	return strings.Join(named, ",")
}
