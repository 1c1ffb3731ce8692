package callers

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// newRights asks an API server that allows ann everything, and denies the others for a reason.
func newRights(t *testing.T) *Rights {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := &authorizationv1.SubjectAccessReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			t.Error(err)
		}
		review.TypeMeta = metav1.TypeMeta{Kind: "SubjectAccessReview", APIVersion: "authorization.k8s.io/v1"}
		review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: review.Spec.User == "ann", Reason: "it is " + review.Spec.User}
		Write(w, http.StatusCreated, review)
	}))
	t.Cleanup(api.Close)
	rights, err := NewRights(&rest.Config{Host: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	return rights
}

func TestRightsAreCheckedAndRefusalSaysWhy(t *testing.T) {
	rights := newRights(t)
	for _, c := range []struct {
		user string
		what Attributes
		want string // "" is allowed
	}{
		{"ann", Attributes{Verb: "get", Group: "g", Resource: "r", Namespace: "ns", Name: "n"}, ""},
		{"bob", Attributes{Verb: "get", Group: "g", Resource: "r", Namespace: "ns", Name: "n"}, `r.g "n" is forbidden: User "bob" cannot get resource "r" in API group "g" in the namespace "ns": it is bob`},
		{"bob", Attributes{Verb: "update", Group: "g", Resource: "r", Subresource: "s", Name: "n"}, `r.g "n" is forbidden: User "bob" cannot update resource "r/s" in API group "g" at the cluster scope: it is bob`},
	} {
		err := rights.Check(t.Context(), User{Name: c.user}, &c.what)
		if c.want == "" && err != nil || c.want != "" && (!apierrors.IsForbidden(err) || strings.Replace(err.Error(), "r/s.g", "r.g", 1) != c.want) {
			t.Errorf("%s: %v, want %q", c.user, err, c.want)
		}
	}
}

// TestQuestionsOfARefusedUserAreBounded: a user who may do nothing does not make virt-api ask without end.
func TestQuestionsOfARefusedUserAreBounded(t *testing.T) {
	rights := newRights(t)
	for range maxAsking {
		if _, err := rights.asking.Take(t.Context(), Holder(User{Name: "bob"}, ""), 1, nil); err != nil {
			t.Fatal(err)
		}
	}
	what := &Attributes{Verb: "get", Group: "g", Resource: "r"}
	if err := rights.Check(t.Context(), User{Name: "bob"}, what); !apierrors.IsTooManyRequests(err) || !strings.Contains(err.Error(), `user "bob"`) {
		t.Errorf("%v", err)
	}
	if err := rights.Check(t.Context(), User{Name: "eve"}, what); !apierrors.IsForbidden(err) {
		t.Errorf("another: %v", err)
	}
}

func TestShareBelongsToNamespaceOrUser(t *testing.T) {
	for _, c := range []struct{ user, namespace, want, named string }{
		{"ann", "ns", "ns", `namespace "ns"`},
		{"ann", "", "user ann", `user "ann"`},
		{"system:serviceaccount:tenant:a", "ns", "ns", `namespace "ns"`},
		{"system:serviceaccount:tenant:a", "", "tenant", `namespace "tenant"`},
		{"system:serviceaccount:tenant", "", "user system:serviceaccount:tenant", `user "system:serviceaccount:tenant"`},
	} {
		if got := Holder(User{Name: c.user}, c.namespace); got != c.want || named(got) != c.named {
			t.Errorf("%s in %q: %s, %s", c.user, c.namespace, got, named(got))
		}
	}
}
