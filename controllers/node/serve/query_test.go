package serve

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// TestArgumentsOfALauncher: what a launcher answers comes to virt-api, and its refusal does. virt-api reads no answer
// that holds too many values. virt-handler ends the connection of a launcher whose answer is too long.
func TestArgumentsOfALauncher(t *testing.T) {
	h := newTestHandler(t, ownServing)
	api := h.api()
	const document = `{"program":"qemu","arguments":["-S"]}`
	h.answers(control.CommandArguments, control.Message{Return: []byte(document)})
	if got, err := api.Query(t.Context(), h.target, handlerapi.Arguments); err != nil || string(got) != document {
		t.Errorf("%q, %v", got, err)
	}
	h.answers(control.CommandArguments, control.Message{Error: &control.RemoteError{Description: "no QEMU runs"}})
	var said *handlerapi.Error
	_, err := api.Query(t.Context(), h.target, handlerapi.Arguments)
	if !errors.As(err, &said) || said.Code != http.StatusConflict || said.Text != "no QEMU runs" {
		t.Errorf("without QEMU: %v", err)
	}
	for _, c := range []struct{ answer, want string }{
		{`{"arguments":[` + strings.Repeat(`"",`, 20_000) + `""]}`, "more than 10000 values"},
		{`{"program":"` + strings.Repeat("x", control.MaxLineBytes) + `"}`, "message longer than"},
	} {
		h.answersTooMuch(control.CommandArguments, c.answer)
		got, err := api.Query(t.Context(), h.target, handlerapi.Arguments)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d bytes are taken (%v), want an error: %s", len(got), err, c.want)
		}
	}
}

// answersTooMuch lets the launcher answer the next command. virt-handler may end the connection meanwhile.
func (h *testHandler) answersTooMuch(command, answer string) {
	go func() {
		h.answering.Lock()
		defer h.answering.Unlock()
		if m, err := h.launcher.Receive(); err == nil && m.Execute == command {
			_ = h.launcher.Send(control.Message{ID: m.ID, Return: []byte(answer)})
		}
	}()
}
