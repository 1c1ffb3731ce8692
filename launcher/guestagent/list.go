package guestagent

import (
	"encoding/json"

	"github.com/kubeqemu/kubeqemu/launcher/control"
)

// few is a list within an answer, of which only the first elements are taken.
type few[T any] []T

// maxFew is more than is kept of any such list, because some elements are left out.
const maxFew = 32

// UnmarshalJSON decodes the first elements.
func (f *few[T]) UnmarshalJSON(data []byte) (err error) {
	*f, err = list[T](data, maxFew)
	return err
}

func parseInfo(data json.RawMessage) (control.AgentInfo, error) {
	var said struct {
		Version  string          `json:"version"`
		Commands json.RawMessage `json:"supported_commands"`
	}
	if err := json.Unmarshal(data, &said); err != nil {
		return control.AgentInfo{}, ErrReply
	}
	commands, err := list[control.AgentCommand](said.Commands, maxCommands)
	for i := range commands {
		commands[i].Name = clip(commands[i].Name, maxName)
	}
	return control.AgentInfo{Version: clip(said.Version, maxName), Commands: commands}, err
}
