package filler

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeqemu/kubeqemu/internal/importer"
	"github.com/kubeqemu/kubeqemu/internal/portforward"
)

// maxAnswer bounds the head and the body of an importer's answer, each. Whoever may make pods in
// a namespace may put a pod of their own in an importer's place.
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

// ask sends one request and reads one answer, both bounded.
func ask(stream io.ReadWriter) (progress importer.Progress, err error) {
	if _, err = fmt.Fprintf(stream, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", importer.ProgressPath); err != nil {
		return progress, fmt.Errorf("ask for the progress: %w", err)
	}
	response, err := http.ReadResponse(bufio.NewReader(io.LimitReader(stream, 2*maxAnswer)), nil)
	if err != nil {
		return progress, fmt.Errorf("read the progress: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return progress, fmt.Errorf("read the progress: the importer answers %s", response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return progress, fmt.Errorf("read the progress: %w", err)
	}
	if err = json.Unmarshal(body, &progress); err != nil {
		return progress, fmt.Errorf("read the progress: %w", err)
	}
	return progress, nil
}
