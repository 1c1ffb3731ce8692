package filler

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/importer"
)

// played is a connection to whatever is in an importer's place.
func played(t *testing.T, data func(io.ReadWriter)) io.ReadWriter {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer listener.Close()
		if theirs, err := listener.Accept(); err == nil {
			data(theirs)
			theirs.Close()
		}
	}()
	ours, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close() })
	return ours
}

func answer(body string) func(io.ReadWriter) {
	return func(s io.ReadWriter) {
		request, err := http.ReadRequest(bufio.NewReader(s))
		if err != nil || request.URL.Path != importer.ProgressPath {
			return
		}
		fmt.Fprintf(s, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n%s", body)
	}
}

func TestAskImporterForProgress(t *testing.T) {
	want := importer.Progress{Done: 3, Total: 7, Anew: 1, AnewReason: "changed"}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ask(played(t, answer(string(text)))); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestAskingABadImporterEndsInAnError: whatever is in the importer's place, the question ends with an error.
func TestAskingABadImporterEndsInAnError(t *testing.T) {
	endless := func(begin string) func(io.ReadWriter) {
		return func(s io.ReadWriter) {
			io.WriteString(s, begin)
			for {
				if _, err := io.WriteString(s, strings.Repeat("x", 1<<10)); err != nil {
					return
				}
			}
		}
	}
	for name, data := range map[string]func(io.ReadWriter){
		"nothing":      func(io.ReadWriter) {},
		"no JSON":      answer("x"),
		"a long text":  answer(`{"done":1,"anewReason":"` + strings.Repeat("x", 2*maxAnswer) + `"}`),
		"no HTTP":      endless("hello "),
		"endless head": endless("HTTP/1.1 200 OK\r\nA: "),
		"endless body": endless("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"),
		"another code": func(s io.ReadWriter) { io.WriteString(s, "HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n") },
	} {
		t.Run(name, func(t *testing.T) {
			if p, err := ask(played(t, data)); err == nil {
				t.Errorf("%+v", p)
			}
		})
	}
}
