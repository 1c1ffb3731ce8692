package serve

import (
	"encoding/json"
	"net/http"

	"github.com/kubeqemu/kubeqemu/internal/handlerapi"
	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// query answers with a document from the launcher, which virt-handler does not parse.
func (s *Server) query(w http.ResponseWriter, r *http.Request) {
	command := map[string]string{handlerapi.GuestInfo: control.CommandGuestInfo, handlerapi.Users: control.CommandUsers,
		handlerapi.FileSystems: control.CommandFileSystems,
		handlerapi.Arguments:   control.CommandArguments}[r.PathValue("operation")]
	launcher, err := s.find(r)
	switch {
	case err != nil:
		fail(w, err)
		return
	case command == "":
		http.NotFound(w, r)
		return
	}
	var document json.RawMessage
	if err := launcher.Call(r.Context(), command, nil, &document); err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	// The write fails only when virt-api has gone, and then nothing waits for the answer.
	_, _ = w.Write(document)
}
