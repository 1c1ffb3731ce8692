package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"
)

// apiClient asks kube-apiserver as the administrator. The few questions here
// are not worth linking client-go into this program.
type apiClient struct {
	url  string
	http *http.Client
}

func (p Plan) apiClient() (*apiClient, error) {
	ca, err := os.ReadFile(p.pki("ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("read certificate authority: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("read certificate authority: no certificate in it")
	}
	client, err := tls.LoadX509KeyPair(p.pki("admin.crt"), p.pki("admin.key"))
	if err != nil {
		return nil, fmt.Errorf("read administrator's certificate: %w", err)
	}
	return &apiClient{url: p.APIURL(), http: &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{client}}},
	}}, nil
}

// errNotOK is any answer but 200.
var errNotOK = errors.New("API server does not answer with 200")

func (c *apiClient) get(ctx context.Context, path string) ([]byte, error) {
	return get(ctx, c.http, c.url+path)
}

func get(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotOK, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 16<<20))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotOK, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%w: %s: %s", errNotOK, response.Status, strings.TrimSpace(string(body)))
	}
	return body, nil
}

// answers waits until the path answers with 200.
func (c *apiClient) answers(ctx context.Context, path string, timeout time.Duration) error {
	var last error
	err := poll(ctx, timeout, func() (bool, error) {
		_, last = c.get(ctx, path)
		return last == nil, nil
	})
	if errors.Is(err, errTimeout) {
		return fmt.Errorf("wait for %s: %w", path, last)
	}
	return err
}

// nodeInfo is what this program needs of a Node object.
type nodeInfo struct {
	Status struct {
		Conditions []nodeCondition `json:"conditions"`
		NodeInfo   struct {
			Kubelet string `json:"kubeletVersion"`
			Runtime string `json:"containerRuntimeVersion"`
		} `json:"nodeInfo"`
	} `json:"status"`
}

type nodeCondition struct {
	Type, Status, Message string
	LastHeartbeatTime     time.Time
}

// ready also returns the kubelet's message. A report from before since, in whole seconds, does
// not count.
func (n nodeInfo) ready(since time.Time) (bool, string) {
	for _, c := range n.Status.Conditions {
		if c.Type == "Ready" && !c.LastHeartbeatTime.Before(since.Truncate(time.Second)) {
			return c.Status == "True", c.Message
		}
	}
	return false, "the kubelet has not reported yet"
}

func (c *apiClient) node(ctx context.Context, name string) (nodeInfo, error) {
	var n nodeInfo
	body, err := c.get(ctx, "/api/v1/nodes/"+name)
	if err != nil {
		return n, err
	}
	return n, json.Unmarshal(body, &n)
}

func (c *apiClient) nodeReady(ctx context.Context, name string, since time.Time, timeout time.Duration) error {
	why := ""
	err := poll(ctx, timeout, func() (bool, error) {
		n, err := c.node(ctx, name)
		if err != nil {
			why = err.Error()
			return false, nil
		}
		ok, message := n.ready(since)
		why = message
		return ok, nil
	})
	if errors.Is(err, errTimeout) {
		return fmt.Errorf("wait for %s to be ready: %w: %s", name, err, why)
	}
	return err
}

// proxyReady waits until the node's kube-proxy has written its rules.
func proxyReady(ctx context.Context, address netip.Addr, timeout time.Duration) error {
	url := "http://" + netip.AddrPortFrom(address, proxyCheckPort).String() + "/healthz"
	client := &http.Client{Timeout: 2 * time.Second}
	err := poll(ctx, timeout, func() (bool, error) {
		_, err := get(ctx, client, url)
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait for kube-proxy at %s: %w", url, err)
	}
	return nil
}
