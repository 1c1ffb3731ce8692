package callers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/kubeqemu/kubeqemu/internal/intake"
)

// Attributes are what a user wants to do, in RBAC's words.
type Attributes = authorizationv1.ResourceAttributes

// Rights asks the API server what users may do.
type Rights struct {
	client rest.Interface
	// asking counts the questions that are on their way, by Holder: not by the namespace that a
	// question is about, since nobody knows yet whether the user may do anything there.
	asking intake.Budget
}

const (
	// maxAsking bounds the questions about one Holder's rights.
	maxAsking = 64
	// askTimeout bounds one question.
	askTimeout = 10 * time.Second
)

// NewRights makes a Rights.
func NewRights(config *rest.Config) (*Rights, error) {
	scheme := runtime.NewScheme()
	if err := authorizationv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("make scheme: %w", err)
	}
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &authorizationv1.SchemeGroupVersion, "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.QPS = -1 // no limit here: the API server limits its clients itself
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return &Rights{client: client, asking: intake.Budget{Size: math.MaxInt64, Share: maxAsking}}, nil
}

// Check returns a Forbidden in the API server's words unless the user may do what the attributes
// say, and a TooManyRequests if too many questions are about this user's rights.
func (r *Rights) Check(ctx context.Context, who User, what *Attributes) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	holder := Holder(who, "")
	place, err := r.asking.Take(ctx, holder, 1, nil)
	if err != nil {
		return TooMany(fmt.Sprintf("virt-api asks for the rights of %s %d times at once, and asks no more often", named(holder), maxAsking))
	}
	defer place.Release()
	allowed, reason, err := r.ask(ctx, who, what)
	if err == nil && !allowed {
		err = forbidden(who, what, reason)
	}
	return err
}

// ask sends the question as a SubjectAccessReview.
func (r *Rights) ask(ctx context.Context, who User, what *Attributes) (bool, string, error) {
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range who.Extra {
		extra[key] = values
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: who.Name, Groups: who.Groups, Extra: extra, ResourceAttributes: what}}
	answer := &authorizationv1.SubjectAccessReview{}
	err := r.client.Post().Resource("subjectaccessreviews").Body(review).Do(ctx).Into(answer)
	if err != nil {
		return false, "", fmt.Errorf("ask whether it is allowed: %w", err)
	}
	return answer.Status.Allowed && !answer.Status.Denied, answer.Status.Reason, nil
}

func forbidden(who User, what *Attributes, reason string) error {
	resource := what.Resource
	if what.Subresource != "" {
		resource += "/" + what.Subresource
	}
	where := "at the cluster scope"
	if what.Namespace != "" {
		where = fmt.Sprintf("in the namespace %q", what.Namespace)
	}
	text := fmt.Sprintf("User %q cannot %s resource %q in API group %q %s", who.Name, what.Verb, resource, what.Group, where)
	if reason != "" {
		text += ": " + reason
	}
	return apierrors.NewForbidden(schema.GroupResource{Group: what.Group, Resource: resource}, what.Name, errors.New(text))
}
