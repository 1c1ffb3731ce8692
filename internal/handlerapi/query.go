package handlerapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
)

// Arguments asks for what the running QEMU was started with: a document.
const Arguments = "qemuargs"

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

// Bounds of a document: in bytes, and in JSON tokens (values, keys and brackets). The longest document that a
// launcher makes of an agent's answer has 6000 tokens. The arguments of a QEMU with 200 disks fit, too.
const (
	MaxDocument = 512 << 10
	maxTokens   = 10000
)

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
		return nil, Refusal(response)
	}
	document, err := io.ReadAll(io.LimitReader(response.Body, MaxDocument+1))
	if err == nil && len(document) > MaxDocument {
		err = fmt.Errorf("it is longer than %d bytes", MaxDocument)
	}
	if err == nil {
		err = CheckDocument(document)
	}
	if err != nil {
		return nil, fmt.Errorf("read virt-handler's answer: %w", err)
	}
	return document, nil
}

// CheckDocument refuses a document of too many values: an empty value, three bytes of JSON, takes fifty
// times as much memory once it is decoded.
func CheckDocument(document []byte) error {
	tokens := json.NewDecoder(bytes.NewReader(document))
	for range maxTokens {
		if _, err := tokens.Token(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return fmt.Errorf("it has more than %d values", maxTokens)
}
