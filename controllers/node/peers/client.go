package peers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
)

const (
	// prepareTimeout is longer than the target waits for its QEMU.
	prepareTimeout = 150 * time.Second
	channelTimeout = 45 * time.Second
)

// Client is the source's side. Its Port is Port, except in tests.
type Client struct{ handlerapi.Client }

// Destination is a target's virt-handler, and the migration that is about to go there.
type Destination struct {
	Address, Node string
	Migration     types.UID
}

// Prepare offers a guest, and returns when the target waits for it.
func (c *Client) Prepare(ctx context.Context, to Destination, offer *Offer) (*Answer, error) {
	text, err := json.Marshal(offer)
	if err != nil {
		return nil, fmt.Errorf("encode offer: %w", err)
	}
	said, err := c.post(ctx, to, "prepare", text, prepareTimeout)
	if err != nil {
		return nil, fmt.Errorf("node %s cannot take the guest: %w", to.Node, err)
	}
	return readAnswer(said)
}

// Receive asks the target to receive the guest over the channels, which are all open.
func (c *Client) Receive(ctx context.Context, to Destination) error {
	if _, err := c.post(ctx, to, "receive", nil, channelTimeout); err != nil {
		return fmt.Errorf("node %s cannot receive the guest: %w", to.Node, err)
	}
	return nil
}

func (c *Client) post(ctx context.Context, to Destination, what string, text []byte, within time.Duration) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, path(to.Migration, what), bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	conn, response, err := c.send(ctx, to, request, within)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, handlerapi.Refusal(response)
	}
	said, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	return said, nil
}

// State opens the channel for the guest's memory and devices.
func (c *Client) State(ctx context.Context, to Destination) (net.Conn, error) {
	return c.channel(ctx, to, path(to.Migration, "state"))
}

// Disk opens a channel to one of the target's disks.
func (c *Client) Disk(ctx context.Context, to Destination, disk string) (net.Conn, error) {
	return c.channel(ctx, to, path(to.Migration, "disks", disk))
}

func path(migration types.UID, parts ...string) string {
	out := "/v1/migrations/" + url.PathEscape(string(migration))
	for _, part := range parts {
		out += "/" + url.PathEscape(part)
	}
	return out
}

func (c *Client) channel(ctx context.Context, to Destination, path string) (net.Conn, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", handlerapi.Protocol)
	conn, err := c.Upgraded(c.send(ctx, to, request, channelTimeout))
	if err != nil {
		return nil, fmt.Errorf("open channel to node %s: %w", to.Node, err)
	}
	return conn, nil
}

func (c *Client) send(ctx context.Context, to Destination, request *http.Request, within time.Duration) (net.Conn, *http.Response, error) {
	conn, response, err := c.Send(ctx, handlerapi.Target{Address: to.Address, Node: to.Node}, request, within)
	// crypto/tls names an alert of the peer so.
	if alert := (*net.OpError)(nil); errors.As(err, &alert) && alert.Op == "remote error" {
		err = fmt.Errorf("its virt-handler does not let this node's in, whose certificate is of another CA or of another role, or from which no guest is to come: %w", err)
	}
	return conn, response, err
}
