package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/kubeqemu/kubeqemu/internal/testkit"
)

// Plane is a namespace of an API server, and virt-controllers that run some of the reconcilers there.
type Plane struct {
	*Space
	Client client.WithWatch
	scheme *runtime.Scheme
}

// NewPlane makes a Plane of a namespace. The kinds are names for kubectl: a test that fails shows their
// objects.
func NewPlane(space *Space, kinds []string, types ...func(*runtime.Scheme) error) *Plane {
	t := space.t
	t.Helper()
	p := &Plane{Space: space, scheme: runtime.NewScheme()}
	for _, add := range append(types, scheme.AddToScheme) {
		if err := add(p.scheme); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if p.Client, err = client.NewWithWatch(p.Config, client.Options{Scheme: p.scheme}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			out, err := p.Try("", "get", strings.Join(append(kinds, "events"), ","), "-o", "wide")
			t.Logf("%s (%v)", out, err)
		}
	})
	return p
}

// With returns the same plane for a part of the test, whose failures it reports.
func (p *Plane) With(t testing.TB) *Plane {
	space, of := *p.Space, *p
	space.t, of.Space = t, &space
	return &of
}

// Control starts a virt-controller, with its own rights, and ends it with the test. It is told of the
// objects of its namespaces; of all without one.
func (p *Plane) Control(setup func(ctrl.Manager) error, namespaces ...string) {
	p.t.Helper()
	told := cache.Options{}
	for _, namespace := range namespaces {
		if told.DefaultNamespaces == nil {
			told.DefaultNamespaces = map[string]cache.Config{}
		}
		told.DefaultNamespaces[namespace] = cache.Config{}
	}
	account := p.As("system:serviceaccount:kubevirt:virt-controller", "system:serviceaccounts", "system:serviceaccounts:kubevirt")
	mgr, err := ctrl.NewManager(account, ctrl.Options{Scheme: p.scheme, Cache: told, Metrics: server.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)}})
	if err == nil {
		err = setup(mgr)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			p.t.Errorf("run virt-controller: %v", err)
		}
	})
	p.t.Cleanup(func() { cancel(); ended.Wait() })
}

// Shows waits until kubectl would show a row of DESIRED, CURRENT and READY for an object.
func (p *Plane) Shows(kind client.Object, name, want string) {
	p.t.Helper()
	p.Until(func() string {
		columns := strings.Fields(p.Row(kind, name))
		return strings.Join(columns[min(1, len(columns)):max(0, len(columns)-1)], " ")
	}, func(got string) bool { return got == want })
}

// Row returns an object's row as kubectl would show it, or an error's text. The API server makes the row, as the CRD's
// columns say.
func (p *Plane) Row(kind client.Object, name string) string {
	row, err := p.row(kind, name)
	if err != nil {
		return err.Error()
	}
	return row
}

func (p *Plane) row(kind client.Object, name string) (string, error) {
	gvk, err := p.Client.GroupVersionKindFor(kind)
	if err != nil {
		return "", err
	}
	mapping, err := p.Client.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return "", err
	}
	config := rest.CopyConfig(p.Config)
	config.APIPath, config.GroupVersion = "/apis", ptr.To(gvk.GroupVersion())
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	asks, err := rest.RESTClientFor(config)
	if err != nil {
		return "", err
	}
	text, err := asks.Get().Namespace(p.Namespace).Resource(mapping.Resource.Resource).Name(name).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(context.Background())
	if err != nil {
		return "", err
	}
	var table metav1.Table
	if err := json.Unmarshal(text, &table); err != nil || len(table.Rows) != 1 {
		return "", fmt.Errorf("read the row of %s: %s (%w)", name, text, err)
	}
	var columns []string
	for i, cell := range table.Rows[0].Cells {
		if table.ColumnDefinitions[i].Priority == 0 {
			columns = append(columns, fmt.Sprint(cell))
		}
	}
	return strings.Join(columns, " "), nil
}

// Scale writes an object's replicas by its subresource scale, as a HorizontalPodAutoscaler does: anew where a controller wrote the object
// meanwhile.
func (p *Plane) Scale(object client.Object, replicas int32) {
	p.t.Helper()
	if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		scale := &autoscalingv1.Scale{}
		if err := p.Client.SubResource("scale").Get(context.Background(), object, scale); err != nil {
			return err
		}
		scale.Spec.Replicas = replicas
		return p.Client.SubResource("scale").Update(context.Background(), object, client.WithSubResourceBody(scale))
	}); err != nil {
		p.t.Fatal(err)
	}
}

// Until asks until the answer is right.
func (p *Plane) Until(ask func() string, right func(string) bool) {
	p.t.Helper()
	testkit.Eventually(p.t, "another answer", func() error {
		if got := ask(); !right(got) {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
}

// Said waits for an event of each reason.
func (p *Plane) Said(reasons ...string) {
	p.t.Helper()
	testkit.Eventually(p.t, "events", func() error {
		var list eventsv1.EventList
		if err := p.Client.List(context.Background(), &list, client.InNamespace(p.Namespace)); err != nil {
			return err
		}
		said := map[string]bool{}
		for _, e := range list.Items {
			said[e.Reason] = true
		}
		for _, reason := range reasons {
			if !said[reason] {
				return fmt.Errorf("there is none of the reason %s", reason)
			}
		}
		return nil
	})
}

// Patch changes an object of the namespace by a JSON merge patch.
func (p *Plane) Patch(object client.Object, name, patch string) {
	p.t.Helper()
	object.SetNamespace(p.Namespace)
	object.SetName(name)
	merge := client.RawPatch(types.MergePatchType, []byte(patch))
	if err := p.Client.Patch(context.Background(), object, merge); err != nil {
		p.t.Fatal(err)
	}
}

// Delete deletes objects of the namespace, and waits until they are gone.
func (p *Plane) Delete(kind client.Object, names ...string) {
	p.t.Helper()
	for _, deleted := range p.DeleteLater(kind, names...) {
		testkit.Eventually(p.t, "the end of "+deleted.GetName(), func() error {
			now := kind.DeepCopyObject().(client.Object)
			err := p.Client.Get(context.Background(), client.ObjectKeyFromObject(deleted), now)
			if err == nil && now.GetUID() == deleted.GetUID() {
				return fmt.Errorf("it is there, with the finalizers %q", now.GetFinalizers())
			}
			return client.IgnoreNotFound(err)
		})
	}
}

// DeleteLater deletes objects of the namespace, and does not wait for what holds them. It returns what it deleted.
func (p *Plane) DeleteLater(kind client.Object, names ...string) (deleted []client.Object) {
	p.t.Helper()
	for _, name := range names {
		object := kind.DeepCopyObject().(client.Object)
		err := p.Client.Get(context.Background(), client.ObjectKey{Namespace: p.Namespace, Name: name}, object)
		if err == nil {
			err = p.Client.Delete(context.Background(), object)
		}
		if err != nil {
			p.t.Fatal(err)
		}
		deleted = append(deleted, object)
	}
	return deleted
}

// Made counts the objects of a kind that are made from now on.
func (p *Plane) Made(kind client.ObjectList) func() int {
	p.t.Helper()
	w, err := p.Client.Watch(context.Background(), kind, client.InNamespace(p.Namespace))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(w.Stop)
	var made atomic.Int64
	go func() {
		for e := range w.ResultChan() {
			if e.Type == watch.Added {
				made.Add(1)
			}
		}
	}()
	return func() int { return int(made.Load()) }
}
