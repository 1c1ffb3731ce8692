package control

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"slices"
	"sync"
)

// Commands are the commands that a launcher knows. Each has the fields that its arguments may have, in order, by
// paths such as machine.disks.image.path. An entry of a list or a map adds nothing to a path. Nothing that a path
// names ever gets another meaning. Nor does a field whose values are a closed set, such as a disk's driver, get
// another value: what is new gets a new field, or a new command, which JSON leaves out if it is not set.
type Commands map[string][]string

// commandsText has the commands of this version, as JSON: what the types of their arguments say. A launcher says it
// as it is: to find it out by reflection would cost every guest half a MiB. It says it only if it is asked, which costs
// every other guest a quarter of a MiB less.
//
//go:embed commands.json
var commandsText string

// CommandsText returns the commands of this version, as JSON.
func CommandsText() json.RawMessage { return json.RawMessage(commandsText) }

// CommandsDigest returns a digest of the commands of this version. Two versions with the same digest know the same.
func CommandsDigest() string {
	sum := sha256.Sum256([]byte(commandsText))
	return hex.EncodeToString(sum[:8])
}

var known = sync.OnceValue(func() Commands {
	var out Commands
	if err := json.Unmarshal([]byte(commandsText), &out); err != nil {
		panic("control: read commands.json: " + err.Error()) // a test reads it
	}
	return out
})

// KnownCommands returns the commands of this version, which nobody may change.
func KnownCommands() Commands { return known() }

// Core reports whether a launcher can at least be asked for its disks, be told to start its VM or why not, and be
// ended. Without these nobody could tell it anything.
func (c Commands) Core() bool {
	for _, command := range []string{CommandInspect, CommandStart, CommandReject, CommandShutdown, CommandGrace} {
		if _, ok := c[command]; !ok {
			return false
		}
	}
	_, fields := c.Lack(CommandReject, Termination{Message: "why"})
	_, more := c.Lack(CommandGrace, GraceRequest{})
	return len(fields)+len(more) == 0
}

// Within returns what both have. It returns other itself if that is all of other.
func (c Commands) Within(other Commands) Commands {
	out, all := Commands{}, true
	for command, fields := range other {
		has, ok := c[command]
		if !ok {
			all = false
			continue
		}
		here := map[string]bool{}
		for _, field := range has {
			here[field] = true
		}
		out[command] = slices.DeleteFunc(slices.Clone(fields), func(field string) bool { return !here[field] })
		all = all && len(out[command]) == len(fields)
	}
	if all {
		return other
	}
	return out
}
