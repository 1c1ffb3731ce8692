// Package cluster asks a cluster for the facts from which its guests' arguments are made. It asks with the rights of
// the user's kubeconfig. An attacker may have a node or a launcher. So the package checks the length of each answer
// before it reads the answer.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubeqemu/kubeqemu/internal/jsonsize"
)

const (
	// patience is how long a question to the API server may take. virt-api gives up before that.
	patience = time.Minute
	// maxAnswer bounds an answer, in bytes, and maxValues in JSON values. virt-api answers with less.
	maxAnswer = 1 << 20
	maxValues = 20_000
)

// Cluster is a cluster as a user's kubeconfig names it.
type Cluster struct {
	// Namespace is that of the kubeconfig's context.
	Namespace string

	client *http.Client
	server *url.URL
}

// Open reads a kubeconfig: the file, or where kubectl finds one if the file is empty. context names one of its
// contexts, or is empty for the current one.
func Open(file, context string) (*Cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	chosen := &clientcmd.ConfigOverrides{CurrentContext: context}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, chosen)
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	c := &Cluster{}
	if c.Namespace, _, err = loader.Namespace(); err != nil {
		return nil, fmt.Errorf("read the namespace of the kubeconfig: %w", err)
	}
	config.Timeout = patience
	if c.client, err = rest.HTTPClientFor(config); err != nil {
		return nil, fmt.Errorf("use the kubeconfig: %w", err)
	}
	if c.server, _, err = rest.DefaultServerUrlFor(config); err != nil {
		return nil, fmt.Errorf("read the server of the kubeconfig: %w", err)
	}
	return c, nil
}

// refusal is an answer of the API server that is no success.
type refusal struct {
	code int
	text string
}

func (r *refusal) Error() string { return r.text }

// code returns the code of a refusal, or 0 for another error.
func code(err error) int {
	if r := (*refusal)(nil); errors.As(err, &r) {
		return r.code
	}
	return 0
}

// get reads an object of the API server's. Each part of the path is escaped.
func (c *Cluster) get(ctx context.Context, into any, path ...string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.server.JoinPath(path...).String(), nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/json")
	response, err := c.client.Do(request)
	if err != nil {
		return fmt.Errorf("ask the API server: %w", err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("read the API server's answer: %w", err)
	case len(data) > maxAnswer || jsonsize.Values(data) > maxValues:
		return fmt.Errorf("read the API server's answer: it has more than %d bytes or %d values", maxAnswer, maxValues)
	case response.StatusCode != http.StatusOK:
		return refused(response, data)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("read the API server's answer: %w", err)
	}
	return nil
}

// maxText bounds the API server's words in an error, in bytes.
const maxText = 1024

// refused returns the error of an answer without success.
func refused(response *http.Response, data []byte) error {
	var status metav1.Status
	text := response.Status
	if json.Unmarshal(data, &status) == nil && status.Message != "" {
		text = status.Message[:min(len(status.Message), maxText)]
	}
	return &refusal{response.StatusCode, text}
}
