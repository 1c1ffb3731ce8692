package filler

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/portforward"
)

// maxAnswer bounds the head and the body of an importer's answer, each. A tenant may make a pod in
// an importer's place.
const maxAnswer = 4 << 10

// Forward returns a Dial that connects to importers by pods/portforward.
func Forward(dialer *portforward.Dialer) Dial {
	return func(ctx context.Context, pod types.NamespacedName) (Connection, error) {
		conn, err := dialer.Dial(ctx, pod)
		if err != nil {
			return nil, err
		}
		return forward{conn}, nil
	}
}

// forward is a Connection over pods/portforward.
type forward struct{ *portforward.Conn }

// Ask asks for the progress, over a stream of its own. After an error the connection is of no use.
func (f forward) Ask(ctx context.Context) (importer.Progress, error) {
	stream, err := f.Open(ctx, importer.Port)
	if err != nil {
		return importer.Progress{}, err
	}
	defer stream.Close()
	return ask(stream)
}

func ask(stream io.ReadWriter) (progress importer.Progress, err error) {
	err = exchange(stream, http.MethodGet, importer.ProgressPath, nil, &progress)
	return progress, err
}

// exchange sends one request over a stream of its own, and reads the answer. After an error the
// connection is of no use.
func (f forward) exchange(ctx context.Context, method, path string, say, into any) error {
	stream, err := f.Open(ctx, importer.Port)
	if err != nil {
		return err
	}
	defer stream.Close()
	return exchange(stream, method, path, say, into)
}

// exchange sends one request, with a body if say is not nil, and reads one answer, whose head and body
// are both bounded. If into is nil, the answer has no body.
func exchange(stream io.ReadWriter, method, path string, say, into any) error {
	request, err := requestOf(method, path, say)
	if err != nil {
		return err
	}
	if _, err = stream.Write(request); err != nil {
		return fmt.Errorf("ask for %s: %w", path, err)
	}
	response, err := http.ReadResponse(bufio.NewReader(io.LimitReader(stream, 2*maxAnswer)), nil)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	defer response.Body.Close()
	want := http.StatusOK
	if into == nil {
		want = http.StatusNoContent
	}
	if response.StatusCode != want {
		return fmt.Errorf("read %s: the importer answers %d", path, response.StatusCode)
	}
	if into == nil {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if err = json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

func requestOf(method, path string, say any) ([]byte, error) {
	var request bytes.Buffer
	fmt.Fprintf(&request, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n", method, path)
	var body []byte
	if say != nil {
		var err error
		if body, err = json.Marshal(say); err != nil {
			return nil, fmt.Errorf("encode %s: %w", path, err)
		}
		fmt.Fprintf(&request, "Content-Type: application/json\r\nContent-Length: %d\r\n", len(body))
	}
	request.WriteString("\r\n")
	request.Write(body)
	return request.Bytes(), nil
}
