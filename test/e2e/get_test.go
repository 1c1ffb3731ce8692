package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
)

// getter gets objects as kubectl get does, for the many questions of a test
// that waits: a hundred kubectls a second would leave the guests no CPU. It also
// makes a test's namespace, and deletes its VMs and the namespace.
type getter struct {
	client rest.Interface
	mapper meta.RESTMapper
}

// getters has one, made for the first who asks. The cluster is there by then.
var getters = sync.OnceValues(newGetter)

func newGetter() (*getter, error) {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // as many as kubectl would
	kinds, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	cached := memory.NewMemCacheClient(kinds)
	return &getter{kinds.RESTClient(), restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(cached), cached, nil)}, nil
}

// getObject is kubectl get, with -n, -A, -l and --field-selector, of one kind.
func getObject[T any](args ...string) (*T, error) {
	g, err := getters()
	if err != nil {
		return nil, err
	}
	text, err := g.get(args)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", strings.Join(args, " "), err)
	}
	object := new(T)
	if err := json.Unmarshal(text, object); err != nil {
		return nil, fmt.Errorf("decode %s: %w", strings.Join(args, " "), err)
	}
	return object, nil
}

// getTimeout bounds one question; an API server that is stopped by a test
// leaves it open.
const getTimeout = 20 * time.Second

func (g *getter) get(args []string) ([]byte, error) {
	words, options := split(args)
	flags := flag.NewFlagSet("get", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	namespace, all := flags.String("n", "default", ""), flags.Bool("A", false, "")
	labels, fields := flags.String("l", "", ""), flags.String("field-selector", "", "")
	if err := flags.Parse(options); err != nil {
		return nil, err
	}
	if len(words) == 0 || len(words) > 2 {
		return nil, fmt.Errorf("%q is no kind and no name", words)
	}
	gvr, err := g.mapper.ResourceFor(schema.ParseGroupResource(words[0]).WithVersion(""))
	if err != nil {
		return nil, err
	}
	kind, err := g.mapper.KindFor(gvr)
	if err != nil {
		return nil, err
	}
	mapping, err := g.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	root := path.Join("/apis", gvr.Group, gvr.Version)
	if gvr.Group == "" {
		root = path.Join("/api", gvr.Version)
	}
	request := g.client.Get().AbsPath(root).Timeout(getTimeout)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace && !*all {
		request = request.Namespace(*namespace)
	}
	request = request.Resource(gvr.Resource)
	if len(words) == 2 {
		request = request.Name(words[1])
	}
	if *labels != "" {
		request = request.Param("labelSelector", *labels)
	}
	if *fields != "" {
		request = request.Param("fieldSelector", *fields)
	}
	return request.Do(context.Background()).Raw()
}

// makeNamespace is kubectl create namespace. The labels are KEY=VALUE.
func makeNamespace(name string, labels []string) error {
	g, err := getters()
	if err != nil {
		return err
	}
	namespace := corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for _, label := range labels {
		key, value, found := strings.Cut(label, "=")
		if !found {
			return fmt.Errorf("make namespace %s: the label %q is not KEY=VALUE", name, label)
		}
		namespace.Labels[key] = value
	}
	text, err := json.Marshal(namespace)
	if err != nil {
		return err
	}
	if err := g.client.Post().AbsPath("/api/v1/namespaces").SetHeader("Content-Type", "application/json").Body(text).
		Timeout(patience).Do(context.Background()).Error(); err != nil {
		return fmt.Errorf("make namespace %s: %w", name, err)
	}
	return nil
}

// deleteVMs is kubectl delete vm,vmi --all: it deletes the VMs and the VMIs of a namespace, and waits until
// none is left, of those that came meanwhile too.
func deleteVMs(namespace string) error {
	var unknown error
	err := poll(func() error {
		var left []string
		for _, kind := range []string{"virtualmachines", "virtualmachineinstances"} {
			all, err := getObject[metav1.PartialObjectMetadataList]("-n", namespace, kind)
			if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) { // the API server does not serve it
				unknown = err
				return nil
			}
			if err != nil {
				return err
			}
			for _, object := range all.Items {
				left = append(left, kind+"/"+object.Name)
				if object.DeletionTimestamp != nil {
					continue
				}
				if err := deleteObject("/apis/kubevirt.io/v1/namespaces", namespace, kind, object.Name); err != nil {
					return err
				}
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("delete all of namespace %s: %s are still there", namespace, strings.Join(left, ", "))
		}
		return nil
	})
	return errors.Join(err, unknown)
}

// deleteObject is kubectl delete --wait=false --ignore-not-found of the object of an API path.
func deleteObject(elements ...string) error {
	g, err := getters()
	if err != nil {
		return err
	}
	err = g.client.Delete().AbsPath(elements...).Timeout(getTimeout).Do(context.Background()).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete %s: %w", path.Join(elements...), err)
	}
	return nil
}

// split tells words from options, whose values follow them.
func split(args []string) (words, options []string) {
	for i := 0; i < len(args); i++ {
		switch {
		case !strings.HasPrefix(args[i], "-"):
			words = append(words, args[i])
		case args[i] == "-A" || strings.Contains(args[i], "=") || i+1 == len(args):
			options = append(options, args[i])
		default:
			options = append(options, args[i], args[i+1])
			i++
		}
	}
	return words, options
}
