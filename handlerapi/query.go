package handlerapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// Operations on the guest's agent. Of these, GuestInfo, Users and FileSystems are
// asked for without an upgrade, and answered with a document.
const (
	GuestInfo   = "guestosinfo"
	Users       = "userlist"
	FileSystems = "filesystemlist"
	Freeze      = "freeze" // with Seconds
	Unfreeze    = "unfreeze"
	SoftReboot  = "softreboot"
)

// MaxDocument bounds a document, in bytes.
const MaxDocument = 1 << 20

// streams says whether an operation is a stream.
func streams(operation string) bool {
	return operation == Console || operation == VNC || operation == Screenshot
}

// Query asks for a document, as JSON.
func (c *Client) Query(ctx context.Context, to Target, operation string) ([]byte, error) {
	conn, response, err := c.ask(ctx, http.MethodGet, to, operation, url.Values{})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, answered(response)
	}
	document, err := io.ReadAll(io.LimitReader(response.Body, MaxDocument+1))
	if err == nil && len(document) > MaxDocument {
		err = fmt.Errorf("it is longer than %d bytes", MaxDocument)
	}
	if err != nil {
		return nil, fmt.Errorf("read virt-handler's answer: %w", err)
	}
	return document, nil
}
